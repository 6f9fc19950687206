"""A run that is interrupted and resumed follows the uninterrupted one to the last bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import InterruptedRunError, Recorder, StopAfter, mmcl, moco, shapes, simclr, trainer

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF
from mmcl_lightning.modules import ContrastiveModule, SimCLR
from mmcl_lightning.svm import ProjectedGradient

EPOCHS, STEPS = 4, 4  # per epoch
SCHEDULED: dict[str, Any] = {"lr_schedule": "cosine", "warmup": 0.2}


def build(kind: str, seed: int = 0) -> ContrastiveModule:
    if kind == "simclr":
        return simclr(seed, **SCHEDULED)
    if kind == "moco":
        return moco(seed, chunk_size=4, **SCHEDULED)
    if kind == "projected gradient":
        solver = ProjectedGradient(start="random", max_steps=20)
        return mmcl(seed, solver=solver, C=3.0, schedule={"C": {1: 3.0, 3: 0.5}}, **SCHEDULED)
    return mmcl(seed, schedule={"kernel.gamma": {1: 0.5, 2: 1.0, 3: 2.0}, "C": {4: 1.5}}, **SCHEDULED)


class FailAt(Callback):
    """Raises before a batch is trained on, as an error in its forward would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            raise InterruptedRunError(f"step {self.step}")


def checkpoint(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, save_last=True, save_on_exception=True)


@pytest.fixture(params=["inverse", "projected gradient", "simclr", "moco"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def whole(kind: str, tmp_path: Path) -> tuple[Recorder, ContrastiveModule]:
    """The uninterrupted run."""
    recorder, module = Recorder(), build(kind)
    trainer(tmp_path, recorder, max_epochs=EPOCHS).fit(module, shapes())
    return recorder, module


@pytest.mark.parametrize("cut", [2 * STEPS, STEPS + 1, 2 * STEPS + 3], ids=["epoch 2 ends", "5", "11"])
def test_resumed_run_equals_uninterrupted_one(
    kind: str, whole: tuple[Recorder, ContrastiveModule], cut: int, tmp_path: Path
) -> None:
    before, after, module = Recorder(), Recorder(), build(kind, seed=9)
    stop = StopAfter(cut // STEPS) if cut % STEPS == 0 else FailAt(cut)
    first = trainer(tmp_path, before, stop, checkpoint(tmp_path), max_epochs=EPOCHS)
    if isinstance(stop, FailAt):
        with pytest.raises(InterruptedRunError):
            first.fit(build(kind), shapes())
    else:
        first.fit(build(kind), shapes())
    torch.manual_seed(123)  # the global state plays no part
    second = trainer(tmp_path, after, checkpoint(tmp_path), max_epochs=EPOCHS)
    second.fit(module, shapes(), ckpt_path=str(tmp_path / "last.ckpt"))

    assert len(before.loss) == cut
    assert before.loss + after.loss == pytest.approx(whole[0].loss, abs=1e-6, rel=0)
    assert before.lr + after.lr == pytest.approx(whole[0].lr, abs=1e-12, rel=0)
    assert before.options + after.options == whole[0].options
    weights = module.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in whole[1].state_dict().items())


def test_schedules_count_epochs_from_one(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer(tmp_path, recorder, max_epochs=EPOCHS).fit(build("inverse"), shapes())
    seen = dict.fromkeys(recorder.options)
    assert list(seen) == [
        (1, 100.0, RBF(gamma=0.5)),
        (2, 100.0, RBF(gamma=1.0)),
        (3, 100.0, RBF(gamma=2.0)),
        (4, 1.5, RBF(gamma=2.0)),
    ]


def test_weights_may_go_into_a_run_with_another_optimizer(tmp_path: Path) -> None:
    """A new run that begins with the weights of a checkpoint is no resumed one."""
    run = trainer(tmp_path, checkpoint(tmp_path), max_epochs=1)
    run.fit(build("simclr"), shapes())
    other = torch.optim.SGD
    module = SimCLR.load_from_checkpoint(tmp_path / "last.ckpt", optimizer=functools.partial(other, lr=0.5))
    new = trainer(tmp_path, max_epochs=1)
    new.fit(module, shapes())
    assert type(new.optimizers[0]) is other
    with pytest.raises(ConfigError, match="checkpoint: class=Adam; configuration: class=SGD"):
        trainer(tmp_path, max_epochs=2).fit(module, shapes(), ckpt_path=tmp_path / "last.ckpt")


def test_options_of_numpy_can_be_resumed(tmp_path: Path) -> None:
    optimizer = functools.partial(torch.optim.Adam, lr=np.float64(0.01), betas=(np.float64(0.9), 0.99))
    trainer(tmp_path, checkpoint(tmp_path), max_epochs=1).fit(simclr(optimizer=optimizer), shapes())
    run = trainer(tmp_path, max_epochs=2)
    run.fit(simclr(optimizer=optimizer), shapes(), ckpt_path=tmp_path / "last.ckpt")
    assert run.global_step == 2 * STEPS


def test_a_checkpoint_without_optimizers_is_no_other_one(tmp_path: Path) -> None:
    module = build("simclr")
    judge = trainer(tmp_path, limit_val_batches=None)
    judge.validate(module, shapes())
    judge.save_checkpoint(tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["optimizers"] == []
    run = trainer(tmp_path, max_epochs=1)
    run.fit(build("simclr"), shapes(), ckpt_path=tmp_path / "a.ckpt")
    assert run.global_step == STEPS


def test_learning_rates_in_tensors_are_compared(tmp_path: Path) -> None:
    def module(lr: float) -> ContrastiveModule:
        return simclr(optimizer=functools.partial(torch.optim.Adam, lr=torch.tensor(lr), foreach=False))

    trainer(tmp_path, checkpoint(tmp_path), max_epochs=1).fit(module(0.5), shapes())
    trainer(tmp_path, max_epochs=2).fit(module(0.5), shapes(), ckpt_path=tmp_path / "last.ckpt")
    with pytest.raises(ConfigError, match=r"checkpoint: lr=0.5; configuration: lr=0.25"):
        trainer(tmp_path, max_epochs=2).fit(module(0.25), shapes(), ckpt_path=tmp_path / "last.ckpt")


def test_options_that_an_older_torch_did_not_know_are_no_difference(tmp_path: Path) -> None:
    trainer(tmp_path, checkpoint(tmp_path), max_epochs=1).fit(build("simclr"), shapes())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del saved["optimizers"][0]["groups"][0]["fused"]
    torch.save(saved, tmp_path / "old.ckpt")
    run = trainer(tmp_path, max_epochs=2)
    run.fit(build("simclr"), shapes(), ckpt_path=tmp_path / "old.ckpt")
    assert run.global_step == 2 * STEPS
