"""The answer of a solver, apart from the problem and from the solver's options."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Solution", "Status"]


class Status(enum.Enum):
    """How a solve ended. The value is a sentence that closes with what to do about it."""

    CONVERGED = "every problem met the tolerance on its optimality residual"
    MAX_STEPS = "at least one problem stopped at max_steps above the tolerance: raise max_steps, tol or reg"
    ROUNDED = (
        "at least one problem is above the tolerance, and as near as rounding lets it come. Where candidates "
        "are equal and reg is small, alpha and the loss may be far off: raise reg, lower C, or use float64"
    )
    TRUNCATED = (
        "closed form clipped to the box, which is not the optimum of the box problem: "
        "use the Exact solver where the optimum itself is wanted"
    )
    STALLED = (
        "stopped by the published rule on the mean relative change, which says nothing about optimality: "
        "set stop='kkt' to stop on the optimality residual"
    )


@dataclass(frozen=True)
class Solution:
    """Dual variables of a batch of problems and how they were found.

    Args:
        alpha: Dual variables, shape ``(B, n)``, in ``[0, C]``, zero wherever a candidate is no negative.
        status: How the solve ended, for the batch as a whole.
        steps: Iterations that each problem took, shape ``(B,)``, int64; zeros for a closed form.
        kkt_residual: Optimality residual of each problem, shape ``(B,)``, or ``None`` where the solver
            does not need it (ask ``problem.kkt_residual(alpha)``).
        retries: How many factorisations failed before one succeeded.
        extra_ridge: Ridge that had to be added beyond the problem's own, in the unit of the kernel.
    """

    alpha: Tensor
    status: Status
    steps: Tensor
    kkt_residual: Tensor | None = None
    retries: int = 0
    extra_ridge: float = 0.0
