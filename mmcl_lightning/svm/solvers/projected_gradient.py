"""Projected gradient descent: the paper's MMCL_PGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_choice, check_flags, check_number, is_whole
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution, Status
from mmcl_lightning.svm.solvers.base import (
    Solver,
    allowed_residual,
    check_bounded,
    check_iterations,
    status_at,
)

__all__ = ["ProjectedGradient"]

_POWER_STEPS = 12


@dataclass(frozen=True)
class ProjectedGradient(Solver):
    r"""Step downhill, then back into the box.

    .. math:: \alpha \leftarrow \operatorname{clip}(\alpha - \eta ((\Delta + \beta I)\alpha - 2), 0, C)

    Each step is one ``(B, n) x (n, n)`` product. Needs no factorisation and no definite kernel, but an
    indefinite one needs a finite C.

    Source: Shah et al., AAAI 2022, Proposition 1 (ii); acceleration: Nesterov, 1983; restart:
    O'Donoghue and Candes, 2015. :meth:`reference` gives the options of the published code.

    Args:
        tol: A problem is done when its optimality residual (``problem.kkt_residual``, which is of the order
            of 1 far from the optimum) is at most ``tol``, or what rounding leaves where that is more.
        max_steps: Most iterations.
        step_size: A number > 0, ``"lipschitz"`` (1 over the largest eigenvalue, by power iterations) or
            ``"frobenius"`` (1 over the Frobenius norm, shorter, what the published ImageNet runs used).
        nesterov: Accelerate.
        restart: Drop the momentum of a problem when it points uphill. Only with ``nesterov``.
        start: ``"random"`` (relu of a standard normal, clipped, as published), ``"zero"``, or
            ``"inverse"`` (the clipped inverse, at the cost of a factorisation).
        stop: ``"kkt"``, or ``"relative_change"``: the published rule, which stops the whole batch once
            the mean relative change of alpha falls below ``tol``; it can stop far from the optimum.
        seed: Seed of the random start. The same start is drawn in every call, so that a resumed run
            and any number of processes give the same alpha.
        check_every: Iterations between checks under ``stop="kkt"``.
    """

    tol: float = 1e-3
    max_steps: int = 1000
    step_size: float | Literal["lipschitz", "frobenius"] = "lipschitz"
    nesterov: bool = True
    restart: bool = True
    start: Literal["random", "zero", "inverse"] = "random"
    stop: Literal["kkt", "relative_change"] = "kkt"
    seed: int = 0
    check_every: int = 10

    def __post_init__(self) -> None:
        check_iterations(self.max_steps, self.tol, self.check_every)
        if self.step_size not in ("lipschitz", "frobenius"):
            check_number("step_size", self.step_size, "in (0, 3.4e38)", also="'lipschitz' or 'frobenius'")
        if not (is_whole(self.seed) and -(2**63) <= self.seed < 2**63):
            raise ConfigError(f"seed must be an integer of 64 bits, got {self.seed!r}")
        check_flags(nesterov=self.nesterov, restart=self.restart)
        check_choice("start", self.start, ("random", "zero", "inverse"))
        check_choice("stop", self.stop, ("kkt", "relative_change"))

    @classmethod
    def reference(cls, **changes: Any) -> ProjectedGradient:
        """Return the options of the published ImageNet runs; ``changes`` override single ones.

        Nesterov steps of 1 over the Frobenius norm from a random start, at most 1000, stopped by the
        published rule at 0.01. The published CIFAR runs differ in ``step_size=1e-3``. Differs from the
        published code in that Nesterov's sequence starts at 1 instead of at a random number. The rule looks
        at the problems of one process, so with several processes it may stop each at another step.
        """
        options: dict[str, Any] = {
            "tol": 0.01,
            "max_steps": 1000,
            "step_size": "frobenius",
            "restart": False,
            "stop": "relative_change",
        }
        return cls(**(options | changes))

    def _solve(self, problem: MaxMarginDual) -> Solution:
        check_bounded(problem)
        alpha = self._start(problem)
        step_size = self._step_size(problem)
        if self.stop == "kkt":
            return self._until_optimal(problem, alpha, step_size)
        return self._until_still(problem, alpha, step_size)

    def _until_optimal(self, problem: MaxMarginDual, alpha: Tensor, step_size: Tensor) -> Solution:
        """Stop each problem at its own optimality residual; finished problems leave the batch."""
        state = _State(problem, alpha, step_size, self)
        best, residual = alpha.clone(), problem.kkt_residual(alpha)
        steps = torch.zeros(problem.B, dtype=torch.int64, device=alpha.device)
        rows, step = torch.arange(problem.B, device=alpha.device), 0
        active = residual > allowed_residual(problem, best, self.tol)
        while step < self.max_steps and bool(active.any()):
            if not bool(active.all()):
                rows = rows[active]
                state.select(active)
            for _ in range(min(self.check_every, self.max_steps - step)):
                state.advance()
                step += 1
            current = state.problem.kkt_residual(state.alpha)
            steps[rows] = step
            better = current < residual[rows]
            best[rows[better]], residual[rows[better]] = state.alpha[better], current[better]
            active = current > allowed_residual(state.problem, state.alpha, self.tol)
        return Solution(best, status_at(problem, best, residual, self.tol), steps, residual)

    def _until_still(self, problem: MaxMarginDual, alpha: Tensor, step_size: Tensor) -> Solution:
        """Stop the whole batch by the published rule."""
        state, status = _State(problem, alpha, step_size, self), Status.MAX_STEPS
        step = 0
        while step < self.max_steps:
            step += 1
            before = state.alpha
            state.advance()
            change = ((state.alpha - before) / (before + 1e-7)).abs().sum() / problem.keep.sum()
            if change < self.tol:
                status = Status.STALLED
                break
        steps = torch.full((problem.B,), step, dtype=torch.int64, device=alpha.device)
        return Solution(state.alpha, status, steps)

    def _start(self, problem: MaxMarginDual) -> Tensor:
        """Return the starting point, shape ``(B, n)``."""
        if self.start == "zero":
            return torch.zeros_like(problem.keep)
        if self.start == "inverse":
            return problem.factorise().solve_constant(2.0).clamp_(0, problem.C)
        # Drawn on the CPU for all problems of all processes, so that neither matters to the result.
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randn(problem.total_rows, problem.n, generator=generator)
        return problem.clip(draws[problem.rows.cpu()].to(problem.gram))

    def _step_size(self, problem: MaxMarginDual) -> Tensor:
        """Return the step of each problem, shape ``(B, 1)``."""
        if not isinstance(self.step_size, str):
            return problem.gram.new_full((problem.B, 1), self.step_size)
        bound = problem.frobenius_norm()
        if self.step_size == "lipschitz":
            bound = torch.minimum(bound, _largest_eigenvalue(problem))
        return 1 / bound.clamp_min(torch.finfo(bound.dtype).tiny)[:, None]


class _State:
    """Point, momentum and problem of the batch between two steps."""

    def __init__(self, problem: MaxMarginDual, alpha: Tensor, step_size: Tensor, options: ProjectedGradient):
        self.problem, self.alpha, self.step_size, self.options = problem, alpha, step_size, options
        self.ahead = alpha  # the extrapolated point at which the gradient is taken
        self.momentum = torch.ones_like(step_size)  # t of Nesterov's sequence, one per problem

    def select(self, rows: Tensor) -> None:
        self.problem = self.problem.select(rows)
        self.alpha, self.step_size, self.ahead, self.momentum = (
            part[rows] for part in (self.alpha, self.step_size, self.ahead, self.momentum)
        )

    def advance(self) -> None:
        moved = self.ahead - self.step_size * self.problem.gradient(self.ahead)
        alpha = moved.clamp_(0, self.problem.C)
        if not self.options.nesterov:
            self.alpha = self.ahead = alpha
            return
        change = alpha - self.alpha
        if self.options.restart:
            uphill = ((self.ahead - alpha) * change).sum(1, keepdim=True) > 0
            self.momentum = torch.where(uphill, 1.0, self.momentum)
        # The published code's form of Nesterov's sequence: t' = (sqrt(t^4 + 4 t^2) - t^2) / 2.
        t2 = self.momentum.square()
        following = ((t2.square() + 4 * t2).sqrt() - t2) / 2
        weight = self.momentum * (1 - self.momentum) / (t2 + following)
        self.ahead = alpha + weight * change
        self.alpha, self.momentum = alpha, following


def _largest_eigenvalue(problem: MaxMarginDual) -> Tensor:
    """Upper estimate of the largest eigenvalue of each problem, shape ``(B,)``: power iterations.

    The start mixes the constant vector, along which Delta is usually largest, with a fixed wave that is
    not orthogonal to the rest. The norm of the last residual is added, so that the estimate errs upwards.
    """
    wave = torch.cos(1.7 * torch.arange(problem.n, device=problem.gram.device, dtype=problem.gram.dtype))
    vector = (1 + wave / 2) * problem.keep
    vector = vector / vector.norm(dim=1, keepdim=True)
    for _ in range(_POWER_STEPS):
        image = problem.product(vector)
        value = (vector * image).sum(1, keepdim=True)
        distance = (image - value * vector).norm(dim=1)
        vector = image / image.norm(dim=1, keepdim=True).clamp_min(torch.finfo(image.dtype).tiny)
    estimate: Tensor = value.squeeze(1) + distance
    return estimate
