"""Two processes with half a batch each train as one process with the whole batch."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from runs import FlatNet, mmcl, shapes, trainer
from torch import nn

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.distributed import gather_objects
from mmcl_lightning.modules import MMCL
from mmcl_lightning.readouts import KNN, Health


def build() -> MMCL:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    sgd = functools.partial(torch.optim.SGD, lr=0.5)
    return mmcl(backbone=FlatNet(), projection_head=head, optimizer=sgd, lr_scaling="linear")


class Agreement(Callback):
    """Fails where the processes do not have the same values: they would not save the same checkpoints."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if "/" in name}
        readouts = {name: value for name, value in values.items() if name.startswith(("knn", "health"))}
        found = gather_objects(readouts)
        assert len(readouts) == 11
        assert all(other == readouts for other in found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:  # forked processes do not bring their callbacks home
            states = {type(callback).__name__: callback.state_dict() for callback in trainer.callbacks}
            torch.save(states, Path(trainer.default_root_dir) / "readouts.pt")


def run(folder: Path, batch_size: int, **options: object) -> Trainer:
    folder.mkdir()
    readouts = Readouts(
        health=Health(images=11, view_images=12), knn=KNN(k=5, protocols=[{"k": 9, "feature": "z"}])
    )
    runner = trainer(folder, readouts, Agreement(), max_steps=3, max_epochs=2, **options)
    module = build()
    runner.fit(module, shapes(batch_size=batch_size))
    runner.save_checkpoint(folder / "end.ckpt")
    return runner


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Weights and readouts; before training, where the weights are the same, the k-NN is exactly the same."""
    run(tmp_path / "one", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(tmp_path / "two", 8, devices=2, strategy="ddp_fork")
    one, two = (torch.load(tmp_path / name / "end.ckpt", weights_only=True) for name in ("one", "two"))
    start = build().state_dict()
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, rtol=1e-5, atol=1e-5)
    assert any((value - start[name]).abs().max() > 1e-3 for name, value in one["state_dict"].items())
    states = [torch.load(tmp_path / name / "readouts.pt") for name in ("one", "two")]
    curves = [state["Readouts"]["readouts"]["knn"]["curve"] for state in states]
    assert curves[0][0] == curves[1][0]
    assert [epoch for epoch, _ in curves[1]] == [0, 1, 2]
    one, two = (state["Readouts"]["values"] for state in states)
    assert two["knn"] == pytest.approx(one["knn"], abs=0.051)  # weights differ by rounding
    assert two["health"] == pytest.approx(one["health"], rel=1e-2, abs=1e-4)
