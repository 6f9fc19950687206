"""What every solver of the box-constrained dual has in common."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution, Status

__all__ = ["Solver"]


class Solver(abc.ABC):
    """A way to find the dual variables. Leaves are frozen dataclasses that hold options only."""

    def __call__(self, problem: MaxMarginDual) -> Solution:
        """Solve all problems of a batch; no gradient is recorded.

        Args:
            problem: ``B`` problems over ``n`` candidates.

        Returns:
            The solution, with ``alpha`` of shape ``(B, n)``.
        """
        with torch.no_grad(), torch.autocast(problem.gram.device.type, enabled=False):
            return self._solve(problem)

    @abc.abstractmethod
    def _solve(self, problem: MaxMarginDual) -> Solution:
        """Solve without recording gradients."""


def check_bounded(problem: MaxMarginDual) -> None:
    """Raise :class:`ConfigError` where the problems may have no minimum."""
    if math.isinf(problem.C) and not problem.convex:
        raise ConfigError(
            f"an iterative solver needs a finite C for {problem.name}, where Delta + reg I need "
            "not be positive definite: set C, or use the RBF kernel"
        )


def allowed_residual(problem: MaxMarginDual, alpha: Tensor, tol: float) -> Tensor:
    """Residual at which a solver has done what it can, shape ``(B,)``: ``tol``, or what rounding leaves.

    Rounding is no excuse for more than a hundredth: there the gradient says nothing any more.
    """
    return problem.rounding(alpha).clamp_(tol, max(tol, 0.01))


# Not within: older releases of torch do not compile the list of an enumeration.
_CONVERGED, _ROUNDED, _MAX_STEPS = map(
    list(Status).index, (Status.CONVERGED, Status.ROUNDED, Status.MAX_STEPS)
)


def status_at(problem: MaxMarginDual, alpha: Tensor, residual: Tensor, tol: float) -> Tensor:
    """Say how an iterative solver ended that found ``alpha`` ``(B, n)`` with ``residual`` ``(B,)``.

    Returns:
        The place of the status among those of :class:`Status`, int64 without dimensions, on the device.
    """
    allowed = torch.stack([residual.new_full((len(residual),), tol), allowed_residual(problem, alpha, tol)])
    met = (residual <= allowed).all(1)  # False for nan
    rest = torch.where(met[1], _ROUNDED, _MAX_STEPS)
    return torch.where(met[0], _CONVERGED, rest)


def check_iterations(max_steps: int, tol: float, check_every: int = 1) -> None:
    """Raise :class:`ConfigError` unless the options of an iterative solver make sense."""
    check_whole(1, max_steps=max_steps, check_every=check_every)
    check_number("tol", tol, ">= 0")
