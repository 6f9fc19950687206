"""The clipped inverse: the paper's MMCL_INV."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution, Status
from mmcl_lightning.svm.solvers.base import Solver

__all__ = ["Inverse"]


@dataclass(frozen=True)
class Inverse(Solver):
    r"""Solve without the box, then clip.

    .. math:: \alpha = \operatorname{clip}(2 (\Delta + \beta I)^{-1} \mathbf 1, 0, C)

    One factorisation for the whole batch and no iteration. This is a point of its own, not an
    approximation of the box optimum: its objective can miss the optimum by more than its size.
    For an indefinite kernel (tanh) a general inverse is taken, as the published code does.

    Source: Shah et al., AAAI 2022, Proposition 1 (iii).
    """

    def _solve(self, problem: MaxMarginDual) -> Solution:
        factorisation = problem.factorise()
        alpha = factorisation.solve_constant(2.0).clamp_(0, problem.C)
        return Solution(
            alpha=alpha,
            status=Status.TRUNCATED,
            steps=torch.zeros(problem.B, dtype=torch.int64, device=alpha.device),
            retries=factorisation.retries,
            extra_ridge=factorisation.extra_ridge,
        )
