"""The accuracy of a classifier, by torchmetrics."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassStatScores

__all__ = ["ClassAccuracy", "TopAccuracy"]


class TopAccuracy:
    """Top-1 and top-5 accuracy over the labelled rows of all processes, each row counted once.

    Args:
        classes: Number of classes; of fewer than five, all count for the top-5 accuracy.
        device: Where the scores are.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self._metrics = {
            f"top{k}": MulticlassAccuracy(
                classes, top_k=min(k, classes), average="micro", ignore_index=-1, validate_args=False
            ).to(device)
            for k in (1, 5)
        }

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count the rows of a batch.

        Args:
            scores: Scores ``(N, classes)``.
            labels: Class indices ``(N,)``; rows with a negative one do not count.
        """
        if len(labels):
            for metric in self._metrics.values():
                metric.update(scores, labels.clamp_min(-1))

    def compute(self) -> dict[str, float]:
        """Return ``top1`` and ``top5``, the same on every process; every process has to call it."""
        return {name: float(metric.compute()) for name, metric in self._metrics.items()}


class ClassAccuracy(TopAccuracy):
    """The same, and the mean over the classes of the top-1 accuracy within each.

    A class without labelled rows does not count; torchmetrics' macro average takes one that was predicted for
    one of accuracy 0.

    Args:
        classes: Number of classes.
        device: Where the scores are.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        super().__init__(classes, device)
        self._counts = MulticlassStatScores(classes, average=None, ignore_index=-1, validate_args=False).to(
            device
        )

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count the rows of a batch; see :meth:`TopAccuracy.update`."""
        super().update(scores, labels)
        if len(labels):
            self._counts.update(scores, labels.clamp_min(-1))

    def compute(self) -> dict[str, float]:
        """Return ``top1``, ``top5`` and ``mean_per_class``; every process has to call it."""
        hits, *_, rows = self._counts.compute().double().unbind(dim=1)
        mean = (hits / rows)[rows > 0].mean()
        return {**super().compute(), "mean_per_class": float(mean)}
