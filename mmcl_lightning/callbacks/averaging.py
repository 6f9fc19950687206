"""Weights that callbacks of Lightning average, of which checkpoints hold the average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging

__all__ = ["average_anew", "average_first", "averages_of", "checkpoint_weights", "end_averaged_validation"]


def averages_of(trainer: Any) -> list[Any]:
    """Return the callbacks that average weights.

    Args:
        trainer: The trainer.
    """
    kinds = (WeightAveraging, StochasticWeightAveraging)
    return [callback for callback in trainer.callbacks if isinstance(callback, kinds)]


def average_first(trainer: Any, callback: Callback) -> None:
    """Let the callbacks that average have their turn before another one, as they have before checkpoints.

    Args:
        trainer: The trainer, whose list of callbacks may change.
        callback: The other one.
    """
    place = trainer.callbacks.index(callback)
    late = [part for part in averages_of(trainer) if trainer.callbacks.index(part) > place]
    rest = [part for part in trainer.callbacks if part not in late]
    trainer.callbacks = [
        *rest[:place],
        *late,
        *rest[place:],
    ]  # a new list: Lightning iterates over the old one


def average_anew(trainer: Any, module: LightningModule) -> None:
    """Let averages begin with the weights of now: they were set up before the module was whole.

    Args:
        trainer: The trainer.
        module: The module, which has got a new part or other weights in place of its first ones.
    """
    for callback in averages_of(trainer):
        callback.setup(trainer, module, "fit")


@contextmanager
def checkpoint_weights(trainer: Trainer, module: LightningModule) -> Iterator[list[float]]:
    """Let a module have the weights that a checkpoint written now would hold; give their sums.

    WeightAveraging has them changed places for a validation, and stores the average in every checkpoint;
    StochasticWeightAveraging puts the average into the module itself, at the end.

    Args:
        trainer: The trainer; no validation is at work.
        module: The module that is trained.
    """
    for callback in (averages := averages_of(trainer)):
        callback.on_validation_epoch_start(trainer, module)
    try:
        yield [float(weight.detach().sum()) for weight in module.parameters()]
    finally:
        for callback in averages:
            callback.on_validation_epoch_end(trainer, module)


def end_averaged_validation(trainer: Trainer, module: LightningModule) -> None:
    """Give a module its own weights back where a validation was broken off.

    Args:
        trainer: The trainer.
        module: The module that is trained.
    """
    for callback in averages_of(trainer):
        callback.on_validation_epoch_end(trainer, module)
