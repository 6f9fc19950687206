"""What a step logs is read from the device in one wait, whoever logs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import mmcl, scalars, shapes, trainer

from mmcl_lightning import MMCL
from mmcl_lightning._step_log import StepLog, log_number
from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.readouts import LinearProbe

NAMES = ("svm/margin", "svm/sv_fraction", "svm/retries", "probe/loss", "train/loss", "train/lr")


def fit(folder: Path, *callbacks: Any, module: Any = None, **options: Any) -> dict[str, list[Any]]:
    """Train for two epochs of four steps, and return what was written."""
    readouts = Readouts(probe=LinearProbe())
    options = {"log": True, "max_epochs": 2, "log_every_n_steps": 3} | options
    run = trainer(folder, readouts, *callbacks, **options)
    run.fit(module or mmcl(), shapes())
    return {name: scalars(folder, name) for name in NAMES}


def test_a_logged_step_is_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fit(tmp_path / "cpu")
    assert {step for points in expected.values() for step, _ in points} == {2, 5}
    look, waits = DeferredChecks.look, []

    def counted(self: DeferredChecks) -> None:
        if len(self):
            waits.append(len(self))
        look(self)

    monkeypatch.setattr(DeferredChecks, "look", counted)
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))
    found = fit(tmp_path / "gpu")
    # At two logged steps, and for the rest of the steps at the end of an epoch.
    assert len(waits) == 4
    for name, points in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-3)


def test_a_checkpoint_within_a_logged_step_loses_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written after the callbacks have added theirs, and before the module writes."""
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))
    save = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=1, save_top_k=-1)
    found = fit(tmp_path, save, enable_checkpointing=True, log_every_n_steps=1)
    assert len([*(tmp_path / "saved").iterdir()]) == 8
    assert {name: len(points) for name, points in found.items()} == dict.fromkeys(NAMES, 8)


class Forgetful(MMCL):
    """A user's subclass that leaves out what its base class does after a batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


def test_a_subclass_that_keeps_its_callbacks_from_logging_is_told(tmp_path: Path) -> None:
    module = Forgetful(**{name: value for name, value in mmcl().hparams.items() if name != "_class_path"})
    told = (
        r"svm/sv_fraction, .* let on_train_batch_end of Forgetful begin with super\(\)\.on_train_batch_end\("
    )
    with pytest.raises(ConfigError, match=told):
        fit(tmp_path, module=module)


def test_a_number_of_the_host_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, Any] = {}
    module = mmcl()
    monkeypatch.setattr(module, "log", lambda name, value, **options: logged.update({name: (value, options)}))
    log_number(module, "train/lr", 0.1, batch_size=4)
    value, options = logged["train/lr"]
    assert (value.device.type, value.dtype, value.item(), options) == (
        "cpu", torch.float64, 0.1, {"batch_size": 4},
    )  # fmt: skip
    log = StepLog()
    log.add(torch.tensor([1.0, 2.0]), lambda found: dict(zip("ab", found, strict=True)))
    log.add(torch.tensor(3.0), lambda found: {})
    log.write(module)
    values = {name: float(value) for name, (value, _) in logged.items()}
    assert values == {"train/lr": 0.1, "a": 1.0, "b": 2.0}
    logged.clear()
    log.write(module)
    assert logged == {}
