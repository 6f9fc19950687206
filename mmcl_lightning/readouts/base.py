"""What a readout is: something computed from the features of a network every few epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._options import check_whole
from mmcl_lightning.readouts.reading import Reading

__all__ = ["Readout"]


class Readout(ABC):
    """Something to compute from a network's features before training, every few epochs, and in validation.

    A readout says which features it needs, computes values from them, and has a state for the checkpoint.
    When that happens, the passes over the images, logging and resuming are the work of
    :class:`~mmcl_lightning.callbacks.Readouts`, which has them all.

    With several processes a :class:`~mmcl_lightning.features.FeaturePass` has this process's share of the
    images; every process calls :meth:`compute`, returns the same values, and raises the same errors.
    ``protocol_texts`` and :meth:`write_once` say how a number was measured, :meth:`record` keeps a curve,
    :meth:`summary` gives the last lines of a run.

    Args:
        every_n_epochs: Epochs between two readings; ``None`` for the period that all readouts share.

    Attributes:
        at_start: Whether it reads before the first step, where :class:`Readouts` does.
        in_validation: Whether it reads under ``trainer.validate``.
        protocol_texts: How its numbers were measured, in words, by the name of the number; for the ledger.
        has_read: Whether the run has a reading of it.

    Raises:
        ConfigError: If ``every_n_epochs`` is no integer >= 1.
    """

    at_start = True
    in_validation = True

    def __init__(self, every_n_epochs: int | None = None) -> None:
        if every_n_epochs is not None:
            check_whole(1, every_n_epochs=every_n_epochs)
        self.every_n_epochs = every_n_epochs
        self.reset()

    def reset(self) -> None:
        """Return to the state before any run: what a run changes in a readout is set here, and only here."""
        self.protocol_texts: dict[str, str] = {}
        self.has_read = False
        self._said: set[str] = set()

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return the features that it reads.

        Args:
            module: The module that is trained.

        Returns:
            Kinds of features, of ``"h"`` and ``"z"``, by the images they are of: ``"bank"`` for the labelled
            training images, ``"query"`` for the labelled held-out images, ``"labelled"`` for all labelled
            ones, each once, ``"sample"`` for training images of which a part is enough.
        """
        return {}

    def is_due(self, epoch: int, last: bool, period: int) -> bool:
        """Whether it reads after an epoch; the first and the last one always count.

        Args:
            epoch: Epochs trained.
            last: Whether the training ends with this one.
            period: Epochs between two readings.
        """
        return epoch % period == 0 or last or not self.has_read

    def start(self, reading: Reading) -> None:  # noqa: B027
        """Check, before training, what the run will need: what cannot work is to fail now.

        Args:
            reading: The state of the run.
        """

    @abstractmethod
    def compute(self, reading: Reading) -> dict[str, float]:
        """Return the values to log, the same on every process.

        Args:
            reading: Where the features come from.
        """

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Take note of values of the training, and return them with what is to be logged besides.

        Args:
            epoch: Epochs trained.
            values: What :meth:`compute` returned.
        """
        return values

    def train_batch(self, trainer: Trainer, module: LightningModule, h: Any, batch: Any) -> None:  # noqa: B027
        """Learn from the representations of a training batch; most readouts do nothing.

        Args:
            trainer: The trainer.
            module: The module that is trained.
            h: What ``training_step`` returned under ``"h"``, which should be ``(views * B, F)``, or None.
            batch: The batch.
        """

    def summary(self) -> list[str]:
        """Return lines on the whole run, for the end of it."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: B027
        """Take up what :meth:`state_dict` returned."""

    def kept(self, values: dict[str, float]) -> dict[str, float]:
        """Return those of the latest values in a checkpoint that the readout still has.

        Args:
            values: The values; the state has been taken up.
        """
        return values

    def inform_once(self, message: str) -> None:
        """Say something, the first time.

        Args:
            message: What to say; the first process says it.
        """
        if message not in self._said:
            self._said.add(message)
            rank_zero_info(message)

    def write_once(self, reading: Reading, tag: str, text: str) -> None:
        """Write a text to TensorBoard, the first time.

        Args:
            reading: The state of the run.
            tag: Its tag.
            text: The text.
        """
        if tag not in self._said:
            self._said.add(tag)
            for board in reading.boards:
                board.add_text(tag, text, reading.trainer.global_step)
