"""Logistic regression on the representation, fitted anew at every readout."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._options import check_number
from mmcl_lightning.callbacks.features import FeaturePass
from mmcl_lightning.callbacks.readout import FeatureReadout, datamodule_of
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.metrics import topk_correct
from mmcl_lightning.metrics.logistic import fit_logistic

__all__ = ["LogisticReadout"]


class LogisticReadout(FeatureReadout):
    """Fit a logistic regression on h of clean labelled training images and read its accuracy.

    A linear evaluation without a second run: h is standardised by the training images' mean and standard
    deviation, and the fit goes on to the optimum, so its accuracy has no learning rate and no noise of its
    own. Unlike :class:`OnlineLinearProbe` it trains on nothing but the features of one moment.

    Args:
        C: Inverse strength of the L2 penalty, > 0; see :func:`~mmcl_lightning.metrics.logistic.fit_logistic`.
        every_n_epochs: Epochs between readouts. The first and the last epoch always have one.

    Reads:
        Bank and query of the datamodule's ``knn_dataloaders()``, in the pass that :class:`OnlineKNN` makes.

    Writes:
        ``logistic/top1``, a share in [0, 1], and the text ``logistic/protocol``. Nothing where the data has
        no labels, which is said once.

    Raises:
        ConfigError: If an option is out of range, or the extra ``evaluate`` is not installed.
    """

    def __init__(self, C: float = 0.01, every_n_epochs: int = 1) -> None:
        super().__init__(every_n_epochs, at_start=False)
        check_number("C", C, "> 0")
        if importlib.util.find_spec("scipy") is None:
            raise ConfigError('LogisticReadout needs SciPy: pip install "mmcl-lightning[evaluate]"')
        self.C = C

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.protocol_texts: dict[str, str] = {}
        self.top1: float | None = None  # of the last readout

    def kinds(self, module: LightningModule) -> set[str]:
        """Return h."""
        return {"h"}

    def record(self, trainer: Trainer, epoch: int) -> None:
        """Say the new value."""
        if "logistic/top1" in self._values:
            self.top1 = self._values["logistic/top1"]
            rank_zero_info(
                f"logistic regression top-1 after {epoch} epoch{'s' * (epoch != 1)}: {self.top1:.3f}"
            )

    def summary(self) -> list[str]:
        """Return the last value in words."""
        if self.top1 is None:
            return []
        return [f"Logistic:     {self.top1:.3f}  ({self.protocol_texts.get('logistic/top1', '')})"]

    def readout(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Return ``logistic/top1``, or nothing where there are no labels."""
        if not hasattr(datamodule_of(trainer), "knn_dataloaders"):
            raise ConfigError("LogisticReadout needs a datamodule with knn_dataloaders()")
        loaders = self._knn_loaders(trainer)
        classes: Any = getattr(datamodule_of(trainer), "num_classes", None)
        if loaders is None or classes is None or classes < 2:
            self._inform_once("the data has no labels of two classes, so there is no logistic regression")
            return {}
        # As OnlineKNN asks for its bank, so that both read one pass.
        bank = self._pass(trainer, module, loaders[0], dtype=torch.float32, device=module.device)
        x, y = _labelled(bank, module.device)
        query, labels = _labelled(self._pass(trainer, module, loaders[1]), module.device)
        std, mean = torch.std_mean(x, dim=0)
        scale = torch.where(std > 0, 1 / std, 0.0)
        model = fit_logistic((x - mean) * scale, y, classes, self.C)
        correct = topk_correct(model.scores((query - mean) * scale), labels)
        self.protocol_texts["logistic/top1"] = (
            f"logistic regression on standardised h, L2 C={self.C:g}, L-BFGS"
            f"{'' if model.converged else f' stopped after {model.steps} steps'}, {len(x)} clean training "
            f"images, {len(query)} queries"
        )
        self._write_once(trainer, "logistic/protocol", self.protocol_texts["logistic/top1"])
        return {"logistic/top1": correct.double().mean().item()}


def _labelled(features: FeaturePass, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return h and labels of the labelled rows, all on every process."""
    rows = features.evenly_spaced(features.features["h"].float(), features.size, device)
    labels = features.evenly_spaced(features.labels, features.size, device)
    known = labels >= 0
    return rows[known], labels[known]
