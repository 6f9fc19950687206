"""The optimum of the box problem, for about twenty matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.problem import MaxMarginDual
from mmcl_lightning.svm.solution import Solution, Status
from mmcl_lightning.svm.solvers.base import Solver, check_iterations

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact(Solver):
    r"""Alternating direction method of multipliers (ADMM) on the shared factorisation.

    Splits the box from the quadratic: x solves :math:`(\Delta + (\beta + \rho) I) x = 2 + \rho (z - u)`,
    z is the nearest point of the box, u adds up their difference. The matrix never changes, so it is
    factorised once and each step is one ``(B, n) x (n, n)`` product. Finished problems leave the batch.

    Needs ``K + (reg + rho) I`` positive definite; for an indefinite kernel also a finite C.

    Source: Shah et al., AAAI 2022, Proposition 1 (i), there "prohibitively expensive"; the method is
    that of Boyd et al., "Distributed Optimization and Statistical Learning via ADMM", 2011.

    Args:
        tol: Optimality residual (``kkt_residual``) below which a problem is done, in the unit of alpha.
        max_steps: Most iterations per problem.
        rho: Penalty, > 0; ``"auto"`` takes 1.3 sqrt(reg ||K||_F), near the best in our measurements.
        relaxation: Over-relaxation in [1, 2).
        check_every: Iterations between checks of the residual; a check costs one product.
    """

    tol: float = 1e-3
    max_steps: int = 200
    rho: float | Literal["auto"] = "auto"
    relaxation: float = 1.7
    check_every: int = 5

    def __post_init__(self) -> None:
        check_iterations(self.max_steps, self.tol, self.check_every)
        if isinstance(self.rho, str):
            if self.rho != "auto":
                raise ConfigError(f"rho must be a number > 0 or 'auto', got {self.rho!r}")
        elif not 0 < self.rho < math.inf:
            raise ConfigError(f"rho must be a number > 0 or 'auto', got {self.rho}")
        if not 1 <= self.relaxation < 2:
            raise ConfigError(f"relaxation must be in [1, 2), got {self.relaxation}")

    def _solve(self, problem: MaxMarginDual, rows: Tensor, total_rows: int) -> Solution:
        if not problem.positive_semidefinite and math.isinf(problem.C):
            raise ConfigError(
                f"Exact needs a finite C for {problem.kernel_name}, which is not positive semi-definite: "
                "set C, or use the RBF kernel"
            )
        rho = self._penalty(problem)
        factorisation = problem.factorise(rho, require_definite=True)
        rho = (
            factorisation.ridge - problem.reg
        )  # larger where a ridge had to be added: still the same optimum
        z = problem.clip(factorisation.solve_constant(2.0))
        u = torch.zeros_like(z)

        alpha, residual = z.clone(), problem.kkt_residual(z)
        steps = torch.zeros(problem.B, dtype=torch.int64, device=z.device)
        rows = torch.arange(problem.B, device=z.device)
        active = residual > self.tol
        step = 0
        while step < self.max_steps and bool(active.any()):
            if not bool(active.all()):  # finished problems leave
                rows, z, u = rows[active], z[active], u[active]
                problem, factorisation = problem.select(active), factorisation.select(active)
            for _ in range(min(self.check_every, self.max_steps - step)):
                rhs = torch.add(2 * problem.keep, z - u, alpha=rho).mul_(problem.keep)
                x = torch.lerp(z, factorisation.solve(rhs), self.relaxation)
                z = (x + u).clamp_(0, problem.C)
                u += x - z
                step += 1
            current = problem.kkt_residual(z)
            steps[rows] = step
            better = current < residual[rows]
            alpha[rows[better]], residual[rows[better]] = z[better], current[better]
            active = current > self.tol

        done = bool((residual <= self.tol).all())
        return Solution(
            alpha=alpha,
            status=Status.CONVERGED if done else Status.MAX_STEPS,
            steps=steps,
            kkt_residual=residual,
            retries=factorisation.retries,
            extra_ridge=factorisation.extra_ridge,
        )

    def _penalty(self, problem: MaxMarginDual) -> float:
        """Return rho, near the geometric mean of the smallest and the largest eigenvalue that matter."""
        if not isinstance(self.rho, str):
            return self.rho
        size = torch.linalg.matrix_norm(problem.gram).item()
        return 1.3 * math.sqrt(max(problem.reg, 1e-3 * size) * size)
