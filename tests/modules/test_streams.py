"""Training loaders without a length: what is known is right, and what is not is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import FlatNet, Recorder, simclr, trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from mmcl_lightning.callbacks import Ledger
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules import FineTune, LinearEvaluation


class Stream(IterableDataset[Any]):
    def __init__(self, views: bool = True) -> None:
        self.views = views

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(0)
        for number in range(12):
            images = [torch.rand(3, 16, 16, generator=generator) for _ in range(2)]
            yield (images if self.views else images[0]), number % 3


def fit(folder: Path, module: Any, views: bool = True, **options: Any) -> list[float]:
    recorder = Recorder()
    trainer(folder, recorder, Ledger(str(folder)), **options).fit(
        module, DataLoader(Stream(views), batch_size=4)
    )
    return recorder.lr


def net(**options: Any) -> Any:
    return simclr(backbone=FlatNet(), projection_head=nn.Linear(8, 8), **options)


@pytest.mark.parametrize("options", [{"lr_schedule": "cosine"}, {"warmup": 0.5}])
def test_a_schedule_over_epochs_of_unknown_length_is_refused(options: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"warm-up needs the number of steps, .* no length: set trainer.max_steps"
    ):
        fit(tmp_path, net(**options), max_epochs=2)
    with pytest.raises(ConfigError, match=r"needs an end: set trainer\.max_epochs or max_steps"):
        fit(tmp_path, net(**options), max_epochs=-1, max_time={"seconds": 60})


def test_an_evaluation_too(tmp_path: Path) -> None:
    module = FineTune("random", backbone=FlatNet(), num_classes=3)
    with pytest.raises(ConfigError, match="the protocol's schedule needs the number of steps"):
        fit(tmp_path, module, views=False, max_epochs=1)
    constant = LinearEvaluation("random", backbone=FlatNet(), num_classes=3)
    assert fit(tmp_path, constant, views=False, max_epochs=2) == [pytest.approx(1e-3)] * 6


@pytest.mark.parametrize(
    "length", [{"max_steps": 4, "max_epochs": -1}, {"max_epochs": 2, "limit_train_batches": 2}]
)
def test_a_schedule_over_steps_that_are_known(length: Any, tmp_path: Path) -> None:
    rates = fit(tmp_path, net(lr_schedule="cosine"), **length)
    assert rates == pytest.approx([1e-3, 8.53553e-4, 5e-4, 1.46447e-4], rel=1e-5)


def test_the_record_counts_epochs_that_are_done(tmp_path: Path) -> None:
    fit(tmp_path, net(), max_epochs=2, logger=False)
    curve = Record.read(tmp_path / "ledger.json").metrics["train/loss"].curve
    assert [point[:2] for point in curve] == [[0, 1], [0, 2], [0, 3], [1, 4], [1, 5], [1, 6]]
