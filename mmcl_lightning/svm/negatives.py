"""What the dual variables say about the negatives: which count, which do not, and which are false ones.

A *false negative* is a negative of the anchor's own class. Training knows no classes; labels serve to look.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.svm.problem import MaxMarginDual

__all__ = [
    "SUPPORT_TOL",
    "at_bound",
    "false_negative_shares",
    "false_negative_sums",
    "is_support",
    "ranked_negatives",
]

SUPPORT_TOL = (
    1e-6  # share of the largest alpha, or of 1, above which one makes a support vector; of C, for the bound
)

_SHARES = (
    "false_negative_base_rate",
    "false_negative_share",
    "false_negative_share_by_alpha",
    "bound_false_negative_share",
)


def is_support(alpha: Tensor) -> Tensor:
    """Whether each negative is a support vector, bool of the shape of ``alpha`` ``(..., n)``.

    What is small is said by the problem's largest alpha where that is below 1, as with a tiny C or a kernel
    of large values.
    """
    return alpha > SUPPORT_TOL * alpha.amax(-1, keepdim=True).clamp_max(1)


def at_bound(alpha: Tensor, C: float) -> Tensor:
    """Whether each alpha is at the upper bound, bool of the shape of ``alpha``; nowhere for ``C = inf``."""
    return alpha >= C * (1 - SUPPORT_TOL)


@torch.no_grad()
def false_negative_sums(problem: MaxMarginDual, alpha: Tensor, labels: Tensor) -> Tensor:
    """Count the negatives of their anchor's class, among pairs whose two labels are known.

    Sums, so that those of several batches or processes can be added before shares are taken.

    Args:
        problem: The duals; its candidates are one or more views of the labelled images, view by view.
        alpha: Their dual variables, shape ``(B, n)``.
        labels: Class of each image, shape ``(G,)`` with n a multiple of G, -1 = unlabelled.

    Returns:
        Shape ``(2, 4)`` in the dtype of ``alpha``. Row 0: pairs of one class, row 1: all labelled pairs.
        Columns: number of negatives, of support vectors, sum of alpha, number at the upper bound.

    Raises:
        ShapeError: If the candidates are not whole views of the labelled images.
    """
    if labels.ndim != 1 or len(labels) == 0 or problem.n % len(labels):
        raise ShapeError(
            f"{problem.n} candidates need labels of shape (G,) with G a divisor of it, got "
            f"{tuple(labels.shape)}"
        )
    of_candidates = labels.repeat(problem.n // len(labels))
    of_anchors = of_candidates[problem.positive][:, None]
    known = (problem.keep > 0) & (of_candidates >= 0) & (of_anchors >= 0)
    same = known & (of_candidates == of_anchors)
    weights = (torch.ones_like(alpha), is_support(alpha), alpha, at_bound(alpha, problem.C))
    sums = [(weight * pairs).sum(dtype=alpha.dtype) for pairs in (same, known) for weight in weights]
    return torch.stack(sums).view(2, 4)


def false_negative_shares(sums: Tensor) -> dict[str, float]:
    """Turn the sums of :func:`false_negative_sums` into shares in [0, 1].

    Args:
        sums: Shape ``(2, 4)``, possibly added up over batches or processes.

    Returns:
        ``false_negative_base_rate``: share of the anchor's class among all negatives;
        ``false_negative_share``: among support vectors; ``false_negative_share_by_alpha``: the same, each
        weighted by its alpha; ``bound_false_negative_share``: among those at C, where all weigh the same.
        A share of nothing is left out, so all are where no label is known.
    """
    same, known = sums.tolist()
    return {name: s / k for name, s, k in zip(_SHARES, same, known, strict=True) if k > 0}


def ranked_negatives(problem: MaxMarginDual, alpha: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Split one anchor's negatives into those that count and those that do not.

    Args:
        problem: The duals.
        alpha: Their dual variables, shape ``(B, n)``.
        b: Which anchor.

    Returns:
        Indices of candidates: support vectors, the largest alpha first; and the others. Those of the same
        alpha, as at C or at zero, are ordered by their distance from the positive in the kernel's space.
    """
    negatives = problem.keep[b].nonzero().squeeze(1)
    # Squared distance up to a constant; centring the kernel matrix has left it as it was.
    distance = problem.gram.diagonal()[negatives] - 2 * problem.gram[problem.positive[b], negatives]
    negatives = negatives[distance.argsort(stable=True)]
    weights = alpha[b, negatives]
    support = is_support(weights)
    by_alpha = torch.where(at_bound(weights, problem.C), problem.C, weights)[support]
    return negatives[support][by_alpha.argsort(descending=True, stable=True)], negatives[~support]
