"""A linear classifier trained beside the pretraining, on what the network gives anyway."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._accuracy import TopAccuracy
from mmcl_lightning._options import check_number
from mmcl_lightning._text import counted
from mmcl_lightning.batches import class_indices, labels_of
from mmcl_lightning.deferred import DeferredChecks, checks_of
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.readouts._online_classifier import OnlineClassifier
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["LinearProbe"]


class LinearProbe(Readout):
    """Train a linear classifier on the representation while it forms, and read its accuracy.

    The classifier takes one Adam step per training batch on h of that batch, all views of it, which
    ``training_step`` hands on: no second pass over images, and no gradient to the network. Its loss is its
    own, beside the one of the pretraining. It chases a moving representation and sees augmented views, so its
    accuracy is a curve to watch; the result of a linear evaluation comes from
    :class:`~mmcl_lightning.modules.LinearEvaluation`, on frozen features.

    Args:
        lr: Learning rate of Adam, > 0, constant, on h that is standardised by running statistics.
        weight_decay: Weight decay of Adam, >= 0.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        Training batches ``(views, labels, ...)``, and h ``(views * B, F)``, one view after the other, which
        ``training_step`` returns as ``{"loss": loss, "h": h}``. Rows with a negative label are left out. With
        several processes the step is on the labelled rows of all, the same everywhere. h of the query images
        for its accuracy.

    Writes:
        ``probe/loss``, cross-entropy of each training batch, or of the last one that had a label; before
        the first of these nothing, on a GPU nan; ``probe/top1``, ``probe/top5`` and
        ``probe/best_top1``, shares in [0, 1]; the text ``probe/protocol``. Nothing where the data has no
        labels, which is said once. Weights, optimizer and curve are in the checkpoint.

    Raises:
        ConfigError: If an option is out of range.
    """

    at_start = False

    def __init__(
        self, lr: float = 3e-3, weight_decay: float = 1e-6, every_n_epochs: int | None = None
    ) -> None:
        super().__init__(every_n_epochs)
        check_number("lr", lr, "> 0")
        check_number("weight_decay", weight_decay, ">= 0")
        self.lr = lr
        self.weight_decay = weight_decay
        self._classes = 0  # 0: there are no labels, and the probe stays off
        self._own_checks = DeferredChecks()

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self._loss: Tensor | None = None  # that is logged
        self.classifier: OnlineClassifier | None = None  # made with the first batch, which tells the width
        self._restored: dict[str, Any] = {}  # the classifier of a checkpoint, until it is needed

    @property
    def best(self) -> tuple[int, float] | None:
        """Epochs trained and ``probe/top1`` of the best reading so far, the earliest of equals."""
        return max(self.curve, key=lambda point: point[1], default=None)

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return h of the query images."""
        return {"query": {"h"}}

    def start(self, reading: Reading) -> None:
        """Find out about the classes, and whether a resumed probe is the same."""
        if reading.num_classes is None and not hasattr(reading.datamodule, "num_classes"):
            raise ConfigError("the linear probe needs num_classes, or a datamodule that has num_classes")
        self._classes = reading.num_classes or 0
        if reading.loaders("the linear probe", "query") is None or self._classes < 2:
            self._classes = 0
            self.inform_once("the data has no labels of two classes, so there is no linear probe")
            return
        self._compare_options()

    def train_batch(self, trainer: Trainer, module: LightningModule, h: Any, batch: Any) -> None:
        """Take a step on the representations of this batch."""
        if not self._classes:
            return
        name = type(module).__name__
        if not isinstance(h, Tensor):
            found = "nothing" if h is None else f"a {type(h).__name__}"
            raise ConfigError(
                f"the linear probe needs representations: let training_step of {name} return "
                "{'loss': loss, 'h': h}, h a tensor with one row per view of each image; or leave the probe "
                f"out. There was {found} under 'h'"
            )
        if (labels := labels_of(batch)) is None:
            raise DataError("the linear probe needs training batches with labels, such as (images, labels)")
        targets = class_indices(labels).to(h.device)
        if h.ndim != 2 or len(h) % len(targets):
            raise ShapeError(
                f"the linear probe expected h of shape (views * {len(targets)}, F), one view after the "
                f"other, got {tuple(h.shape)} from training_step of {name}"
            )
        rows = h.detach().to(torch.float32)
        repeated = targets.repeat(len(h) // len(targets))
        checks = checks_of(module, self._own_checks)
        with checks.unless_waiting(rows):
            loss = self._ready(rows).step(rows, repeated)
        if self._loss is not None:  # of the last batch with a label
            loss = torch.where(loss.isnan(), self._loss, loss)
        self._loss = loss
        if checks.defers(rows.device) or not math.isnan(loss):
            module.log("probe/loss", loss, on_step=True, batch_size=len(repeated))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if checks is self._own_checks and every and trainer.global_step % every == 0:
            checks.look()

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return ``probe/top1`` and ``probe/top5`` of the query images, or nothing without a classifier."""
        checks_of(reading.module, self._own_checks).look()
        if self.classifier is None and not self._restored:
            return {}
        query = reading.features("query", "the linear probe")
        if query is None or query.labelled == 0:
            raise DataError("none of the images that the linear probe is to classify has a label")
        rows = query.features["h"].float()
        with torch.no_grad():
            scores = self._ready(rows).scores(rows)
        accuracy = TopAccuracy(scores.shape[1], scores.device)
        accuracy.update(scores, query.labels)
        self.protocol_texts["probe/top1"] = (
            f"online linear probe on standardised h: Adam lr={self.lr:g} wd={self.weight_decay:g}, one step "
            f"per batch of augmented views, {query.labelled} clean queries"
        )
        self.write_once(reading, "probe/protocol", self.protocol_texts["probe/top1"])
        return {f"probe/{name}": value for name, value in accuracy.compute().items()}

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Add the new value to the curve, and the best one to the values."""
        if "probe/top1" not in values:
            return values
        self.curve.append((epoch, values["probe/top1"]))
        rank_zero_info(f"linear probe top-1 after {counted(epoch, 'epoch')}: {values['probe/top1']:.3f}")
        return values | {"probe/best_top1": max(top1 for _, top1 in self.curve)}

    def summary(self) -> list[str]:
        """Return the course of the accuracy in words."""
        if self.best is None:
            return []
        (_, start), (_, end) = self.curve[0], self.curve[-1]
        text = self.protocol_texts.get("probe/top1", "online linear probe")
        return [f"Probe top-1:  {start:.3f} -> {end:.3f}, best {self.best[1]:.3f}  ({text})"]

    def state_dict(self) -> dict[str, Any]:
        """Return classifier, optimizer and curve."""
        fitted = self._restored if self.classifier is None else self.classifier.state_dict()
        return {"fitted": fitted, "curve": [list(point) for point in self.curve]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve; the classifier waits until the device is known."""
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]
        self._restored = dict(state_dict["fitted"])
        self.classifier = None

    def _ready(self, rows: Tensor) -> OnlineClassifier:
        """Return the classifier, which the first rows that it meets make."""
        if self.classifier is None:
            saved, self._restored = self._restored, {}
            classes, width = saved["linear"]["weight"].shape if saved else (self._classes, rows.shape[1])
            self.classifier = OnlineClassifier(width, classes, self.lr, self.weight_decay, rows.device)
            if saved:
                self.classifier.load_state_dict(saved)
        return self.classifier

    def _compare_options(self) -> None:
        """Raise :class:`ConfigError` where a resumed probe would not be trained as its options say."""
        if not self._restored:
            return
        group = self._restored["optimizer"]["param_groups"][0]
        if (group["lr"], group["weight_decay"]) != (self.lr, self.weight_decay):
            raise ConfigError(
                f"linear probe: checkpoint: lr={group['lr']:g}, weight_decay={group['weight_decay']:g}; "
                f"configuration: lr={self.lr:g}, weight_decay={self.weight_decay:g}: give the same"
            )
