"""Support vector machine on the representation of all labelled items, by cross-validation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._options import check_flags, check_installed, check_number, check_whole
from mmcl_lightning._text import counted
from mmcl_lightning.distributed import broadcast_object, layout
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["SVCCrossValidation"]


class SVCCrossValidation(Readout):
    """Fit a support vector machine on h of nine tenths of the labelled items, judge the rest, ten times.

    The protocol of GraphCL on the TU data sets: scikit-learn's ``SVC`` with an RBF kernel, gamma ``"scale"``,
    on h as it is; folds are stratified and shuffled; within nine folds C is chosen by a further
    cross-validation. The network has seen all items, without their labels. Untrained networks of graphs come
    close to trained ones, so the value before training, which is read too, belongs beside the number.

    Args:
        folds: Number of folds, at least 2.
        C: Values to choose from, each > 0.
        inner_folds: Folds of the choice of C, at least 2.
        seed: The folds are a function of it; ``None`` takes that of the datamodule.
        scale: Standardise h by mean and standard deviation of the nine folds; not published.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        h of all labelled items: ``labelled_dataloader()`` of the datamodule.

    Writes:
        ``cv/svc_accuracy``, the mean over the folds, a share in [0, 1]; ``cv/svc_std``, their standard
        deviation; the text ``cv/protocol``. Nothing where the data has no labels, which is said once.

    Raises:
        ConfigError: If an option is out of range, or the extra ``graph`` is not installed.
    """

    def __init__(
        self,
        folds: int = 10,
        C: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
        inner_folds: int = 5,
        seed: int | None = None,
        scale: bool = False,
        every_n_epochs: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs)
        check_whole(2, folds=folds, inner_folds=inner_folds)
        check_flags(scale=scale)
        if seed is not None:
            check_whole(0, seed=seed)
        if isinstance(C, str) or not isinstance(C, Sequence) or not C:
            raise ConfigError(f"C must be a list of numbers > 0 to choose from, got {C!r}")
        for value in C:
            check_number("C", value, "> 0")
        check_installed("SVCCrossValidation", "sklearn", "graph", "scikit-learn")
        self.folds, self.C, self.inner_folds = folds, list(C), inner_folds
        self.seed, self.scale = seed, scale

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.curve: list[tuple[int, float, float]] = []  # (epochs trained, mean, standard deviation)
        self._described = ""

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return h of all labelled items."""
        return {"labelled": {"h"}}

    def is_due(self, epoch: int, last: bool, period: int) -> bool:
        """Whether it reads after an epoch; not after the first one where it did not before: it takes long."""
        return epoch % period == 0 or last

    def start(self, reading: Reading) -> None:
        """Check that there are items to read."""
        reading.loaders("SVCCrossValidation", "labelled")

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return mean and deviation of the folds' accuracies, or nothing where there are no labels."""
        found = reading.features("labelled", "SVCCrossValidation")
        if found is None:
            self.inform_once("there are no labelled items to read, so there is no cross-validation")
            return {}
        h, labels = found.labelled_rows("h", torch.device("cpu"))
        classes, counts = torch.unique(labels, return_counts=True)
        inner = int(counts.min()) - -(-int(counts.min()) // self.folds)  # of the fewest in the other folds
        if len(classes) < 2:
            raise DataError("cross-validation needs items of two classes or more, and there is one")
        if int(counts.min()) < self.folds or inner < self.inner_folds:
            raise DataError(
                f"the rarest of {len(classes)} classes has {int(counts.min())} labelled items, too few for "
                f"{self.folds} folds with {self.inner_folds} within: set readouts.cv.folds and "
                "readouts.cv.inner_folds lower"
            )
        seed = getattr(reading.datamodule, "seed", 0) if self.seed is None else self.seed
        mine = self._accuracies(h, labels, seed) if layout().rank == 0 else []
        accuracies = broadcast_object(mine)
        self._described = (
            f"SVC (RBF, gamma scale) on {'standardised ' * self.scale}h, {self.folds} folds, C of "
            f"{len(self.C)} from {min(self.C):g} to {max(self.C):g} by {self.inner_folds} folds, {len(h)} "
            "items"
        )
        self.protocol_texts["cv/svc_accuracy"] = self._described
        self.write_once(reading, "cv/protocol", self._described)
        return {
            "cv/svc_accuracy": statistics.fmean(accuracies),
            "cv/svc_std": statistics.pstdev(accuracies),
        }

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Add the new value to the curve, and say it beside that of the untrained network."""
        if "cv/svc_accuracy" in values:
            self.curve.append((epoch, values["cv/svc_accuracy"], values["cv/svc_std"]))
            rank_zero_info(f"SVC accuracy after {counted(epoch, 'epoch')}: {self._words(-1)}{self._floor()}")
        return values

    def summary(self) -> list[str]:
        """Return the last value in words, beside that of the untrained network."""
        if not self.curve:
            return []
        return [f"SVC:          {self._words(-1)}{self._floor()}  ({self._described})"]

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far, and how it was measured."""
        return {"curve": [list(point) for point in self.curve], "described": self._described}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve."""
        self._described = state_dict["described"]
        self.curve = [(int(epoch), float(mean), float(std)) for epoch, mean, std in state_dict["curve"]]

    def _words(self, place: int) -> str:
        return f"{self.curve[place][1]:.3f} +- {self.curve[place][2]:.3f} over folds"

    def _floor(self) -> str:
        """Say what the untrained network has, where that was read and there is more."""
        if len(self.curve) < 2 or self.curve[0][0] != 0:
            return ""
        return f", untrained {self.curve[0][1]:.3f}"

    def _accuracies(self, h: Tensor, labels: Tensor, seed: int) -> list[float]:
        """Return the accuracy on each fold of a machine that was fitted on the others."""
        from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        machine = make_pipeline(*([StandardScaler()] if self.scale else []), SVC())
        choice = GridSearchCV(machine, {"svc__C": self.C}, cv=self.inner_folds)
        folds = StratifiedKFold(self.folds, shuffle=True, random_state=seed % 2**32)
        scores = cross_val_score(choice, h.double().numpy(), labels.numpy(), cv=folds)
        return [float(score) for score in scores]
