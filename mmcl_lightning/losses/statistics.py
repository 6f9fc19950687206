"""Scalars that describe what the support vector machines of a batch found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmcl_lightning.losses.weights import SolvedDual
from mmcl_lightning.svm.negatives import at_bound, is_support

__all__ = ["svm_stats"]


@torch.no_grad()
def svm_stats(duals: Sequence[SolvedDual]) -> dict[str, Tensor]:
    r"""Summarise the support vector machines of a batch; every value is a scalar.

    Args:
        duals: One or more sets of equally many problems with their solutions.

    Returns:
        ``sv_fraction``: share of negatives with alpha > 0. ``bound_fraction``: share with alpha at C.
        ``free_fraction``: share strictly between. ``zero_fraction``: the rest. ``margin``: mean over anchors
        of :math:`1 / \|w\|` with :math:`\|w\|^2 = \alpha^\top \Delta \alpha`. ``kkt_residual``: largest
        optimality residual. ``duality_gap``: mean bound on the distance from the optimal objective, relative
        to its size. ``steps``: mean iterations. ``alpha_max``: the largest. ``negatives``: per anchor.
        ``retries``: failed factorisations, of all sets together. ``gamma``: inverse width of an RBF kernel
        that sets it on every batch; of others there is none.
    """
    each = [_stats(dual) for dual in duals]
    combined = {}
    for name in each[0]:
        values = torch.stack([stats[name] for stats in each])
        largest = name in ("kkt_residual", "alpha_max")
        combined[name] = values.amax() if largest else values.sum() if name == "retries" else values.mean()
    return combined


def _stats(dual: SolvedDual) -> dict[str, Tensor]:
    problem, solution = dual.problem, dual.solution
    alpha, N = solution.alpha, problem.negatives
    gradient = problem.gradient(alpha)
    support, bound = is_support(alpha), at_bound(alpha, problem.C)
    total = problem.B * N
    curvature = (alpha * (gradient + 2)).sum(1)
    squared_norm = curvature - problem.reg * alpha.square().sum(1)
    objective = (curvature / 2 - 2 * alpha.sum(1)).abs()
    gap = problem.duality_gap(alpha, gradient)
    tiny = torch.finfo(alpha.dtype).tiny
    gamma = getattr(dual.kernel, "gamma", None)
    fitted = {"gamma": gamma} if isinstance(gamma, Tensor) else {}
    return fitted | {
        "sv_fraction": support.sum() / total,
        "bound_fraction": bound.sum() / total,
        "zero_fraction": 1 - support.sum() / total,
        "free_fraction": (support & ~bound).sum() / total,
        "margin": squared_norm.clamp_min(torch.finfo(alpha.dtype).eps).rsqrt().mean(),
        "kkt_residual": problem.kkt_residual(alpha, gradient).max(),
        "duality_gap": (gap / objective.clamp_min(tiny)).mean(),
        "steps": solution.steps.float().mean(),
        "alpha_max": alpha.max(),
        "negatives": alpha.new_full((), N),
        "retries": solution.findings[1],  # still on the device
    }
