"""However a run ends, the next one goes on with it, and with no other."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from runs import mmcl, shapes, trainer

from mmcl_lightning.callbacks import ResumableCheckpoint

ROOT = Path(__file__).parents[2]
QUICK = [
    "fit", "--config=quickstart", "--data.train_size=64", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu", "--readouts.knn=null",
    "--readouts.probe=null", "--readouts.health=null", "--readouts.support_vectors=null",
    "--trainer.enable_progress_bar=false",
]  # fmt: skip


@contextlib.contextmanager
def begin(
    folder: Path, *options: str, arguments: list[str] = QUICK, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run the command line as a process of its own, which ends with a test that fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more.pop("env", {})
    command = [sys.executable, "-m", "mmcl_lightning", *arguments, *options]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | more
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, for its children too
    try:
        process = subprocess.Popen(command, cwd=folder, env=environment, **more)
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.rglob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)


def steps(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a job, and an ``scontrol`` that writes down how it was called."""
    tool = tmp_path / "bin" / "scontrol"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.txt\n')
    tool.chmod(0o755)
    job = {"NTASKS": "1", "JOB_NAME": "train", "JOB_ID": "417", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"} | {f"SLURM_{k}": v for k, v in job.items()}


def test_a_requeued_job_goes_on_with_its_own_run_alone(tmp_path: Path, slurm: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with begin(tmp_path, "--trainer.max_epochs=300", env=slurm) as first:
        wait_for(tmp_path, "last.ckpt")
        first.send_signal(signal.SIGUSR1)
        said, _ = first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGUSR1, said
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 417\n"
    checkpoints = runs / "quickstart" / "version_0" / "checkpoints"
    at = steps(checkpoints / "hpc_ckpt_1.ckpt")
    assert steps(checkpoints / "last.ckpt") == at > 0
    assert not list(runs.glob("*.ckpt"))
    # What an earlier version left where all runs share it, another seed's run, and the same command anew.
    shutil.copy(checkpoints / "last.ckpt", runs / "hpc_ckpt_1.ckpt")
    short = "--trainer.limit_train_batches=1", "--trainer.max_epochs=1"
    with begin(tmp_path, "--seed_everything=5", *short, env=slurm | {"SLURM_RESTART_COUNT": "1"}) as other:
        said, _ = other.communicate(timeout=60)
    assert "Trained 1 epoch, 1 step." in said
    with begin(tmp_path, "--trainer.max_epochs=300", env=slurm | {"SLURM_RESTART_COUNT": "1"}) as second:
        assert second.stdout is not None
        lines = []
        for line in second.stdout:
            lines += [line] if "SLURM job" in line or "--ckpt_path is" in line else []
            if len(lines) == 2:
                second.kill()
    assert lines[0] == "This SLURM job was started again, and goes on with its run\n"
    assert lines[1].startswith(f"--ckpt_path is {checkpoints.relative_to(tmp_path)}/")


def test_a_closed_terminal_saves(tmp_path: Path) -> None:
    """With the progress bar, which writes to a terminal that is gone."""
    master, slave = pty.openpty()
    options = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    command = [option for option in QUICK if "progress" not in option]
    with begin(tmp_path, "--trainer.max_epochs=1000", arguments=command, **options) as process:
        os.close(slave)
        deadline = time.monotonic() + 120
        os.set_blocking(master, False)
        while not list(tmp_path.rglob("last.ckpt")) and time.monotonic() < deadline:
            try:
                os.read(master, 65536)
            except BlockingIOError:
                time.sleep(0.01)
        os.close(master)
        process.send_signal(signal.SIGHUP)  # a controlling terminal's kernel does it
        process.wait(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    (record,) = tmp_path.rglob("ledger.json")
    content = json.loads(record.read_text())
    assert content["status"] == "interrupted"
    (last,) = tmp_path.rglob("last.ckpt")
    assert steps(last) == content["steps"] > 0


class Note(Callback):
    """Notes the step at which last.ckpt stands after each batch."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, []

    def on_train_batch_start(self, *args: Any) -> None:
        self.seen.append(steps(self.path) if self.path.exists() else 0)


@pytest.mark.parametrize("save_last", [True, "link", False])
def test_saving_by_time_and_by_epochs(save_last: Any, tmp_path: Path) -> None:
    checkpoint = ResumableCheckpoint(
        dirpath=tmp_path, every_n_epochs=2, train_time_interval=timedelta(0), save_last=save_last
    )
    note = Note(tmp_path / "last.ckpt")
    trainer(tmp_path, note, checkpoint, max_epochs=2).fit(mmcl(), shapes())
    names = sorted(path.name for path in tmp_path.glob("*.ckpt"))
    assert names == ["epoch=1-step=8.ckpt", *["last.ckpt"] * bool(save_last)]
    assert note.seen == [step if save_last else 0 for step in range(8)]


def test_the_default_saves_by_time_and_none_does_not(tmp_path: Path) -> None:
    assert ResumableCheckpoint(every_n_epochs=25)._interval == timedelta(minutes=15)
    note = Note(tmp_path / "last.ckpt")
    saving = ResumableCheckpoint(dirpath=tmp_path, every_n_epochs=2, train_time_interval=None)
    trainer(tmp_path, note, saving, max_epochs=2).fit(mmcl(), shapes())
    assert note.seen == [0] * 8


def test_a_kill_before_last_ckpt_was_written_leaves_none_behind_the_end(tmp_path: Path) -> None:
    class DyingCheckpoint(ResumableCheckpoint):
        def _save_last_checkpoint(self, run: Any, metrics: Any) -> None:
            if run.global_step == 8:
                raise KeyboardInterrupt  # nothing after this is done: as a kill
            super()._save_last_checkpoint(run, metrics)

        def on_exception(self, *args: Any) -> None:
            pass

    options: dict[str, Any] = {"dirpath": tmp_path, "every_n_epochs": 1}
    with pytest.raises(SystemExit):
        trainer(tmp_path, DyingCheckpoint(**options), max_epochs=2).fit(mmcl(), shapes())
    last, end = tmp_path / "last.ckpt", tmp_path / "epoch=1-step=8.ckpt"
    assert (steps(last), steps(end)) == (4, 8)
    saving = ResumableCheckpoint(**options)
    trainer(tmp_path, saving, max_epochs=2).fit(mmcl(), shapes(), ckpt_path=end)
    assert steps(last) == 8
    assert saving.last_model_path == str(last)


def test_the_users_own_handler_stays(tmp_path: Path) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))

    class Send(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        trainer(tmp_path, Send(), ResumableCheckpoint(dirpath=tmp_path)).fit(mmcl(), shapes())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1] * 4
