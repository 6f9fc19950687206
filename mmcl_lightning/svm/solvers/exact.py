"""The optimum of the box problem, for about twenty matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_choice, check_number
from mmcl_lightning.deferred import may_wait
from mmcl_lightning.svm.factorisation import Factorisation
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution
from mmcl_lightning.svm.solvers.active_set import free_variables, newton_step
from mmcl_lightning.svm.solvers.base import (
    Solver,
    allowed_residual,
    check_bounded,
    check_iterations,
    status_at,
)
from mmcl_lightning.svm.solvers.fixed_path import FixedPath

__all__ = ["Exact"]

_ADAPTIVE_STEPS, _FIXED_STEPS = 200, 59  # the latter are 60 products, with that for the first gradient
_SPLITTING = 0.4  # of the steps of the fixed path; chosen by the worst of our cases, as its lengths are
_NEWTON_ROUNDS = 12
_HALVINGS = 4
_CACHED = 2**22  # numbers in an array that is worked on again and again: 16 MB, which malloc keeps for reuse
_MIN_PART = 256  # problems: with fewer, a matrix product waits for the matrix


@dataclass(frozen=True)
class Exact(Solver):
    r"""Find the support by operator splitting, then finish by Newton steps on it.

    **Splitting** (ADMM in the form of Douglas and Rachford) separates the box from the quadratic:

    .. math:: z = \operatorname{clip}(s), \quad
        x = (\Delta + (\beta + \rho) I)^{-1} (2 + \rho (2 z - s)), \quad s \leftarrow s + \lambda (x - z)

    The matrix never changes, so it is factorised once for all problems, and a step is one
    ``(B, n) x (n, n)`` product. **Newton** steps then solve the small dense system of each problem's free
    variables, with a line search along the box; two or three make the point exact to rounding. Where many
    variables are free, splitting alone goes on, for as long as it is the cheaper of the two. Finished
    problems leave the batch. So the host has to know at every turn what the problems have come to, which a
    GPU makes it wait for.

    The **fixed** path takes as many steps, in as many products, whatever the problems: two in five are
    splitting steps, then come rounds of Newton steps by conjugate gradients. Nothing waits, and a compiler
    can take it whole. What it reached is in the status, which is read when it is asked for.

    Needs ``K + (reg + rho) I`` positive definite. Where a problem is not convex (an indefinite kernel, or
    one whose k(x, x) was set to 1) it needs a finite C too, and the result is a stationary point.

    Source: Shah et al., AAAI 2022, Proposition 1 (i), there "prohibitively expensive". Splitting: Boyd et
    al., "Distributed Optimization and Statistical Learning via ADMM", 2011. Newton on the free variables:
    Bertsekas, "Projected Newton Methods for Optimization Problems with Simple Constraints", 1982.

    Args:
        tol: A problem is done when its optimality residual (``problem.kkt_residual``, which is of the order
            of 1 far from the optimum) is at most ``tol``, or what rounding leaves where that is more,
            which the status tells apart.
        max_steps: Most splitting steps per problem; on the fixed path the number of steps, each one product:
            splitting, conjugate gradients, and one for each round's step lengths. ``None`` for 200, and on
            the fixed path 59: single precision then reached a residual of 1e-4 in our cases of 512 candidates
            but not in all of ``reg`` <= 1e-2, projections of four dimensions or an indefinite kernel.
        rho: Penalty, > 0; ``"auto"`` takes 1.3 sqrt(reg (reg + ||K||_F)), near the best in our
            measurements.
        relaxation: Over-relaxation lambda in [1, 2).
        check_every: Splitting steps between checks of the residual, each followed by Newton steps, on the
            adaptive path.
        path: ``"adaptive"``, ``"fixed"``, or ``"auto"``: the adaptive path on a CPU, which then is the faster
            one, and the fixed one, of at most 59 steps, elsewhere and wherever the host may not wait, such as
            in a compiled graph. For more steps there, set ``"fixed"`` and ``max_steps``.
    """

    tol: float = 1e-4
    max_steps: int | None = None
    rho: float | Literal["auto"] = "auto"
    relaxation: float = 1.7
    check_every: int = 16
    path: Literal["auto", "adaptive", "fixed"] = "auto"

    def __post_init__(self) -> None:
        check_iterations(1 if self.max_steps is None else self.max_steps, self.tol, self.check_every)
        check_choice("path", self.path, ("auto", "adaptive", "fixed"))
        if self.rho != "auto":
            check_number("rho", self.rho, "> 0", also="'auto'")
        check_number("relaxation", self.relaxation, "in [1, 2)")

    def _solve(self, problem: MaxMarginDual) -> Solution:
        check_bounded(problem)
        adapts = problem.gram.device.type == "cpu" and may_wait()
        if self.path == "fixed" or (self.path == "auto" and not adapts):
            return self._solve_fixed(problem)
        penalty = self._penalty(problem)
        penalty = penalty.item() if isinstance(penalty, Tensor) else penalty
        factorisation = problem.factorise(penalty, require_definite=True)
        rows = torch.arange(problem.B, device=problem.gram.device)
        parts = torch.split(rows, self._problems_at_a_time(problem))
        found = [self._solve_part(problem.select(part), factorisation.select(part)) for part in parts]
        alpha, residual, steps = (torch.cat(column) for column in zip(*found, strict=True))
        return Solution(
            alpha=alpha,
            status=status_at(problem, alpha, residual, self.tol),
            steps=steps,
            kkt_residual=residual,
            retries=factorisation.retries,
            extra_ridge=factorisation.extra_ridge,
        )

    def _solve_fixed(self, problem: MaxMarginDual) -> Solution:
        """Take all steps, whatever they lead to."""
        length = _FIXED_STEPS if self.max_steps is None else self.max_steps
        if self.path == "auto":  # what was a bound on the adaptive path is not to become a length
            length = min(length, _FIXED_STEPS)
        factorisation = problem.factorise(torch.as_tensor(self._penalty(problem)), require_definite=True)
        path, count = FixedPath(problem), math.ceil(_SPLITTING * length)
        start = problem.clip(factorisation.solve_constant(2.0))
        state = path.split(factorisation, start, count, self.relaxation)
        alpha, gradient, spent = path.rounds(problem.clip(state), length - count)
        residual = problem.kkt_residual(alpha, gradient)
        return Solution(
            alpha=alpha,
            status=status_at(problem, alpha, residual, self.tol),
            steps=problem.excluded.new_full((problem.B,), count + spent),
            kkt_residual=residual,
            retries=factorisation.retries,
            extra_ridge=factorisation.extra_ridge,
        )

    def _problems_at_a_time(self, problem: MaxMarginDual) -> int:
        """On a CPU, as many as keep a ``(b, n)`` array in the cache; on a GPU, all."""
        return max(_MIN_PART, _CACHED // problem.n) if problem.gram.device.type == "cpu" else problem.B

    def _solve_part(
        self, problem: MaxMarginDual, factorisation: Factorisation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return alpha ``(b, n)``, residual ``(b,)`` and splitting steps ``(b,)`` of some problems."""
        state = problem.clip(factorisation.solve_constant(2.0))
        best = _Best(problem, state, self.tol)
        steps = torch.zeros(problem.B, dtype=torch.int64, device=state.device)

        longest = _ADAPTIVE_STEPS if self.max_steps is None else self.max_steps
        left, active, step = torch.arange(problem.B, device=state.device), ~best.done, 0
        while step < longest and bool(active.any()):
            if not bool(active.all()):  # finished problems leave
                left, state = left[active], state[active]
                problem, factorisation = problem.select(active), factorisation.select(active)
            count = min(self.check_every, longest - step)
            state = self._split(problem, factorisation, state, count)
            step += count
            steps[left] = step
            few = _few(problem.n, step / self.check_every)
            for index, alpha, gradient in _polish(problem, state.clamp(0, problem.C), self.tol, few):
                best.update(left[index], problem.select(index), alpha, gradient)
            active = ~best.done[left]
        return best.alpha, best.residual, steps

    def _split(
        self, problem: MaxMarginDual, factorisation: Factorisation, state: Tensor, count: int
    ) -> Tensor:
        """Take ``count`` splitting steps from ``state`` ``(B, n)``."""
        rho = float(factorisation.ridge - problem.reg)  # larger than asked for where a ridge had to be added
        for _ in range(count):
            z = state.clamp(0, problem.C)
            rhs = torch.add(2 * z, state, alpha=-1).mul_(rho).add_(2).mul_(problem.keep)
            state = torch.add(state, factorisation.solve(rhs).sub_(z), alpha=self.relaxation)
        return state

    def _penalty(self, problem: MaxMarginDual) -> float | Tensor:
        """Return rho, near the geometric mean of the smallest and the largest eigenvalue that matter."""
        if not isinstance(self.rho, str):
            return self.rho
        norm: Tensor = torch.linalg.matrix_norm(problem.gram)
        # Without the eigenvalue 1 that the constant vector was given.
        size = (norm**2 - 1).clamp_min(0).sqrt()
        ridge = (1e-3 * size).clamp_min(max(problem.reg, 1e-6))
        penalty = 1.3 * (ridge * (ridge + size)).sqrt()
        if not problem.assume_unit_diag:
            return penalty
        least = 6 * problem.curvature_loss  # with less it stays at a corner
        if problem.positive_semidefinite:
            least = torch.where(problem.may_be_concave, least, 0.0)
        return torch.maximum(penalty, least)


