"""last.ckpt is where a run ended, whether by itself or because it was told to, and going on loses nothing."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Timer
from runs import TINY, Plain, Recorder, moco, shapes, simclr, trainer

from mmcl_lightning.callbacks import Ledger, OnlineKNN, Readouts, ResumableCheckpoint
from mmcl_lightning.callbacks.stopping import StopAtOnce
from mmcl_lightning.modules import ContrastiveModule
from mmcl_lightning.readouts import KNN

EPOCHS, STEPS = 4, 4  # per epoch
EVEN = {"lr_schedule": "constant"}  # so that a run can go on beyond its end


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """SIGINT as in a terminal: a background job, in which tests may run, ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Press(Callback):
    """Sends this process a signal from within a hook, at the given count of its calls."""

    def __init__(self, hook: str, count: int, number: int = signal.SIGINT, times: int = 1) -> None:
        self.calls, self.count, self.number, self.times = 0, count, number, times
        setattr(self, hook, self._press)

    def _press(self, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        if self.calls == self.count:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


def build(kind: str) -> ContrastiveModule:
    return moco(3, chunk_size=4, **EVEN) if kind == "moco" else simclr(3, **EVEN)


def run(folder: Path, kind: str, *callbacks: Callback, ckpt: str | None = None, **options: Any) -> Any:
    recorder, module = Recorder(), build(kind)
    own = ("every_n_epochs", "every_n_train_steps", "save_on_train_epoch_end", "save_top_k")
    saving = {name: options.pop(name) for name in own if name in options} or {"every_n_epochs": 3}
    checkpoint = ResumableCheckpoint(dirpath=folder, **saving)
    options = {"max_epochs": EPOCHS, "limit_val_batches": None} | options
    parts = [recorder, OnlineKNN(k=4, every_n_epochs=2), Ledger(str(folder)), *callbacks, checkpoint]
    try:
        trainer(folder, *parts, **options).fit(module, shapes(), ckpt_path=ckpt)
        code: Any = 0
    except SystemExit as stop:
        code = stop.code
    return recorder.loss, module.state_dict(), code, json.loads((folder / "ledger.json").read_text())


@functools.cache
def whole_run(kind: str, **options: Any) -> Any:
    """Run without an interruption, once for all the places in which others are interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), kind, **options)


def numbers(record: dict[str, Any]) -> dict[str, list[Any]]:
    """Every logged value with its step, without what depends on the clock."""
    return {
        name: [[point[1], point[3]] for point in metric["curve"]]
        for name, metric in record["metrics"].items()
        if not name.startswith("time/") and "seconds" not in name
    }


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize("kind", ["simclr", "moco"])
@pytest.mark.parametrize(
    ("hook", "count", "options"),
    [
        ("on_before_zero_grad", 2, {}),  # within a step: after the forward, before the backward pass
        ("on_before_zero_grad", STEPS, {}),  # in the last step of an epoch: its readout is still made
        ("on_validation_batch_start", 1, {}),  # in a validation: it is made to its end
        ("on_validation_batch_start", 1, {"val_check_interval": 2}),
        ("on_before_backward", 5, {"accumulate_grad_batches": 2}),  # gradients of half a step are kept
        ("on_train_batch_start", 1, {}),
        ("on_train_batch_start", 2, {"accumulate_grad_batches": 3, "val_check_interval": 2}),
        ("on_train_batch_start", 6, {"val_check_interval": 3, "check_val_every_n_epoch": None}),
        ("on_before_zero_grad", STEPS, {"max_epochs": -1, "max_steps": 6}),
        ("on_validation_start", 1, {"val_check_interval": 2, "every_n_train_steps": 2}),
        ("on_train_batch_start", 3, {"every_n_train_steps": 3}),
        ("on_before_zero_grad", STEPS, {"save_on_train_epoch_end": False, "every_n_epochs": 1}),
    ],
    ids=[
        "step",
        "last step",
        "validation",
        "validation within an epoch",
        "accumulation",
        "first batch",
        "validation within an accumulation",
        "validation by steps",
        "last step of an epoch with max_steps",
        "validation after a save",
        "step that is saved",
        "save after a validation",
    ],
)
def test_ctrl_c_costs_nothing(
    kind: str, hook: str, count: int, options: dict[str, Any], tmp_path: Path
) -> None:
    loss, weights, code, record = whole_run(kind, **options)
    assert code == 0
    first, _, code, stopped = run(tmp_path / "cut", kind, Press(hook, count), **options)
    assert (code, stopped["status"]) == (130, "interrupted")
    last = str(tmp_path / "cut" / "last.ckpt")
    rest, resumed, code, ended = run(tmp_path / "cut", kind, ckpt=last, **options)
    assert (code, ended["status"]) == (0, "finished")
    assert 0 < len(first) < len(loss)
    assert first + rest == loss
    assert equal(resumed, weights)
    assert numbers(ended) == numbers(record)


def test_sigterm_ends_like_ctrl_c_but_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    loss, _, code, record = run(tmp_path, "simclr", Press("on_train_batch_start", 6, signal.SIGTERM))
    assert (len(loss), code, record["status"]) == (6, 143, "interrupted")
    assert "\nStopping after this step.\n" in capfd.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_sigterm_in_a_validation_of_a_training_is_the_checkpoints(tmp_path: Path) -> None:
    """Beside the callback of the commands that ends what only reads at once."""
    press = Press("on_validation_batch_start", 1, signal.SIGTERM)
    loss, _, code, record = run(tmp_path, "simclr", StopAtOnce(), press)
    assert (len(loss), code, record["status"]) == (STEPS, 143, "interrupted")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == STEPS


def test_a_refused_resume_leaves_no_checkpoint(tmp_path: Path) -> None:
    """Weights and counts are restored then, and neither the optimizer nor the schedule."""
    run(tmp_path / "whole", "simclr")
    last = tmp_path / "whole" / "last.ckpt"
    short = ResumableCheckpoint(dirpath=tmp_path / "short")
    with pytest.raises(Exception, match=f"current_epoch={EPOCHS}, but you have set"):
        trainer(tmp_path / "short", short, max_epochs=1).fit(build("simclr"), shapes(), ckpt_path=last)
    assert [*(tmp_path / "short").glob("*.ckpt")] == []


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loss, _, code, record = run(tmp_path, "simclr", Press("on_train_batch_start", 6, times=2))
    assert (len(loss), code, record["status"]) == (5, 1, "interrupted")
    assert "\nStopping after this step; Ctrl-C again to stop within it.\n" in capfd.readouterr().err
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 5


def test_a_second_ctrl_c_while_the_checkpoint_is_written(tmp_path: Path) -> None:
    first = Press("on_train_batch_start", 6)
    second = Press("on_save_checkpoint", 3)  # after two in epoch 1: by number, and last.ckpt
    saving = {"every_n_epochs": 1}
    loss, weights, code, record = run(tmp_path, "simclr", first, second, **saving)
    assert (second.calls, len(loss), code, record["status"]) == (3, 6, 130, "interrupted")
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert last["global_step"] == 6
    assert equal(last["state_dict"], weights)


@pytest.mark.parametrize("save", [1, 2])  # of the end of epoch 1: by number, and last.ckpt
def test_a_second_ctrl_c_between_a_numbered_checkpoint_and_the_last(save: int, tmp_path: Path) -> None:
    presses = Press("on_train_batch_start", STEPS), Press("on_save_checkpoint", save)
    loss, weights, code, record = run(tmp_path, "simclr", *presses, every_n_epochs=1)
    assert (len(loss), code, record["status"]) == (STEPS, 1, "interrupted")
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert last["global_step"] == STEPS
    assert equal(last["state_dict"], weights)


def test_a_background_job_goes_on_ignoring_ctrl_c(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loss, _, code, record = run(tmp_path, "simclr", Press("on_train_batch_start", 6, times=2))
    assert (len(loss), code, record["status"]) == (EPOCHS * STEPS, 0, "finished")


def test_a_signal_in_the_last_step_lets_the_run_finish(tmp_path: Path) -> None:
    press = Press("on_train_batch_start", EPOCHS * STEPS)
    loss, _, code, record = run(tmp_path, "simclr", press)
    assert (len(loss), code, record["status"]) == (EPOCHS * STEPS, 0, "finished")


def test_last_is_the_end_between_two_checkpoints(tmp_path: Path) -> None:
    longer = {"max_epochs": 6}
    loss, weights, _, _ = run(tmp_path / "whole", "moco", **longer)
    first, at_end, _, _ = run(tmp_path / "cut", "moco", max_epochs=4)
    last = torch.load(tmp_path / "cut" / "last.ckpt", weights_only=True)
    assert last["global_step"] == len(first)
    assert equal(last["state_dict"], at_end)
    rest, resumed, _, _ = run(tmp_path / "cut", "moco", ckpt=str(tmp_path / "cut" / "last.ckpt"), **longer)
    assert first + rest == loss
    assert equal(resumed, weights)


def test_last_is_the_end_within_an_epoch(tmp_path: Path) -> None:
    _, weights, _, _ = run(tmp_path, "moco", max_steps=13, max_epochs=-1)
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert last["global_step"] == 13
    assert equal(last["state_dict"], weights)


def test_a_run_that_runs_out_of_time_saves_its_end(tmp_path: Path) -> None:
    _, weights, _, _ = run(tmp_path, "simclr", Timer(timedelta(seconds=0.2)), max_epochs=10_000)
    assert equal(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"], weights)


def test_foreign_modules_stop_after_a_step_too(tmp_path: Path) -> None:
    parts = [Press("on_train_batch_start", 2), ResumableCheckpoint(dirpath=tmp_path)]
    with pytest.raises(SystemExit) as stop:
        trainer(tmp_path, *parts, max_epochs=3).fit(Plain())
    assert stop.value.code == 130
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 2


def break_in_readout(folder: Path, epoch: int) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        if fitting.current_epoch + 1 == epoch:
            raise OSError("no disk")
        return read(*args, **kwargs)

    knn = KNN(k=4)
    read, knn.compute = knn.compute, fail  # type: ignore[method-assign]
    parts = Readouts(every_n_epochs=2, knn=knn), ResumableCheckpoint(dirpath=folder)
    fitting = trainer(folder, *parts, max_epochs=EPOCHS)
    with pytest.raises(OSError, match="no disk"):
        fitting.fit(build("simclr"), shapes())


def test_a_readout_that_broke_off_is_made_up_for(tmp_path: Path) -> None:
    _, _, _, whole = run(tmp_path / "whole", "simclr")
    break_in_readout(tmp_path, 2)
    knn = OnlineKNN(k=4, every_n_epochs=2)
    second = trainer(tmp_path, knn, max_epochs=EPOCHS)
    second.fit(build("simclr"), shapes(), ckpt_path=str(tmp_path / "last.ckpt"))
    expected = [(round(epoch), top1) for epoch, _, _, top1 in whole["metrics"]["knn/top1"]["curve"]]
    assert [(epoch, pytest.approx(top1, abs=1e-6)) for epoch, top1 in knn.curve] == expected


def test_a_missing_last_readout_is_said(tmp_path: Path) -> None:
    break_in_readout(tmp_path, EPOCHS)
    second = trainer(tmp_path, OnlineKNN(k=4, every_n_epochs=2), max_epochs=EPOCHS)
    with pytest.warns(UserWarning, match="the last reading of knn was interrupted"):
        second.fit(build("simclr"), shapes(), ckpt_path=str(tmp_path / "last.ckpt"))


def test_an_error_in_a_validation_writes_nothing(tmp_path: Path) -> None:
    run(tmp_path, "simclr", max_epochs=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    class Fail(Callback):
        def on_validation_batch_start(self, *args: Any) -> None:
            raise RuntimeError("no disk")

    judge = trainer(tmp_path, Fail(), ResumableCheckpoint(dirpath=tmp_path), limit_val_batches=None)
    with pytest.raises(RuntimeError, match="no disk"):
        judge.validate(build("simclr"), shapes(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_save_by_steps_in_the_last_step_of_an_epoch_keeps_its_readouts(tmp_path: Path) -> None:
    saving = {"every_n_train_steps": STEPS, "save_top_k": -1}
    loss, weights, _, whole = run(tmp_path / "whole", "moco", **saving)
    path = str(tmp_path / "whole" / f"epoch=1-step={2 * STEPS}.ckpt")
    rest, resumed, _, ended = run(tmp_path / "cut", "moco", ckpt=path, **saving)
    assert rest == loss[2 * STEPS :]
    assert equal(resumed, weights)
    assert numbers(ended) == numbers(whole)


def test_options_are_those_of_lightning(tmp_path: Path) -> None:
    checkpoint = ResumableCheckpoint(save_last=False, dirpath=tmp_path, every_n_train_steps=3)
    parts = [Press("on_train_batch_start", 5), checkpoint]
    with pytest.raises(SystemExit):
        trainer(tmp_path, *parts, max_epochs=3).fit(simclr(**TINY), shapes())
    names = {path.name for path in tmp_path.glob("*.ckpt")}
    assert names == {"epoch=0-step=3.ckpt", "epoch=1-step=5.ckpt"}


@pytest.mark.parametrize(
    ("number", "group", "devices"),
    [(signal.SIGINT, True, 1), (signal.SIGTERM, True, 2), (signal.SIGTERM, False, 1)],
)
def test_a_signal_to_a_run_with_workers(number: int, group: bool, devices: int, tmp_path: Path) -> None:
    """As a terminal and a scheduler send it: workers, which may be asked for a batch yet, get it too."""
    command = [sys.executable, "-m", "mmcl_lightning", "fit", "--config", "quickstart.yaml"]
    command += [
        "--data.num_workers=2",
        "--trainer.max_epochs=1000",
        "--data.train_size=128",
        "--data.test_size=32",
        "--data.image_size=16",
        "--data.batch_size=32",
        "--trainer.enable_progress_bar=false",
    ]
    command += [f"--trainer.devices={devices}", "--trainer.strategy=ddp"] * (devices > 1)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 240
        while not list(tmp_path.rglob("last*.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.1)
        (os.killpg if group else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=240)
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    (path,) = tmp_path.rglob("ledger.json")
    record = json.loads(path.read_text())
    steps = record["steps"]
    assert (record["status"], record["hardware"]["processes"]) == ("interrupted", devices)
    (last,) = tmp_path.rglob("last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == steps
