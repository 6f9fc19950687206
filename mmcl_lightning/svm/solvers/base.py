"""What every solver of the box-constrained dual has in common."""

from __future__ import annotations

import abc

import torch

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution

__all__ = ["Solver"]


class Solver(abc.ABC):
    """A way to find the dual variables. Leaves are frozen dataclasses that hold options only."""

    @torch.no_grad()
    def __call__(
        self, problem: MaxMarginDual, *, first_row: int = 0, total_rows: int | None = None
    ) -> Solution:
        """Solve all problems of a batch; no gradient is recorded.

        Args:
            problem: ``B`` problems over ``n`` candidates.
            first_row: Where these problems stand among all problems of all processes, so that a
                random start does not depend on how the problems are spread over processes.
            total_rows: Number of problems of all processes; ``first_row + B`` by default.

        Returns:
            The solution, with ``alpha`` of shape ``(B, n)``.
        """
        total_rows = first_row + problem.B if total_rows is None else total_rows
        return self._solve(problem, first_row, total_rows)

    @abc.abstractmethod
    def _solve(self, problem: MaxMarginDual, first_row: int, total_rows: int) -> Solution:
        """Solve without recording gradients."""


def check_iterations(max_steps: int, tol: float, check_every: int = 1) -> None:
    """Raise :class:`ConfigError` unless the options of an iterative solver make sense."""
    if max_steps < 1 or check_every < 1:
        raise ConfigError(f"max_steps and check_every must be >= 1, got {max_steps} and {check_every}")
    if not tol >= 0:
        raise ConfigError(f"tol must be >= 0, got {tol}")