def _few(n: int, rounds: float) -> float:
    """How many free variables a dense Newton step may have after ``rounds`` blocks of splitting steps.

    As many as keep its f^3 of the order of the n^2 of a splitting step, doubled with every block: where
    splitting does not finish, Newton on many variables does.
    """
    return float(max(16.0, (10.0 * n**2 * 2.0 ** (rounds - 1)) ** (1 / 3)))


class _Best:
    """The point of each problem with the smallest residual so far."""

    def __init__(self, problem: MaxMarginDual, alpha: Tensor, tol: float):
        self.alpha, self.residual = alpha.clone(), problem.kkt_residual(alpha)
        self.done = self.residual <= allowed_residual(problem, alpha, tol)  # bool (B,)
        self.tol = tol

    def update(self, index: Tensor, problem: MaxMarginDual, alpha: Tensor, gradient: Tensor) -> None:
        residual = problem.kkt_residual(alpha, gradient)
        better = residual < self.residual[index]
        index = index[better]
        self.alpha[index], self.residual[index] = alpha[better], residual[better]
        self.done[index] = (residual <= allowed_residual(problem, alpha, self.tol))[better]


def _polish(
    problem: MaxMarginDual, alpha: Tensor, tol: float, few: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Take Newton steps from ``alpha`` ``(B, n)`` until all problems are done or stop improving.

    Yields:
        Points found, as triples of problem indices ``(b,)``, alpha ``(b, n)`` and gradient ``(b, n)``.
    """
    gradient = problem.gradient(alpha)
    index = torch.arange(problem.B, device=alpha.device)
    yield index, alpha, gradient
    for _ in range(_NEWTON_ROUNDS):
        free = free_variables(problem, alpha, gradient)
        go = problem.kkt_residual(alpha, gradient) > allowed_residual(problem, alpha, tol)
        go &= free.sum(1) <= few
        if not bool(go.any()):
            break
        if not bool(go.all()):  # indexing copies: not where nothing leaves
            index, alpha, gradient, free, problem = (
                index[go],
                alpha[go],
                gradient[go],
                free[go],
                problem.select(go),
            )
        alpha, gradient, moved = _search(problem, alpha, gradient, newton_step(problem, gradient, free))
        if not bool(moved.all()):
            index, alpha, gradient, problem = (
                index[moved],
                alpha[moved],
                gradient[moved],
                problem.select(moved),
            )
        yield index, alpha, gradient


def _search(
    problem: MaxMarginDual, alpha: Tensor, gradient: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve each problem's step until its objective falls; return points, gradients and which moved."""
    found, found_gradient, moved = _try(problem, alpha, gradient, step)
    if bool(moved.all()):
        return found, found_gradient, moved
    left = (~moved).nonzero().squeeze(1)
    found[left], found_gradient[left] = alpha[left], gradient[left]
    for halving in range(1, _HALVINGS + 1):
        part = problem.select(left), alpha[left], gradient[left], 0.5**halving * step[left]
        trial, trial_gradient, good = _try(*part)
        found[left[good]], found_gradient[left[good]] = trial[good], trial_gradient[good]
        left = left[~good]
        if len(left) == 0:
            break
    moved.fill_(True)[left] = False
    return found, found_gradient, moved


def _try(
    problem: MaxMarginDual, alpha: Tensor, gradient: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a step and go back into the box; return points, gradients and where the objective fell."""
    trial = (alpha + step).clamp_(0, problem.C).mul_(problem.keep)
    trial_gradient = problem.gradient(trial)
    # What a quadratic changes by, free of the cancellation between two objectives.
    return trial, trial_gradient, ((gradient + trial_gradient) * (trial - alpha)).sum(1) <= 0
