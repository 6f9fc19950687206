"""Newton steps on the variables that are free: the finish of the exact solver."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.svm.problem import MaxMarginDual

__all__ = ["free_variables", "newton_step"]

_MIN_GROUP = 64  # problems


def free_variables(problem: MaxMarginDual, alpha: Tensor, gradient: Tensor) -> Tensor:
    """Variables that are inside the box or want to enter it, bool ``(B, n)``.

    Args:
        problem: ``B`` problems over ``n`` candidates.
        alpha: A point of the box, shape ``(B, n)``.
        gradient: Gradient there, shape ``(B, n)``.
    """
    inside = (alpha > 0) & (alpha < problem.C)
    entering = ((alpha <= 0) & (gradient < 0)) | ((alpha >= problem.C) & (gradient > 0))
    return (inside | entering) & (problem.keep > 0)


def newton_step(problem: MaxMarginDual, gradient: Tensor, free: Tensor) -> Tensor:
    """Step to the minimum over the free variables with all others fixed, shape ``(B, n)``.

    Forms the free part of each problem's matrix, padded to the largest of its group, and factorises it.
    Groups are of problems with about as many free variables, and small enough that memory stays of the order
    of the kernel matrix. A problem whose part is not positive definite gets no step.

    Args:
        problem: ``B`` problems over ``n`` candidates.
        gradient: Gradient at the current point, shape ``(B, n)``.
        free: Free variables, bool ``(B, n)``.
    """
    step, counts = torch.zeros_like(gradient), free.sum(1)
    order = counts.argsort(stable=True)
    group = min(_group_size(problem), max(1, problem.n**2 // max(1, int(counts.max())) ** 2))
    for rows in torch.split(order, group):
        largest = max(1, int(counts[rows[-1]]))
        chosen, index = free[rows].to(gradient.dtype).topk(largest, dim=1)  # free ones first, then padding
        matrix = _free_part(problem, rows, index, chosen)
        factor, info = torch.linalg.cholesky_ex(matrix)
        rhs = -gradient[rows].gather(1, index) * chosen
        solution = torch.cholesky_solve(rhs[:, :, None], factor).squeeze(2) * chosen
        step[rows] = torch.zeros_like(step[rows]).scatter_(1, index, solution * (info == 0)[:, None])
    return step.nan_to_num_(0.0, 0.0, 0.0)


def _group_size(problem: MaxMarginDual) -> int:
    """On a CPU an eighth of the problems, since padding costs; on a GPU all, since every launch does."""
    return max(_MIN_GROUP, -(-problem.B // 8)) if problem.gram.device.type == "cpu" else problem.B


def _free_part(problem: MaxMarginDual, rows: Tensor, index: Tensor, chosen: Tensor) -> Tensor:
    """Rows and columns ``index`` ``(b, f)`` of ``Delta + reg I``; identity where ``chosen`` is 0."""
    positive = problem.positive[rows]
    k = problem.gram[positive[:, None], index]
    c = problem.gram[positive, positive] + problem.diag_correction[rows]
    matrix = problem.gram[index[:, :, None], index[:, None, :]]
    matrix += c[:, None, None]
    matrix -= k[:, :, None]
    matrix -= k[:, None, :]
    matrix *= chosen[:, :, None]
    matrix *= chosen[:, None, :]
    matrix.diagonal(dim1=1, dim2=2).add_(problem.reg * chosen + (1 - chosen))
    return matrix
