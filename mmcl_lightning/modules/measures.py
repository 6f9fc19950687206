"""What is measured of scores: accuracy, its mean over the classes, or the mean average precision."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from mmcl_lightning.batches import split_labels
from mmcl_lightning.metrics import average_precision_11point

__all__ = ["MEASURES", "SetPrecision", "measure"]

#: What data modules may ask for as their ``metric``, in words.
MEASURES = {"top1": "top-1", "mean_per_class": "mean per-class accuracy", "map_11point": "11-point mAP"}


def measure(name: str, scores: Tensor, targets: Tensor) -> float:
    """Return one of :data:`MEASURES`, of rows that are all on this process.

    Args:
        name: Which.
        scores: Shape ``(n, classes)``.
        targets: Class indices ``(n,)``; for ``"map_11point"`` bool ``(n, classes)``.
    """
    if name == "map_11point":
        return float(average_precision_11point(scores, targets).nanmean())
    hits = (scores.argmax(dim=1) == targets).double()
    if name == "top1":
        return float(hits.mean())
    rows = targets.bincount(minlength=scores.shape[1])
    return float((targets.bincount(hits, minlength=scores.shape[1]) / rows)[rows > 0].mean())


class _Rows(Metric):
    """Rows of all batches and processes."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, rows: Tensor) -> None:
        self.rows.append(rows)  # type: ignore[operator, union-attr]

    def compute(self) -> Tensor:
        return dim_zero_cat(self.rows)  # type: ignore[arg-type]


class SetPrecision:
    """The mean average precision of images of several classes, over all processes, each image counted once.

    Args:
        classes: Number of classes.
        device: Where the scores are.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self.classes = classes
        self._rows = _Rows().to(device)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Take the rows of a batch.

        Args:
            scores: Scores ``(N, classes)``.
            labels: Joined labels ``(N,)``, see :func:`~mmcl_lightning.batches.join_labels`; rows with a
                negative one do not count.
        """
        known = labels >= 0
        self._rows.update(torch.cat([scores, split_labels(labels, self.classes)], dim=1)[known])

    def compute(self) -> dict[str, float]:
        """Return ``map_11point``, the same on every process; every process has to call it."""
        rows = self._rows.compute()
        scores, labels = rows[:, : self.classes], rows[:, self.classes :] == 1
        return {"map_11point": float(average_precision_11point(scores, labels).nanmean())}
