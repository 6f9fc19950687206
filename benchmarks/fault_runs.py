"""Shared by counts of faults: runs as processes of their own, places to write to, ends that are compared."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import ROOT

import mmcl_lightning._trainer_cli  # noqa: F401  # once, for all that is forked
from mmcl_lightning._checkpoints import checkpoints_in, read_checkpoint
from mmcl_lightning.cli import main

SAVING = [{"class_path": "ResumableCheckpoint", "init_args": {"train_time_interval": "0:00:00"}}]
RUN = [
    "fit", "--config=quickstart", "--data.train_size=64", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu", "--trainer.max_epochs=4",
    "--trainer.enable_progress_bar=false", "--readouts.support_vectors=null", "--readouts.knn.k=5",
    "--trainer.callbacks=" + json.dumps(SAVING),
]  # fmt: skip
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]


class Process:
    """The command line in a new folder, forked from here or, for several processes, started anew."""

    def __init__(self, folder: Path, *options: str, temporary: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, arguments = folder, [*RUN, *options]
        self.output = folder / "output.txt"
        if "--trainer.devices=2" in options:
            command = [sys.executable, "-m", "mmcl_lightning", *arguments]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            with open(self.output, "a") as output:
                started = subprocess.Popen(
                    command, cwd=folder, env=environment, start_new_session=True, stdout=output, stderr=output
                )
            self.pid, self._wait = started.pid, started.wait
        else:
            child = multiprocessing.get_context("fork").Process(target=self._run, args=(arguments, temporary))
            child.start()
            self.pid = child.pid or 0
            self._wait = lambda: (child.join(), child.exitcode)[1]

    def _run(self, arguments: list[str], temporary: Path | None) -> None:
        os.setsid()
        os.chdir(self.folder)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if temporary is not None:
            os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
        main(arguments)

    def wait(self) -> int:
        """Let it end; return how."""
        return int(self._wait())

    def send(self, number: int) -> None:
        """Send a signal to it and all its processes, as terminals and schedulers do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def drafts(self) -> list[Path]:
        """Checkpoints that are being written."""
        return list(self.folder.glob("runs/*/*/checkpoints/*.tmp"))

    def saved(self) -> list[Path]:
        """Checkpoints, the newest first."""
        return checkpoints_in(self.folder / "runs" / "quickstart")


def state(run: Process) -> Any:
    """Return the end of a run: the newest checkpoint's weights, optimizer and steps."""
    content = read_checkpoint(str(run.saved()[0]))
    return content["state_dict"], content["optimizer_states"][0]["state"], content["global_step"]


def equal(one: Any, other: Any) -> bool:
    """Whether nested tensors and numbers are the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(map(equal, one, other))
    return bool(one == other)


def ends_alike(run: Process, reference: Any, *options: str) -> bool:
    """Go on with a run as a user does, and compare its end."""
    going_on = ["--ckpt_path=last"] if run.saved() else []
    again = Process(run.folder, *options, *going_on)
    return again.wait() == 0 and equal(state(again), reference)


@contextlib.contextmanager
def places() -> Iterator[dict[str, Path]]:
    """Two file systems: on disk, and 64 MB in memory."""
    with tempfile.TemporaryDirectory() as disk:
        memory = Path(disk) / "memory"
        memory.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(memory)], check=False
        )
        other = memory if mounted.returncode == 0 else Path(tempfile.mkdtemp(dir="/dev/shm"))
        (Path(disk) / "runs").mkdir()
        try:
            yield {"disk": Path(disk) / "runs", "memory": other}
        finally:
            if mounted.returncode == 0:
                subprocess.run(["umount", str(memory)], check=False)
            else:
                shutil.rmtree(other)


def write(path: Path, sections: dict[str, str]) -> None:
    """Put sections into the document, each between its marks, in place of earlier ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else "# Faults\n\n"
    for title, content in sections.items():
        begin, end = f"<!-- {title} -->\n", f"<!-- end of {title} -->\n"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n## {title}\n\n{content}\n{end}{after}"
    path.write_text(text)
