"""Average precision of images that may be of several classes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.errors import NumericalError, ShapeError

__all__ = ["average_precision_11point"]


def average_precision_11point(scores: Tensor, labels: Tensor) -> Tensor:
    r"""Return the average precision of each class by the 11-point rule of PASCAL VOC 2007.

    .. math:: \tfrac1{11} \sum_{t \in \{0, 0.1, \dots, 1\}} \max_{k:\, r_k \ge t} p_k

    with precision p and recall r of the images that score best, cut between two different scores, and one
    more point of recall 0 and precision 1. The published transfer code has that point from scikit-learn's
    curve; the devkit of VOC has it not, and differs where the best-scored image is none of the class.

    Args:
        scores: Shape ``(n, classes)``, the larger the surer.
        labels: Whether the image is of the class, bool, shape ``(n, classes)``.

    Returns:
        Shares in [0, 1], float64, shape ``(classes,)``; NaN for a class without images.

    Raises:
        ShapeError: If the shapes differ, or the labels are not bool.
        NumericalError: If a score is NaN, which has no rank.
    """
    if scores.ndim != 2 or scores.shape != labels.shape or labels.dtype != torch.bool:
        raise ShapeError(
            f"expected scores (n, classes) and as many bool labels, got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}, {labels.dtype}"
        )
    if scores.isnan().any():
        raise NumericalError("a score is NaN: the features are not finite, or the fit did not end well")
    columns = zip(scores.unbind(1), labels.unbind(1), strict=True)
    return torch.stack([_one_class(*column) for column in columns])


def _one_class(scores: Tensor, labels: Tensor) -> Tensor:
    order = scores.argsort(descending=True)
    ranked, hits = scores[order], labels[order].double().cumsum(0)
    if not len(hits) or hits[-1] == 0:
        return torch.tensor(torch.nan, dtype=torch.float64, device=scores.device)
    last_of_equals = torch.cat([ranked[1:] != ranked[:-1], torch.ones_like(labels[:1])])
    found = torch.arange(1, len(hits) + 1, device=scores.device)
    precision, recall = (hits / found)[last_of_equals], (hits / hits[-1])[last_of_equals]
    total = precision.new_ones(())  # at recall 0, of the point that is added
    for step in range(1, 11):
        total = total + precision[recall >= step * 0.1].max()  # 3 * 0.1 is above 0.3, as NumPy's linspace
    return total / 11
