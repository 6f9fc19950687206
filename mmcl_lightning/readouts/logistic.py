"""Logistic regression on the representation, fitted anew at every readout."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._accuracy import TopAccuracy
from mmcl_lightning._options import check_installed, check_number
from mmcl_lightning._text import counted
from mmcl_lightning.errors import DataError
from mmcl_lightning.metrics.logistic import fit_logistic
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["LogisticRegression"]


class LogisticRegression(Readout):
    """Fit a logistic regression on h of clean labelled training images and read its accuracy.

    A linear evaluation without a second run: h is standardised by the training images' mean and standard
    deviation, and the fit goes on to the optimum, so its accuracy has no learning rate and no noise of its
    own. Unlike :class:`LinearProbe` it trains on nothing but the features of one moment.

    Args:
        C: Inverse strength of the L2 penalty, > 0; see :func:`~mmcl_lightning.metrics.logistic.fit_logistic`.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        h of bank and query; of neither before training.

    Writes:
        ``logistic/top1``, a share in [0, 1], and the text ``logistic/protocol``. Nothing where the data has
        no labels, which is said once.

    Raises:
        ConfigError: If an option is out of range, or the extra ``evaluate`` is not installed.
    """

    at_start = False

    def __init__(self, C: float = 0.01, every_n_epochs: int | None = None) -> None:
        super().__init__(every_n_epochs)
        check_number("C", C, "> 0")
        check_installed("LogisticRegression", "scipy", "evaluate", "SciPy")
        self.C = C

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.top1: float | None = None  # of the last reading

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return h of bank and query."""
        return {"bank": {"h"}, "query": {"h"}}

    def start(self, reading: Reading) -> None:
        """Check that there are images to read."""
        reading.loaders("logistic regression", "bank", "query")

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return ``logistic/top1``, or nothing where there are no labels."""
        bank, query = (reading.features(images, "logistic regression") for images in ("bank", "query"))
        if bank is None or query is None:
            self.inform_once("there are no labelled images to read, so there is no logistic regression")
            return {}
        x, y = bank.labelled_rows("h", reading.module.device)
        queries, labels = query.labelled_rows("h", reading.module.device)
        for name, found in (("bank", y), ("query", labels)):
            if not len(found):
                raise DataError(f"logistic regression needs labels, and none of the {name} images has one")
        classes = reading.num_classes or int(torch.cat([y, labels]).max()) + 1
        if classes < 2:
            self.inform_once("all labels are of one class, so there is no logistic regression")
            return {}
        model = fit_logistic(x, y, classes, self.C, standardise=True)
        accuracy = TopAccuracy(classes, queries.device)
        accuracy.update(model.scores(queries), labels)
        self.protocol_texts["logistic/top1"] = (
            f"logistic regression on standardised h, L2 C={self.C:g}, L-BFGS"
            f"{'' if model.converged else f' stopped after {model.steps} steps'}, {len(x)} clean training "
            f"images, {len(queries)} queries"
        )
        self.write_once(reading, "logistic/protocol", self.protocol_texts["logistic/top1"])
        return {"logistic/top1": accuracy.compute()["top1"]}

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Say the new value."""
        if "logistic/top1" in values:
            self.top1 = values["logistic/top1"]
            rank_zero_info(f"logistic regression top-1 after {counted(epoch, 'epoch')}: {self.top1:.3f}")
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the last value, for the summary."""
        return {"top1": self.top1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the last value."""
        self.top1 = state_dict.get("top1")  # a checkpoint of an earlier version has none

    def summary(self) -> list[str]:
        """Return the last value in words."""
        if self.top1 is None:
            return []
        return [f"Logistic:     {self.top1:.3f}  ({self.protocol_texts.get('logistic/top1', '')})"]
