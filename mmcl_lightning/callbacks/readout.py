"""What the callbacks share that read features: when they read, and one pass over the images for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_flags, check_whole
from mmcl_lightning.callbacks.features import FeaturePass, feature_pass

__all__ = ["FeatureReadout"]


@dataclass
class _Shared:
    """What the readouts of a trainer share during one hook."""

    due: list[FeatureReadout] = field(default_factory=list)
    loaders: Any = None
    passes: dict[tuple[Any, ...], tuple[Iterable[Any], FeaturePass]] = field(default_factory=dict)


class FeatureReadout(Callback):
    """A callback that reads features before training, every few epochs, and under ``validate``.

    The first readout in the trainer's list keeps what all of them share; the last one to have its turn in a
    hook frees it. So two readouts of one loader run its images once, in whichever order they stand, and
    either can be removed.

    Args:
        every_n_epochs: Epochs between readouts. The first and the last epoch always have one.
        at_start: Read out before the first step too.

    Raises:
        ConfigError: If ``every_n_epochs`` is no integer >= 1.
    """

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        check_whole(1, every_n_epochs=every_n_epochs)
        check_flags(at_start=at_start)
        self.every_n_epochs = every_n_epochs
        self.at_start = at_start
        self._shared = _Shared()
        self.reset()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget another run; a checkpoint, which is read after this, brings back its own."""
        if stage == "fit" and not has_trained(trainer):
            self.reset()

    def reset(self) -> None:
        """Return to the state before any run: what a run changes in a readout is set here, and only here."""
        self._values: dict[str, float] = {}
        self._interrupted = False  # whether a readout broke off; the resumed run repeats it
        self._messages_given: set[str] = set()

    @abstractmethod
    def kinds(self, module: LightningModule) -> set[str]:
        """Return which features it reads, of ``"h"`` and ``"z"``."""

    @abstractmethod
    def readout(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Return the values to log."""

    def record(self, trainer: Trainer, epoch: int) -> None:
        """Take note of new ``_values`` of the training."""

    def bank_source(self, trainer: Trainer) -> Iterable[Any] | None:
        """Return the loader of :meth:`bank`, or None."""
        return None

    def bank(self, trainer: Trainer, module: LightningModule) -> FeaturePass | None:
        """Return features of training images that it reads anyway, or None."""
        return None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out once before training, or take up the values of the checkpoint."""
        if self._begin(trainer, "start"):
            self._values, self._interrupted = self.readout(trainer, pl_module), False
            self.record(trainer, trainer.current_epoch)
            for logger in trainer.loggers:
                logger.log_metrics(self._values, step=trainer.global_step)
        for name, value in self._values.items():
            trainer.callback_metrics[name] = torch.tensor(value)
        self._end(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out where it is due."""
        if self._begin(trainer, "epoch"):
            self._values, self._interrupted = self.readout(trainer, pl_module), False
            self.record(trainer, trainer.current_epoch + 1)
            _log(pl_module, self._values)
        self._end(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where the last readout broke off and no step was left, so that nothing made up for it."""
        if self._interrupted:
            rank_zero_warn(
                f"{type(self).__name__}: the readout at the end of this run broke off: "
                "`validate --ckpt_path last` gives it"
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out under ``trainer.validate``; during ``fit`` the end of the training epoch does it."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._begin(trainer, "validate")
            _log(pl_module, self.readout(trainer, pl_module))
            self._end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the latest values, and whether a later readout broke off."""
        return {"values": dict(self._values), "owed": self._interrupted}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the latest values."""
        self._values, self._interrupted = dict(state_dict["values"]), bool(state_dict.get("owed", False))

    def _pass(
        self, trainer: Trainer, module: LightningModule, loader: Iterable[Any], **options: Any
    ) -> FeaturePass:
        """Return the features of a loader, from a pass that other readouts may have made."""
        shared = self._readouts(trainer)[0]._shared
        key = (id(loader), *options.values())  # the loader is kept, so its id stays its own
        if key not in shared.passes:
            kinds = set().union(*(readout.kinds(module) for readout in [self, *self._due(trainer)]))
            shared.passes[key] = loader, feature_pass(trainer, module, loader, kinds, **options)
        return shared.passes[key][1]

    def _knn_loaders(self, trainer: Trainer) -> tuple[Iterable[Any], Iterable[Any]] | None:
        """Return bank and query of the datamodule, the same objects within one hook."""
        shared = self._readouts(trainer)[0]._shared
        datamodule = datamodule_of(trainer)
        if shared.loaders is None and hasattr(datamodule, "knn_dataloaders"):
            shared.loaders = datamodule.knn_dataloaders()
        loaders: tuple[Iterable[Any], Iterable[Any]] | None = shared.loaders
        return loaders

    def _readouts(self, trainer: Trainer) -> list[FeatureReadout]:
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return [callback for callback in callbacks if isinstance(callback, FeatureReadout)] or [self]

    def _due(self, trainer: Trainer) -> list[FeatureReadout]:
        """Return the readouts that have their turn in this hook."""
        return self._readouts(trainer)[0]._shared.due

    def _begin(self, trainer: Trainer, hook: str) -> bool:
        """Whether this readout is due; the first one says so for all, since a reading may change it."""
        readouts = self._readouts(trainer)
        if self is readouts[0]:
            due = [readout for readout in readouts if readout._is_due(trainer, hook)]
            self._shared = _Shared(due)
            for readout in due if hook == "epoch" else []:
                readout._interrupted = True
        return self in self._due(trainer)

    def _end(self, trainer: Trainer) -> None:
        readouts = self._readouts(trainer)
        if self is readouts[-1]:
            readouts[0]._shared = _Shared()

    def _is_due(self, trainer: Trainer, hook: str) -> bool:
        if hook == "start":
            return self._interrupted or (self.at_start and not self._values)
        return hook == "validate" or (
            (trainer.current_epoch + 1) % self.every_n_epochs == 0
            or is_last_epoch(trainer)
            or not self._values
        )

    def _write_once(self, trainer: Trainer, tag: str, text: str) -> None:
        """Write a text to TensorBoard, the first time."""
        if tag not in self._messages_given:
            self._messages_given.add(tag)
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                    logger.experiment.add_text(tag, text, trainer.global_step)

    def _inform_once(self, message: str) -> None:
        if message not in self._messages_given:
            self._messages_given.add(message)
            rank_zero_info(message)


def datamodule_of(trainer: Trainer) -> Any:
    """Return the datamodule of a trainer, or None."""
    return getattr(trainer, "datamodule", None)


def has_trained(trainer: Trainer) -> bool:
    """Whether a trainer goes on with a fit, rather than beginning one."""
    return trainer.fit_loop.epoch_progress.total.ready > 0


def is_last_epoch(trainer: Trainer) -> bool:
    """Whether the training ends with the current epoch."""
    epoch = trainer.current_epoch + 1
    return trainer.should_stop or epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps


def _log(module: LightningModule, values: dict[str, float], **options: Any) -> None:
    # Every process has the same values; their maximum is exact, which their mean is not.
    module.log_dict(values, batch_size=1, reduce_fx="max", sync_dist=True, **options)
