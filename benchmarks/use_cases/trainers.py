"""What Lightning users do: lengths, loggers, callbacks, strategies, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, IterableDataset

from mmcl_lightning.callbacks import OnlineKNN
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.modules import SimCLR
from use_cases.cases import case, command, error_of, fit, quiet_trainer

GROUP = "Trainers"
TINY = {"train_size": 16, "test_size": 8, "image_size": 16, "batch_size": 4, "num_workers": 0}


def shapes(**options: Any) -> ShapesDataModule:
    """Return rendered shapes for tiny runs."""
    return ShapesDataModule(**(TINY | options))


def simclr(**options: Any) -> SimCLR:
    """Return a small module."""
    return SimCLR(backbone="conv4", projection_head="cifar", **options)


class Endless(IterableDataset[Any]):
    """Views without an end, or until a number of them."""

    def __init__(self, count: int = 10**9) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (([torch.rand(3, 16, 16)] * 2, 0) for _ in range(self.count))


@case(GROUP, "`max_epochs: -1`, `max_steps: 3`, warm-up and cosine", "3 steps, learning rate 0")
def _(_: Path) -> str:
    module = simclr(warmup=0.4, lr_schedule="cosine")
    trainer = fit(module, shapes(), max_epochs=-1, max_steps=3)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return f"{trainer.global_step} steps, learning rate {rate:g} at the end"


@case(GROUP, "`max_time` alone, `lr_scaling: linear`", "stops by the time")
def _(_: Path) -> str:
    trainer = fit(simclr(lr_scaling="linear"), shapes(), max_epochs=-1, max_time={"seconds": 1})
    return f"stops by the time, after {'some' if trainer.global_step else 'no'} steps"


@case(GROUP, "`max_time` alone and a cosine", "needs an end: set trainer.max_epochs or max_steps")
def _(_: Path) -> str:
    return error_of(fit, simclr(lr_schedule="cosine"), shapes(), max_epochs=-1, max_time={"seconds": 1})


@case(GROUP, "a loader without a length, `max_steps: 3`", "3 steps")
def _(_: Path) -> str:
    trainer = fit(simclr(), DataLoader(Endless(), batch_size=4), max_epochs=-1, max_steps=3)
    return f"{trainer.global_step} steps"


@case(GROUP, "a loader without a length, `max_epochs: 1` and a warm-up", "max_steps")
def _(_: Path) -> str:
    return error_of(fit, simclr(warmup=0.1), DataLoader(Endless(12), batch_size=4))


@case(GROUP, "`logger: false`, another logger", "trainer.logger None; CSVLogger has knn/top1: True")
def _(place: Path) -> str:
    bare = fit(simclr(), shapes(), callbacks=[OnlineKNN(k=3)])
    fit(simclr(), shapes(), callbacks=[OnlineKNN(k=3)], logger=CSVLogger(place, "csv"), log_every_n_steps=1)
    text = next(place.glob("csv/*/metrics.csv")).read_text()
    return f"trainer.logger {bare.logger}; CSVLogger has knn/top1: {'knn/top1' in text}"


@case(GROUP, "EMAWeightAveraging: k-NN is of what the checkpoint holds", "equal: True")
def _(place: Path) -> str:
    saver = ModelCheckpoint(place, save_last=True)
    average = EMAWeightAveraging(decay=0.5)
    data = shapes(train_size=64, test_size=32)
    trainer = fit(
        simclr(), data, max_epochs=2, enable_checkpointing=True,
        callbacks=[OnlineKNN(k=3), average, saver],
    )  # fmt: skip
    during = float(trainer.callback_metrics["knn/top1"])
    again = quiet_trainer(callbacks=[OnlineKNN(k=3)])
    again.validate(simclr(), data, ckpt_path=place / "last.ckpt", verbose=False)
    after = float(again.callback_metrics["knn/top1"])
    return f"k-NN in training {during:.3f}, of the checkpoint {after:.3f}, equal: {during == after}"


@case(GROUP, "LearningRateFinder", "learning rate found and used: True")
def _(place: Path) -> str:
    module = simclr()
    finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
    trainer = fit(module, shapes(train_size=120), callbacks=[finder], default_root_dir=place)
    found = finder.optimal_lr.suggestion()
    used = trainer.optimizers[0].param_groups[0]["lr"]
    return f"learning rate found and used: {abs(used - found) <= 1e-6 * found}"


RUN = ["fit", "--config=quickstart", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
RUN += [f"--data.{name}={value}" for name, value in TINY.items()]

for what, options, expected in (
    ("a logger that is not installed", ["--trainer.logger=CometLogger"], "comet"),
    (
        "an option that a callback does not have",
        ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patince=3"],
        "patince",
    ),
    (
        "a metric that nobody logs",
        ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/acc"],
        "val/acc",
    ),
    (
        "`sync_batchnorm` on two processes of a CPU",
        ["--trainer.sync_batchnorm=true", "--trainer.devices=2", "--trainer.strategy=ddp"],
        "set --trainer.sync_batchnorm false",
    ),
    ("a precision that there is not", ["--trainer.precision=12"], "precision"),
    ("a strategy that there is not", ["--trainer.strategy=dpp"], "dpp"),
    ("a misspelled option", ["--model.temprature=0.2"], "temprature"),
    ("a misspelled readout", ["--readouts.knnn.k=3"], "knn"),
):
    case("Mistakes on the command line", what, expected)(
        lambda _, options=options: command(*RUN, *options, keep="^error|monitor")
    )


@case("Mistakes on the command line", "no leftovers of failed runs", "no version folder")
def _(place: Path) -> str:
    command(*RUN, "--model.backbone={name: conv4, in_channels: 4}", keep="error")
    left = sorted(path.name for path in place.glob("runs/*/version_*"))
    return f"{', '.join(left) if left else 'no version folder'} after a run that failed before its first step"
