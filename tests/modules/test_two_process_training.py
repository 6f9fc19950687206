"""Two processes with half a batch each train as one process with the whole batch."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from runs import FlatNet, mmcl, shapes, trainer
from torch import nn

from mmcl_lightning.modules import MMCL


def build() -> MMCL:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    sgd = functools.partial(torch.optim.SGD, lr=0.5)
    return mmcl(backbone=FlatNet(), projection_head=head, optimizer=sgd, lr_scaling="linear")


def run(folder: Path, batch_size: int, **options: object) -> Trainer:
    runner = trainer(folder, max_steps=3, **options)
    module = build()
    runner.fit(module, shapes(batch_size=batch_size))
    runner.save_checkpoint(folder / "end.ckpt")
    return runner


def test_two_processes_equal_one(tmp_path: Path) -> None:
    run(tmp_path / "one", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(tmp_path / "two", 8, devices=2, strategy="ddp_fork")
    one, two = (torch.load(tmp_path / name / "end.ckpt", weights_only=True) for name in ("one", "two"))
    start = build().state_dict()
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, rtol=1e-5, atol=1e-5)
    assert any((value - start[name]).abs().max() > 1e-3 for name, value in one["state_dict"].items())
