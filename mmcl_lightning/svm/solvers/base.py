"""What every solver of the box-constrained dual has in common."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution

__all__ = ["Solver"]


class Solver(abc.ABC):
    """A way to find the dual variables. Leaves are frozen dataclasses that hold options only."""

    @torch.no_grad()
    def __call__(
        self, problem: MaxMarginDual, *, rows: Tensor | None = None, total_rows: int | None = None
    ) -> Solution:
        """Solve all problems of a batch; no gradient is recorded.

        Args:
            problem: ``B`` problems over ``n`` candidates.
            rows: Where these problems stand among those of all processes, shape ``(B,)``, so that a random
                start does not depend on how they are spread; 0 to B - 1 by default.
            total_rows: Number of problems of all processes; B by default.

        Returns:
            The solution, with ``alpha`` of shape ``(B, n)``.
        """
        if rows is None:
            rows = torch.arange(problem.B, device=problem.gram.device)
        return self._solve(problem, rows, problem.B if total_rows is None else total_rows)

    @abc.abstractmethod
    def _solve(self, problem: MaxMarginDual, rows: Tensor, total_rows: int) -> Solution:
        """Solve without recording gradients."""


def allowed_residual(alpha: Tensor, tol: float, C: float) -> Tensor:
    """Residual at which a problem counts as solved, shape ``(B,)``: ``tol``, relative to a large alpha.

    Rounding in the gradient grows with alpha, so an absolute tolerance could not be met there; but a residual
    near 2, the gradient at zero, says nothing. A box smaller than 1 bounds the residual itself, so the
    tolerance is relative to C there, as far as rounding lets it.
    """
    allowed = (tol * alpha.amax(1).clamp_min(min(1.0, C))).clamp_max(max(10 * tol, 0.1))
    return allowed.clamp_min(min(16 * torch.finfo(alpha.dtype).eps, 0.01 * C))


def check_iterations(max_steps: int, tol: float, check_every: int = 1) -> None:
    """Raise :class:`ConfigError` unless the options of an iterative solver make sense."""
    if max_steps < 1 or check_every < 1:
        raise ConfigError(f"max_steps and check_every must be >= 1, got {max_steps} and {check_every}")
    if not tol >= 0:
        raise ConfigError(f"tol must be >= 0, got {tol}")
