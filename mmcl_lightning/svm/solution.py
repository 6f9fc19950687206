"""The answer of a solver, apart from the problem and from the solver's options."""

from __future__ import annotations

import enum

import torch
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


class Solution:
    """Dual variables of a batch of problems and how they were found.

    What a solver knows on the device alone is read there, at the price of a wait, when it is asked for.

    Args:
        alpha: Dual variables, shape ``(B, n)``, in ``[0, C]``, zero wherever a candidate is no negative.
        status: How the solve ended, for the batch as a whole; or its place in the order of definition, int64
            without dimensions, on the device.
        steps: Iterations that each problem took, shape ``(B,)``, int64; zeros for a closed form.
        kkt_residual: Optimality residual of each problem, shape ``(B,)``, or ``None`` where the solver
            does not need it (ask ``problem.kkt_residual(alpha)``).
        retries: How many factorisations failed before one succeeded.
        extra_ridge: Ridge that had to be added beyond the problem's own, in the unit of the kernel.
    """

    def __init__(
        self,
        alpha: Tensor,
        status: Status | Tensor,
        steps: Tensor,
        kkt_residual: Tensor | None = None,
        retries: int | Tensor = 0,
        extra_ridge: float | Tensor = 0.0,
    ) -> None:
        self.alpha = alpha
        self.steps = steps
        self.kkt_residual = kkt_residual
        self._status, self._retries, self._extra_ridge = status, retries, extra_ridge

    @property
    def status(self) -> Status:
        """How the solve ended, for the batch as a whole."""
        if isinstance(self._status, Tensor):
            self._status = list(Status)[int(self._status)]
        return self._status

    @property
    def retries(self) -> int:
        """How many factorisations failed before one succeeded."""
        self._retries = int(self._retries)
        return self._retries

    @property
    def extra_ridge(self) -> float:
        """Ridge that had to be added beyond the problem's own."""
        self._extra_ridge = float(self._extra_ridge)
        return self._extra_ridge

    @property
    def findings(self) -> Tensor:
        """Place of the status in the order of definition, retries, extra ridge: ``(3,)``, without a wait."""
        status = self._status
        place = status if isinstance(status, Tensor) else list(Status).index(status)
        # Filled and not copied from the host, which would wait for a GPU to take the copy.
        return torch.stack(
            [
                part.to(self.alpha) if isinstance(part, Tensor) else self.alpha.new_full((), part)
                for part in (place, self._retries, self._extra_ridge)
            ]
        )
