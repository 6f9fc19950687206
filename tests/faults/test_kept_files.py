"""Files are whole under their names or not there, and a damaged one is named, not taken."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import mmcl, shapes, simclr, trainer

from mmcl_lightning import MMCL
from mmcl_lightning._checkpoints import check_file, damage, has_good, newest_good, write_file
from mmcl_lightning._files import whole_file
from mmcl_lightning.callbacks import ResumableCheckpoint
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules import export_backbone

ROOT = Path(__file__).parents[2]
QUICK = [
    "fit", "--config=quickstart", "--data.train_size=16", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu", "--readouts.knn=null",
    "--readouts.probe=null", "--readouts.health=null", "--readouts.support_vectors=null",
]  # fmt: skip


def flip(path: Path) -> None:
    """Change one bit of the largest tensor of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


#: What may have become of a file.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "flipped": flip,
    "empty": lambda path: path.write_bytes(b""),
    "other": lambda path: torch.save({"weight": torch.ones(3)}, path),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    trainer(folder, ResumableCheckpoint(dirpath=folder), max_epochs=1).fit(mmcl(), shapes())
    return folder / "last.ckpt"


@pytest.mark.parametrize("kind", DAMAGES)
def test_last_is_the_newest_good_one_and_names_the_bad(
    kind: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    good, bad = folder / "epoch=0-step=4.ckpt", folder / "last.ckpt"
    shutil.copy(saved, good)
    shutil.copy(saved, bad)
    DAMAGES[kind](bad)
    for age, path in enumerate((bad, good)):
        os.utime(path, (2e9 - age, 2e9 - age))
    path, content = newest_good(tmp_path)
    assert (path, content["global_step"]) == (str(good), 4)
    said = capsys.readouterr().err
    assert f"warning: {bad}" in said
    assert f"--ckpt_path is {good}" in said
    good.unlink()
    with pytest.raises(ConfigError, match=r"no run with a checkpoint that can be read \(1 cannot\)"):
        newest_good(tmp_path)


@pytest.mark.parametrize("leads", ["nowhere", "last.ckpt", "/"])
def test_last_passes_over_a_link_that_leads_to_no_file(
    leads: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    good, link = folder / "epoch=0-step=4.ckpt", folder / "last.ckpt"
    shutil.copy(saved, good)
    os.utime(good, (1e9, 1e9))
    link.symlink_to(leads)
    assert has_good(tmp_path)
    assert newest_good(tmp_path)[0] == str(good)
    assert f"warning: there is no checkpoint {link}" in capsys.readouterr().err


def test_a_flipped_byte_is_found_on_every_way_in(saved: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.ckpt"
    shutil.copy(saved, bad)
    flip(bad)
    torch.load(bad, weights_only=True)  # nothing is said
    run = trainer(tmp_path, ResumableCheckpoint(dirpath=tmp_path), max_epochs=2)
    ways = (
        lambda: run.fit(mmcl(), shapes(), ckpt_path=bad),
        lambda: MMCL.load_from_checkpoint(bad),
        lambda: export_backbone(str(bad), str(tmp_path / "out.pt")),
        lambda: mmcl(init_from=str(bad)).start_from(str(bad)),
    )
    for way in ways:
        with pytest.raises(ConfigError, match=r"bad.ckpt cannot be read as .*: it is damaged .*checksum of"):
            way()


def test_files_of_the_older_format_have_no_checksums(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check_file(tmp_path / "old.pt", "weights")
    assert damage(tmp_path / "old.pt") is not None


def test_a_run_goes_on_from_the_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main([*QUICK, "--trainer.max_epochs=1"])
    (last,) = tmp_path.rglob("last.ckpt")
    os.truncate(last, 1000)
    os.utime(last, (2e9, 2e9))
    main([*QUICK, "--trainer.max_epochs=2", "--ckpt_path=last"])
    said = capsys.readouterr()
    assert "last.ckpt cannot be read as a checkpoint" in said.err
    assert "Trained 2 epochs, 4 steps." in said.out
    assert not list(tmp_path.rglob("*.tmp"))


WRITER = """
import sys, torch
from mmcl_lightning._checkpoints import write_file
for number in range(1000):
    write_file({"number": number, "tensor": torch.rand(4_000_000)}, sys.argv[1])
"""


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_kill_within_a_write_leaves_the_file_before(where: str, tmp_path: Path) -> None:
    folder = tmp_path
    if where == "memory":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no file system in memory")
        folder = Path("/dev/shm") / f"mmcl_test_{os.getpid()}"
        folder.mkdir()
    try:
        target, draft = folder / "last.ckpt", folder / "last.ckpt.tmp"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
        with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], env=environment) as process:
            deadline = time.monotonic() + 60
            while not target.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            while not draft.exists() and time.monotonic() < deadline:
                pass
            process.send_signal(signal.SIGKILL)
        assert damage(target) is None
    finally:
        if where == "memory":
            shutil.rmtree(folder)


def test_a_full_disk_leaves_the_file_before_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_file({"a": 1}, path)

    def fill() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        fill()
    assert caught.value.filename == str(path)
    assert torch.load(path, weights_only=True) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_trainer_keeps_the_way_to_write_that_it_was_given(tmp_path: Path) -> None:
    from lightning.pytorch.plugins.io import TorchCheckpointIO

    class Own(TorchCheckpointIO):
        pass

    own = Own()
    run = trainer(tmp_path, ResumableCheckpoint(dirpath=tmp_path), plugins=[own])
    run.fit(simclr(), shapes())
    assert run.strategy.checkpoint_io is own
