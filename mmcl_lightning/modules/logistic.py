"""Judge a pretrained backbone by a logistic regression on its frozen features: nothing to tune."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from mmcl_lightning._lightning import callbacks_of
from mmcl_lightning._options import check_choice, check_installed, check_number
from mmcl_lightning.datamodules.splits import validation_rows
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.metrics import LogisticModel, logistic_path
from mmcl_lightning.modules.frozen import FrozenClassifier
from mmcl_lightning.modules.measures import MEASURES, measure
from mmcl_lightning.modules.protocols import LOGISTIC_PROTOCOLS, LogisticProtocol
from mmcl_lightning.modules.resumable import ResumableModule
from mmcl_lightning.readouts import ImagesToRead, Reading

__all__ = ["LogisticEvaluation"]

_BESIDE = {"mean_per_class": "mean over the classes", "top1": "top-1"}
_SECONDS = 5.0  # between two lines on the fits


class LogisticEvaluation(FrozenClassifier):
    """Fit a logistic regression to h of clean labelled training images, to judge a pretraining quickly.

    Each image passes the frozen network once. The fit has no learning rate and no length to choose, and goes
    to its optimum where the protocol lets it, so that on small sets it says what the features are worth where
    an SGD of a few steps says how short it was. The strength of the penalty is chosen on a part of the
    training images; the test images decide nothing.

    ``fit`` needs one epoch of one batch, ``max_epochs: 1`` and ``limit_train_batches: 1``: the logistic
    regression comes before it, and the validation after it counts the test images. ``test`` without a
    checkpoint of a fit does both at once, and leaves no checkpoint and no record.

    A data module may say which of its training images C is chosen on, ``validation_rows``, and what is
    measured, ``metric``; else a fifth of them is drawn, and the metric is ``top1``.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start, the floor under all.
        protocol: ``"converged"``: standardised h, 13 values of C from 1e-5 to 10, each fitted to its optimum.
            ``"transfer"``: that of Ericsson et al. (CVPR 2021), 45 values from 1e6 to 1e-5 and at most 100
            steps each; its images are those of
            :class:`~mmcl_lightning.datamodules.TransferDataModule`.
        C: Inverse strength of the penalty, > 0, without a search; ``None`` for the protocol's search.
        backbone: As in :class:`ClassifierModule`.
        cifar_stem: As there.
        num_classes: As there.
        preprocessing: As there.
        dtype: Precision of the loss and its gradient: ``"float64"`` as published, or ``"float32"``, which
            takes about half the time and ends a little elsewhere. The L-BFGS itself is in float64.

    Logs:
        ``logistic/top1``, ``logistic/top5``, ``logistic/loss`` and ``logistic/mean_per_class``, the mean of
        the accuracies within each class, of clean held-out images; where these are of several classes
        ``logistic/map_11point`` and ``logistic/loss``. After a search ``logistic/chosen_C``, and
        ``logistic/validation``, what it gave on the images that it was chosen on. The text
        ``logistic/protocol``.

    Raises:
        ConfigError: If an option is out of range, SciPy is not installed (the extra ``evaluate``), or the
            weights do not fit the backbone one by one.
        DataError: At the start of ``fit``, if there are no labels, or too few images to choose C on.
        NumericalError: At the end of ``fit``, if the backbone is not what it was.
    """

    tag = "logistic"
    refused: ClassVar[dict[type, str]] = dict.fromkeys(
        (WeightAveraging, StochasticWeightAveraging, LearningRateFinder),
        "works on the steps of a training, and a logistic evaluation takes none",
    )
    protocols = LOGISTIC_PROTOCOLS
    protocol: LogisticProtocol

    def __init__(
        self,
        checkpoint: str | None = None,
        protocol: Literal["converged", "transfer"] = "converged",
        C: float | None = None,
        backbone: str | nn.Module | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        num_classes: int | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
        dtype: Literal["float64", "float32"] = "float64",
    ):
        check_installed("LogisticEvaluation", "scipy", "evaluate", "SciPy")
        check_choice("dtype", dtype, ("float64", "float32"))
        if C is not None:
            check_number("C", C, "> 0")
        super().__init__(checkpoint, protocol, backbone, cifar_stem, num_classes, preprocessing)
        if C is not None:
            self.protocol = dataclasses.replace(self.protocol, Cs=(float(C),))
        self.dtype_of_fit: torch.dtype = getattr(torch, dtype)
        self.automatic_optimization = False
        self.fitted = False  # whether the classifier is that of a fit
        self.choice: dict[str, float] = {}  # C and what it gave on the images that it was chosen on
        self.train()

    def represent(self, images: Tensor) -> Tensor:
        """Return h ``(B, F)`` of images ``(B, 3, H, W)``."""
        h: Tensor = self(images)
        return h

    def trained(self) -> Iterable[nn.Parameter]:
        """Return nothing: no step is taken."""
        return ()

    def configure_optimizers(self) -> None:
        """Need none."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Do nothing: the fit is done."""

    def on_train_start(self) -> None:
        """Read the features, choose C and fit."""
        ResumableModule.on_train_start(self)
        self._validate_the_last_epoch()
        if any("logistic" in getattr(callback, "readouts", {}) for callback in callbacks_of(self)):
            raise ConfigError(
                "the readout `logistic` would write under the names of this evaluation: leave it out, "
                "--readouts.logistic null"
            )
        self._fit()

    def on_test_start(self) -> None:
        """Fit, unless a checkpoint brought what was fitted."""
        if not self.fitted:
            self._fit()

    def on_test_end(self) -> None:
        """Say how it was measured."""
        if self._frozen:
            self._check_frozen()
        if self.described:
            rank_zero_info(f"protocol: {self.described}")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the classifier that was fitted."""
        super().on_load_checkpoint(checkpoint)
        self.fitted = self.classifier is not None

    def _fit(self) -> None:
        self.remember_frozen()
        x, y = self._features()
        assert self.classifier is not None
        model, words = self._choose_and_fit(x, y, self.classifier.out_features)
        weight, bias = self.trainer.strategy.broadcast((model.weight, model.bias))  # the same everywhere
        with torch.no_grad():
            self.classifier.weight.copy_(weight)
            self.classifier.bias.copy_(bias)
        self.fitted = True
        fit = self.protocol.describe() + self.targets.in_words
        fit += ", loss in float32" if self.dtype_of_fit == torch.float32 else ""
        text = f"{self.hparams['protocol']}: {fit}, {words}, {self.mode()}"
        text += ", CIFAR stem" if self.hparams.get("cifar_stem") else ""
        self.protocol_texts[f"{self.tag}/{self.metric}"] = text  # the record says how images were made
        self._describe(f"{text}, weights {self.hparams['checkpoint']}")

    def _features(self) -> tuple[Tensor, Tensor]:
        """Return h ``(n, F)`` and the targets of all clean labelled training images."""
        rank_zero_info("reading the features of the training images")
        reading = Reading(self.trainer, self, ImagesToRead(), {"bank": {"h"}}, 0)
        bank = reading.features("bank", "a logistic regression")
        if bank is None or bank.labelled == 0:
            raise DataError("none of the training images has a label")
        x, y = bank.labelled_rows("h", self.device)
        self._labelled = True
        assert self.classifier is not None
        return x, self.targets.rows(y, self.classifier.out_features)

    def _choose_and_fit(self, x: Tensor, y: Tensor, classes: int) -> tuple[LogisticModel, str]:
        """Return the model, and in words how its penalty was chosen and which fits did not converge."""
        protocol, Cs = self.protocol, self.protocol.Cs
        options: dict[str, Any] = {
            name: getattr(protocol, name) for name in ("standardise", "max_iter", "gtol", "ftol")
        }
        options["dtype"] = self.dtype_of_fit
        if len(Cs) == 1:
            ((C, model),) = logistic_path(x, y, classes, Cs, **options)
            return model, f"{len(x)} clean training images, C={C:g}{_stopped([model], protocol)}"
        rows, held_out = self._search_rows(len(x), x.device)
        models, values, said = [], [], -math.inf
        for C, model in logistic_path(x[rows], y[rows], classes, Cs, **options):
            models.append(model)
            values.append(measure(self.metric, model.scores(x[held_out]), y[held_out]))
            if time.monotonic() - said > _SECONDS or len(models) == len(Cs):
                said = time.monotonic()
                rank_zero_info(
                    f"logistic regression {len(models)} of {len(Cs)}: C={C:g}, {model.steps} steps, "
                    f"{MEASURES[self.metric]} {values[-1]:.3f} on {len(held_out)} held-out training images"
                )
        best = values.index(max(values))
        self.choice = {"chosen_C": Cs[best], "validation": values[best]}
        self._warn_of_the_edge(best)
        ((_, model),) = logistic_path(x, y, classes, [Cs[best]], start=models[-1], **options)
        models.append(model)
        rank_zero_info(
            f"chosen C={Cs[best]:g}, the first best with {values[best]:.3f}, and fitted to all {len(x)} "
            "training images"
        )
        return model, (
            f"C of {len(Cs)} values from {Cs[0]:g} to {Cs[-1]:g} by the first best {MEASURES[self.metric]} "
            f"on {len(held_out)} of {len(x)} clean training images, then fitted to all, chosen C={Cs[best]:g}"
            f"{_stopped(models, protocol)}"
        )

    def _search_rows(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the rows that C is fitted to in the search, and those that it is chosen on."""
        held_out = getattr(getattr(self.trainer, "datamodule", None), "validation_rows", None)
        try:
            if held_out is None:
                held_out, rest = validation_rows(count, self.protocol.held_out)
            else:
                rest = np.setdiff1d(np.arange(count), held_out)
        except DataError as error:
            raise DataError(f"{error}: give C, --model.C 0.01") from error
        return torch.as_tensor(rest, device=device), torch.as_tensor(held_out, device=device)

    def _warn_of_the_edge(self, best: int) -> None:
        Cs = self.protocol.Cs
        if best in (0, len(Cs) - 1):
            side = "weakest" if Cs[best] == max(Cs) else "strongest"
            rank_zero_warn(
                f"the best C of the search is its {side} penalty, {Cs[best]:g}: one beyond it may be better, "
                "see --model.C"
            )

    def on_validation_epoch_end(self) -> None:
        """Log what was measured, and the choice that was made for it."""
        super().on_validation_epoch_end()
        self._log_measured(self.choice)

    on_test_epoch_end = on_validation_epoch_end

    def summary(self) -> list[str]:
        """Return the result in words."""
        if not self.curve:
            return []
        value, found = self.curve[-1][2], self.trainer.callback_metrics
        more = "".join(
            f"; {words} {float(found[f'{self.tag}/{name}']):.4f}"
            for name, words in _BESIDE.items()
            if name != self.metric and f"{self.tag}/{name}" in found
        )
        return [
            f"logistic {MEASURES[self.metric]}: {value:.4f} on clean held-out images: the result{more}",
            f"protocol:       {self.described}",
        ]


def _stopped(models: list[LogisticModel], protocol: LogisticProtocol) -> str:
    """Say how many fits did not converge; nothing if all did."""
    count = sum(not model.converged for model in models)
    return f", {count} of {len(models)} fits stopped at {protocol.max_iter} steps" if count else ""
