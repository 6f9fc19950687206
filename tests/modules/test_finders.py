"""Lightning's finders of learning rate and batch size: what they find is used, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from runs import FlatNet, Recorder, mmcl, moco, scalars, shapes, simclr, trainer
from torch import nn

from mmcl_lightning.callbacks import Ledger, Readouts, ResumableCheckpoint
from mmcl_lightning.errors import NumericalError
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules import FineTune, LinearEvaluation
from mmcl_lightning.readouts import KNN


def module(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    if name in ("mmcl", "simclr"):
        parts = {"backbone": FlatNet(), "projection_head": nn.Linear(8, 8)}
        return {"mmcl": mmcl, "simclr": simclr}[name](**parts, **changes)
    if name == "moco":
        return moco(backbone=FlatNet(), projection_head=nn.Linear(8, 8), **changes)
    return {"linear": LinearEvaluation, "finetune": FineTune}[name]("random", backbone=FlatNet(), **changes)


def data(name: str, **changes: Any) -> Any:
    return shapes(task="classify" if name in ("linear", "finetune") else "pretrain", **changes)


@pytest.mark.parametrize("name", ["mmcl", "simclr", "moco", "linear", "finetune"])
def test_the_rate_that_was_found_is_the_rate_that_is_used(name: str, tmp_path: Path) -> None:
    # A queue of 20 random rows is soon one of keys: MoCo's loss rises by that alone, and would stop it.
    options = {"early_stop_threshold": None} if name == "moco" else {}
    finder, recorder = LearningRateFinder(num_training_steps=30, **options), Recorder()
    run = trainer(tmp_path, finder, recorder, max_epochs=8)  # a trial has no more epochs than the run
    net = module(name)
    run.fit(net, data(name))
    found = finder.optimal_lr.suggestion()
    assert found is not None
    assert net.lr == found
    assert len(finder.optimal_lr.results["lr"]) == 30  # also where a loss is negative
    assert run.global_step == 32
    assert run.optimizers[0].param_groups[0].get("initial_lr", found) == found
    assert recorder.lr[0] == pytest.approx(found)


@pytest.mark.parametrize("scaling", ["none", "linear"])
def test_the_tuner_finds_it_before_a_fit_that_then_uses_it(scaling: str, tmp_path: Path) -> None:
    net, recorder = module("simclr", lr_scaling=scaling, lr_schedule="cosine", warmup=0.5), Recorder()
    tuner = Tuner(trainer(tmp_path / "tune", max_epochs=8))
    found = tuner.lr_find(net, datamodule=shapes(), num_training=30).suggestion()
    run = trainer(tmp_path, recorder, max_epochs=2)
    run.fit(net, shapes())
    assert run.optimizers[0].param_groups[0]["initial_lr"] == net.lr == found
    assert max(recorder.lr) == pytest.approx(found)  # at the end of the warm-up, neither scaled
    assert recorder.lr[0] == pytest.approx(found / 5)


@pytest.mark.parametrize("name", ["simclr", "moco", "finetune"])
def test_a_run_after_a_trial_is_the_run_without_one(name: str, tmp_path: Path) -> None:
    def fit(folder: Path, *callbacks: Any) -> tuple[list[float], list[Any], Record]:
        recorder, readouts = Recorder(), Readouts(knn=KNN(k=5))
        parts = *callbacks, recorder, readouts, Ledger(str(folder)), ResumableCheckpoint(dirpath=folder)
        run = trainer(folder, *parts, max_epochs=2, log=True, limit_val_batches=1.0)
        run.fit(module(name), data(name))
        return recorder.loss, scalars(folder, "train/loss"), Record.read(folder / "ledger.json")

    plain = fit(tmp_path / "plain")
    tried = fit(tmp_path / "tried", LearningRateFinder(num_training_steps=8, update_attr=False))
    assert tried[:2] == plain[:2]
    assert tried[2].steps == plain[2].steps == 8
    assert {name: [point[:2] for point in metric.curve] for name, metric in tried[2].metrics.items()} == {
        name: [point[:2] for point in metric.curve] for name, metric in plain[2].metrics.items()
    }
    assert not list((tmp_path / "tried").glob(".lr_find*"))


def test_a_resumed_run_goes_on_with_the_rate_that_was_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fit(epochs: int, path: Path | None = None) -> tuple[Any, Recorder]:
        finder, recorder = LearningRateFinder(num_training_steps=16), Recorder()
        saving = ResumableCheckpoint(dirpath=tmp_path / str(epochs), filename="{epoch}", save_top_k=-1)
        run = trainer(tmp_path, finder, recorder, saving, max_epochs=epochs)
        net = module("simclr")
        run.fit(net, shapes(), ckpt_path=path, weights_only=True)
        return net, recorder

    net, whole = fit(4)
    again, rest = fit(4, tmp_path / "4" / "epoch=0.ckpt")
    assert net.lr is not None
    assert again.lr == net.lr
    assert rest.loss == whole.loss[4:]
    assert rest.lr == whole.lr[4:]
    assert "LearningRateFinder is left out" in caplog.text


def test_first_weights_are_there_when_rates_are_tried(tmp_path: Path) -> None:
    torch.save(FlatNet().state_dict(), tmp_path / "first.pt")
    recorder, plain = Recorder(), Recorder()
    options = {"init_from": str(tmp_path / "first.pt"), "lr_schedule": "constant"}
    finder = LearningRateFinder(num_training_steps=4, update_attr=False)
    trainer(tmp_path, finder, recorder).fit(module("simclr", **options), shapes())
    trainer(tmp_path, plain).fit(module("simclr", **options), shapes())
    assert recorder.loss == plain.loss


@pytest.mark.parametrize("name", ["simclr", "linear"])
def test_the_batch_that_was_found_is_the_batch_that_is_used(name: str, tmp_path: Path) -> None:
    finder, recorder = BatchSizeFinder(steps_per_trial=1, max_val=16), Recorder()
    changes = {} if name == "linear" else {"lr_scaling": "linear", "lr_schedule": "cosine", "warmup": 0.5}
    net, images = module(name, **changes), data(name)
    run = trainer(tmp_path, finder, recorder, max_epochs=2)
    run.fit(net, images)
    assert images.batch_size == finder.optimal_batch_size == 16
    assert run.global_step == 4
    expected, same = Recorder(), module(name, **changes)
    trainer(tmp_path / "plain", expected, max_epochs=2).fit(same, data(name, batch_size=16))
    assert recorder.loss == expected.loss
    assert recorder.lr == expected.lr  # scaled by the batch of 16, over four steps


def test_a_batch_stays_within_the_images_that_there_are(tmp_path: Path) -> None:
    images = shapes()
    Tuner(trainer(tmp_path)).scale_batch_size(module("mmcl"), datamodule=images, steps_per_trial=1)
    assert images.batch_size == 32


@pytest.mark.parametrize("value", [-1.0, "fast"])
def test_a_rate_is_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match="lr must be a finite number >= 0"):
        module("simclr").lr = value


def test_rates_that_break_the_network_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = module("simclr")
    whole, calls = net.loss_of_views, [0]

    def breaks(views: list[Any]) -> Any:
        calls[0] += 1
        if 3 < calls[0] <= 8:
            raise NumericalError("projections are not finite")
        return whole(views)

    monkeypatch.setattr(net, "loss_of_views", breaks)
    finder = LearningRateFinder(num_training_steps=8)
    trainer(tmp_path, finder, max_epochs=2).fit(net, shapes())
    losses = torch.tensor(finder.optimal_lr.results["loss"])
    assert losses[:3].isfinite().all()
    assert losses[3].isnan()
    assert calls[0] > 8  # and the run itself goes on
