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

from mmcl_lightning._accuracy import ClassAccuracy
from mmcl_lightning._lightning import callbacks_of
from mmcl_lightning._options import check_installed, check_number
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.metrics import LogisticModel, fit_logistic, logistic_path
from mmcl_lightning.modules.frozen import FrozenClassifier
from mmcl_lightning.modules.protocols import LOGISTIC_PROTOCOLS, LogisticProtocol
from mmcl_lightning.modules.resumable import ResumableModule
from mmcl_lightning.readouts import ImagesToRead, Reading

__all__ = ["LogisticEvaluation"]

_SECONDS = 5.0  # between two lines on the fits


class LogisticEvaluation(FrozenClassifier):
    """Fit a logistic regression to h of clean labelled training images: the quick judge of a pretraining.

    Each image passes the frozen network once. The fit has no learning rate and no length to choose, and goes
    to its optimum where the protocol lets it, so that on small sets it says what the features are worth where
    an SGD of a few steps says how short it was. The strength of the penalty is chosen on a part of the
    training images; the test images decide nothing.

    One epoch of one batch is enough, ``max_epochs: 1`` and ``limit_train_batches: 1``: the fit comes before
    it, and the validation after it counts the test images.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start, the floor under all.
        protocol: ``"converged"``: standardised h, 13 values of C from 1e-5 to 10, each fitted to its optimum.
            ``"transfer"``: that of Ericsson et al. (CVPR 2021), 45 values from 1e6 to 1e-5 and at most 100
            steps each; its images are to be resized to 224 pixels, bicubic, and cut from the centre.
        C: Inverse strength of the penalty, > 0, without a search; ``None`` for the protocol's search.
        backbone: As in :class:`ClassifierModule`.
        cifar_stem: As there.
        num_classes: As there.
        preprocessing: As there.

    Logs:
        ``logistic/top1``, ``logistic/top5``, ``logistic/loss`` and ``logistic/mean_per_class``, the mean of
        the accuracies within each class, of clean held-out images; the text ``logistic/protocol``.

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
    ):
        check_installed("LogisticEvaluation", "scipy", "evaluate", "SciPy")
        if C is not None:
            check_number("C", C, "> 0")
        super().__init__(checkpoint, protocol, backbone, cifar_stem, num_classes, preprocessing)
        if C is not None:
            self.protocol = dataclasses.replace(self.protocol, Cs=(float(C),))
        self.automatic_optimization = False
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
        self.remember_frozen()
        if any("logistic" in getattr(callback, "readouts", {}) for callback in callbacks_of(self)):
            raise ConfigError(
                "the readout `logistic` would write under the names of this evaluation: leave it out, "
                "--readouts.logistic null"
            )
        x, y = self._features()
        assert self.classifier is not None
        model, words = self._choose_and_fit(x, y, self.classifier.out_features)
        weight, bias = self.trainer.strategy.broadcast((model.weight, model.bias))  # the same everywhere
        with torch.no_grad():
            self.classifier.weight.copy_(weight)
            self.classifier.bias.copy_(bias)
        text = f"{self.hparams['protocol']}: {self.protocol.describe()}, {words}, {self.mode()}"
        self.protocol_texts[f"{self.tag}/top1"] = text  # the record says with it how images were made
        self.described = f"{text}, weights {self.hparams['checkpoint']}"
        if self.preprocessing is not None:
            self.described += f", images of {self.preprocessing['text']}"
        self._write_protocol()

    def _features(self) -> tuple[Tensor, Tensor]:
        """Return h ``(n, F)`` and the labels of all clean labelled training images."""
        rank_zero_info("reading the features of the training images")
        reading = Reading(self.trainer, self, ImagesToRead(), {"bank": {"h"}}, 0)
        bank = reading.features("bank", "a logistic regression")
        if bank is None or bank.labelled == 0:
            raise DataError("none of the training images has a label")
        self._labelled = True
        return bank.labelled_rows("h", self.device)

    def _choose_and_fit(self, x: Tensor, y: Tensor, classes: int) -> tuple[LogisticModel, str]:
        """Return the model, and in words how its penalty was chosen and which fits did not converge."""
        protocol, Cs = self.protocol, self.protocol.Cs
        options: dict[str, Any] = {
            name: getattr(protocol, name) for name in ("standardise", "max_iter", "gtol", "ftol")
        }
        if len(Cs) == 1:
            model = fit_logistic(x, y, classes, Cs[0], **options)
            return model, f"{len(x)} clean training images, C={Cs[0]:g}{_stopped([model], protocol)}"
        held_out, rest = validation_rows(len(x), protocol.held_out)
        rows = torch.as_tensor(rest, device=x.device), torch.as_tensor(held_out, device=x.device)
        models, accuracies, said = [], [], -math.inf
        for C, model in logistic_path(x[rows[0]], y[rows[0]], classes, Cs, **options):
            models.append(model)
            hits = model.scores(x[rows[1]]).argmax(dim=1) == y[rows[1]]
            accuracies.append(float(hits.double().mean()))
            if time.monotonic() - said > _SECONDS or len(models) == len(Cs):
                said = time.monotonic()
                rank_zero_info(
                    f"logistic regression {len(models)} of {len(Cs)}: C={C:g}, {model.steps} steps, top-1 "
                    f"{accuracies[-1]:.3f} on {len(held_out)} held-out training images"
                )
        best = accuracies.index(max(accuracies))
        self._warn_of_the_edge(best)
        models.append(fit_logistic(x, y, classes, Cs[best], start=models[-1], **options))
        rank_zero_info(f"chosen C={Cs[best]:g}, the first best, and fitted to all {len(x)} training images")
        return models[-1], (
            f"C of {len(Cs)} values from {Cs[0]:g} to {Cs[-1]:g} by the first best top-1 on {len(held_out)} "
            f"of {len(x)} clean training images, then fitted to all, chosen C={Cs[best]:g}"
            f"{_stopped(models, protocol)}"
        )

    def _warn_of_the_edge(self, best: int) -> None:
        Cs = self.protocol.Cs
        if best in (0, len(Cs) - 1):
            side = "weakest" if Cs[best] == max(Cs) else "strongest"
            rank_zero_warn(
                f"the best C of the search is its {side} penalty, {Cs[best]:g}: one beyond it may be better, "
                "see --model.C"
            )

    def on_validation_epoch_start(self) -> None:
        """Count from zero, by class too."""
        super().on_validation_epoch_start()
        assert self.classifier is not None
        self._accuracy = ClassAccuracy(self.classifier.out_features, self.device)

    on_test_epoch_start = on_validation_epoch_start

    def summary(self) -> list[str]:
        """Return the result in words."""
        if not self.curve:
            return []
        mean = float(self.trainer.callback_metrics[f"{self.tag}/mean_per_class"])
        return [
            f"logistic top-1: {self.curve[-1][2]:.4f} on clean held-out images: the result; mean over the "
            f"classes {mean:.4f}",
            f"protocol:       {self.described}",
        ]


def validation_rows(count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows on which C is chosen, and the others, each in the order of the shuffle.

    The rule of the published transfer code: ``RandomState(0)`` shuffles all rows, and the first
    ``floor(share * count)`` are held out.

    Args:
        count: Number of rows.
        share: Share that is held out.

    Raises:
        DataError: If that holds out none.
    """
    rows = np.arange(count)
    np.random.RandomState(0).shuffle(rows)
    first = math.floor(share * count)
    if not 0 < first < count:
        raise DataError(
            f"there are {count} labelled training images, too few to choose C on {share:.0%} of them: give "
            "it, --model.C 0.01"
        )
    return rows[:first], rows[first:]


def _stopped(models: list[LogisticModel], protocol: LogisticProtocol) -> str:
    """Say how many fits did not converge; nothing if all did."""
    count = sum(not model.converged for model in models)
    return f", {count} of {len(models)} fits stopped at {protocol.max_iter} steps" if count else ""
