"""A full disk and a worker that was killed for memory are each a sentence that names what to do."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision  # noqa: F401, for its operations
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning._messages import filter_warnings, plain_message
from mmcl_lightning.cli import main

QUICK = [
    "fit", "--config=quickstart", "--data.train_size=16", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu", "--readouts.knn=null",
    "--readouts.probe=null", "--readouts.health=null", "--readouts.support_vectors=null",
]  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB, of which a checkpoint takes 5."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a disk of a given size")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("filled", [0, 7_990_000])
def test_a_full_disk_is_named(
    filled: int, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(small)
    (small / "filler").write_bytes(bytes(filled))
    with pytest.raises(SystemExit):
        main([*QUICK, "--trainer.max_epochs=2"])
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "No space left on device: runs/quickstart/version_0/checkpoints/" in said
    assert "of 8 MB free. Make room, or write elsewhere: runs go to --trainer.logger.save_dir" in said
    assert not list(small.rglob("*.tmp"))
    assert [path.name for path in small.rglob("*.ckpt")] == ["epoch=0-step=2.ckpt"] * (not filled)


def test_without_a_file_the_disks_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    said = plain_message(OSError(errno.ENOSPC, "No space left on device"))
    assert said is not None
    assert said.startswith("No space left on device: . lies on a disk with ")
    assert f" and {tmp_path} lies on a disk with " in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_thread_leaves_a_full_disk_to_the_process(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:  # as TensorBoard's thread does
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("threading.excepthook", threading.__excepthook__)
    filter_warnings()
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert ("Traceback" in capsys.readouterr().err) == (number == errno.EACCES)


class Deadly(Dataset[int]):
    """Ends the worker that reads it, as the system does when memory runs out."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_worker_killed_for_memory_is_a_sentence() -> None:
    with pytest.raises(RuntimeError) as caught:
        next(iter(DataLoader(Deadly(), num_workers=1)))
    said = plain_message(caught.value)
    assert said is not None
    assert said.startswith("a worker of the data loader, process ")
    assert said.endswith(
        "as the system does when memory runs out: give fewer --data.num_workers, a smaller "
        "--data.batch_size, or more memory"
    )


def test_full_shared_memory_is_told_apart() -> None:
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ...")
    assert plain_message(error) == (
        "a worker of the data loader, process 7, was killed (Bus error), as the system does when shared "
        "memory, /dev/shm, is full: give fewer --data.num_workers, a smaller --data.batch_size, or more "
        "memory"
    )


def test_a_full_gpu_names_what_needs_less() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    said = plain_message(error)
    assert said is not None
    assert said.startswith("the memory of the GPU is full (Tried to allocate 2.00 GiB): give a smaller")
    assert "--model.chunk_size" in said
    own = KeyError("somebody's own, while it was handled")
    own.__context__ = error
    assert plain_message(own) != said


def test_an_operation_that_a_precision_lacks_is_named() -> None:
    boxes = torch.rand(3, 4, dtype=torch.bfloat16)
    with pytest.raises((NotImplementedError, RuntimeError)) as raised:
        torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.5)
    assert plain_message(raised.value) is None  # of somebody's own code, such as this file
    raised.value.__traceback__ = None  # as of code of torchvision alone
    said = plain_message(raised.value)
    assert said is not None
    assert said.endswith("cannot be computed in BFloat16 on this device: use a precision of 32-true")
