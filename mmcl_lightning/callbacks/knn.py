"""Online k-NN readout: how good is the representation right now, without training anything on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning.callbacks.features import collect_features
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.metrics import KNN_PROTOCOLS, KNNProtocol, effective_k, knn_accuracy

__all__ = ["OnlineKNN"]


class OnlineKNN(Callback):
    """Classify held-out images by their nearest labelled training images, every few epochs.

    The default is the readout of the paper's small-set experiments: k = 200, weights exp(s / 0.5), cosine,
    representation h, labelled training images without augmentation as the bank, evaluation mode. Numbers
    of different protocols do not compare, so the protocol is written beside the number.

    Args:
        protocol: ``"mmcl_paper"``, ``"instdisc"`` or ``"dino"``; the next three override its parts.
        k: Neighbours; a smaller bank clamps it, which is said once.
        temperature: T of the weights exp(s / T).
        feature: ``"h"`` for the representation, ``"z"`` for the projection.
        every_n_epochs: Epochs between readouts. The first and the last epoch always have one.
        at_start: Read out before the first step too, for the curve's starting point.
        bank_loader: Batches ``(image, label)`` of the bank; ``None`` asks the datamodule's
            ``knn_dataloaders()``.
        query_loader: Batches ``(image, label)`` to classify; given together with ``bank_loader``.
        num_classes: Number of classes; ``None`` asks the datamodule, else the largest label counts.

    Reads:
        Any LightningModule whose ``forward`` maps images to ``(B, F)``; ``projection_head`` for ``"z"``.
        Rows with label -1 are left out. Modes, batch-norm statistics and random states stay as they are.

    Writes:
        ``knn/top1`` and ``knn/top5``, shares in [0, 1]; the text ``knn/protocol``. ``knn/top1`` exists from
        the start, so that ``ModelCheckpoint(monitor="knn/top1", mode="max")`` works. Nothing where the
        data has no labels, which is said once.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        protocol: Literal["mmcl_paper", "instdisc", "dino"] = "mmcl_paper",
        k: int | None = None,
        temperature: float | None = None,
        feature: Literal["h", "z"] | None = None,
        every_n_epochs: int = 1,
        at_start: bool = True,
        bank_loader: Iterable[Any] | None = None,
        query_loader: Iterable[Any] | None = None,
        num_classes: int | None = None,
    ) -> None:
        if protocol not in KNN_PROTOCOLS:
            raise ConfigError(f"protocol must be one of {', '.join(KNN_PROTOCOLS)}, got {protocol!r}")
        changes = {"k": k, "temperature": temperature, "feature": feature}
        changes = {name: value for name, value in changes.items() if value is not None}
        self.protocol: KNNProtocol = KNN_PROTOCOLS[protocol]
        if changes:
            self.protocol = dataclasses.replace(self.protocol, **changes, name="custom")  # type: ignore[arg-type]
        if every_n_epochs < 1:
            raise ConfigError(f"every_n_epochs must be >= 1, got {every_n_epochs}")
        if (bank_loader is None) != (query_loader is None):
            raise ConfigError("give bank_loader and query_loader together, or neither")
        self.every_n_epochs = every_n_epochs
        self.at_start = at_start
        self.bank_loader = bank_loader
        self.query_loader = query_loader
        self.num_classes = num_classes
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self.described = ""  # the protocol of the last readout, in words
        self._values: dict[str, float] = {}
        self._said: set[str] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out once before training, or take up the values of the checkpoint."""
        if self.at_start and not self._values:
            self._values = self._readout(trainer, pl_module)
            self._record(trainer, trainer.current_epoch)
            for logger in trainer.loggers:
                logger.log_metrics(self._values, step=trainer.global_step)
        for name, value in self._values.items():
            trainer.callback_metrics[name] = torch.tensor(value)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out where it is due."""
        epoch = trainer.current_epoch + 1
        last = trainer.should_stop or epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if epoch % self.every_n_epochs == 0 or last or not self._values:
            self._values = self._readout(trainer, pl_module)
            self._record(trainer, epoch)
            pl_module.log_dict(self._values, prog_bar=True, batch_size=1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out under ``trainer.validate``; during ``fit`` the end of the training epoch does it."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            pl_module.log_dict(self._readout(trainer, pl_module), batch_size=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far and the latest values."""
        return {"curve": [list(point) for point in self.curve], "values": dict(self._values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve and the latest values."""
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]
        self._values = dict(state_dict["values"])

    def _readout(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Return ``knn/top1`` and ``knn/top5``, or nothing where there are no labels."""
        loaders = self._loaders(trainer)
        if loaders is None:
            self._say_once("the data has no labels, so there is no k-NN readout")
            return {}
        bank, bank_labels = collect_features(trainer, pl_module, loaders[0], self.protocol.feature)
        query, query_labels = collect_features(trainer, pl_module, loaders[1], self.protocol.feature)
        k = effective_k(self.protocol.k, bank_labels)
        if k < self.protocol.k:
            self._say_once(f"k-NN: k clamped from {self.protocol.k} to {k}, the size of the labelled bank")
        classes = self.num_classes or getattr(_datamodule(trainer), "num_classes", None)
        if classes is None:
            classes = int(torch.maximum(bank_labels.max(), query_labels.max())) + 1
        protocol = dataclasses.replace(self.protocol, k=k)
        accuracy = knn_accuracy(query, query_labels, bank, bank_labels, classes, protocol)
        self.described = f"{protocol.describe()}, bank {len(bank)}, queries {len(query)}"
        self._write_protocol(trainer)
        return {f"knn/{name}": value for name, value in accuracy.items()}

    def _loaders(self, trainer: Trainer) -> tuple[Iterable[Any], Iterable[Any]] | None:
        if self.bank_loader is not None and self.query_loader is not None:
            return self.bank_loader, self.query_loader
        datamodule = _datamodule(trainer)
        if not hasattr(datamodule, "knn_dataloaders"):
            raise ConfigError(
                "OnlineKNN needs bank_loader and query_loader, or a datamodule with knn_dataloaders()"
            )
        loaders: tuple[Iterable[Any], Iterable[Any]] | None = datamodule.knn_dataloaders()
        return loaders

    def _record(self, trainer: Trainer, epoch: int) -> None:
        if "knn/top1" in self._values:
            self.curve.append((epoch, self._values["knn/top1"]))
            rank_zero_info(f"k-NN top-1 after {epoch} epochs: {self._values['knn/top1']:.3f}")

    def _write_protocol(self, trainer: Trainer) -> None:
        if "protocol" not in self._said:
            self._said.add("protocol")
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                    logger.experiment.add_text("knn/protocol", self.described, trainer.global_step)

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            rank_zero_info(message)


def _datamodule(trainer: Trainer) -> Any:
    return getattr(trainer, "datamodule", None)
