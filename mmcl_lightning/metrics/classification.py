"""Top-k accuracy of class scores."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.errors import ShapeError

__all__ = ["topk_correct"]


@torch.no_grad()
def topk_correct(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Say which rows have their label among the ``k`` classes with the highest scores.

    Args:
        scores: Scores or logits ``(N, classes)``; NaN ranks highest, as torch orders it.
        labels: Class indices ``(N,)``; a negative one, unlabelled, is never correct.
        k: Classes that count, >= 1; more than there are means all of them.

    Returns:
        Booleans ``(N,)``; their mean over labelled rows is the accuracy.

    Raises:
        ShapeError: If the shapes do not fit together.

    Example:
        >>> topk_correct(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]), torch.tensor([2, 0])).tolist()
        [False, True]
    """
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise ShapeError(
            f"Expected scores (N, classes) and labels (N,), got {tuple(scores.shape)}, {tuple(labels.shape)}."
        )
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return (best == labels.unsqueeze(1)).any(dim=1)
