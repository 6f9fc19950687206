"""Newton steps on the variables that are free: the finish of the exact solver."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.svm.problem import MaxMarginDual

__all__ = ["free_variables", "newton_step"]


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

    Forms the free part of each problem's matrix, padded to the largest of the batch, and factorises it. So
    that memory stays of the order of the kernel matrix, problems are taken in chunks where the free
    variables are many. A problem whose part is not positive definite gets no step.

    Args:
        problem: ``B`` problems over ``n`` candidates.
        gradient: Gradient at the current point, shape ``(B, n)``.
        free: Free variables, bool ``(B, n)``.
    """
    largest = max(1, int(free.sum(1).max()))
    step = torch.zeros_like(gradient)
    chunk = max(1, problem.n**2 // largest**2)
    for start in range(0, problem.B, chunk):
        rows = torch.arange(start, min(start + chunk, problem.B), device=gradient.device)
        chosen, index = free[rows].to(gradient.dtype).topk(largest, dim=1)  # free ones first, then padding
        matrix = _free_part(problem, rows, index, chosen)
        factor, info = torch.linalg.cholesky_ex(matrix)
        rhs = -gradient[rows].gather(1, index) * chosen
        solution = torch.cholesky_solve(rhs[:, :, None], factor).squeeze(2) * chosen
        step[rows] = torch.zeros_like(step[rows]).scatter_(1, index, solution * (info == 0)[:, None])
    return step.nan_to_num_(0.0, 0.0, 0.0)


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
