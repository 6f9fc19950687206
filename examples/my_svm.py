"""A kernel and a solver of one's own, in a file outside the package, chosen from the command line.

cd examples && mmcl fit --config quickstart --model.kernel my_svm.Cauchy --model.solver my_svm.Steps
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning.kernels import Kernel, squared_distances
from mmcl_lightning.svm import MaxMarginDual, Solution, Solver, Status


@dataclass(frozen=True)
class Cauchy(Kernel):
    """1 / (1 + |x - y|^2 / width): near neighbours as for the RBF, with a longer reach."""

    width: float = 1.0

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 / (1 + squared_distances(x, y) / self.width)

    def diag(self, x: Tensor) -> Tensor:
        """Return the kernel of every row with itself."""
        return torch.ones(len(x), dtype=x.dtype, device=x.device)


@dataclass(frozen=True)
class Steps(Solver):
    """A few projected gradient steps from zero."""

    count: int = 10

    def _solve(self, problem: MaxMarginDual) -> Solution:
        alpha = torch.zeros(problem.B, problem.n)
        for _ in range(self.count):
            alpha = problem.clip(alpha - problem.gradient(alpha) / problem.frobenius_norm()[:, None])
        return Solution(alpha, Status.MAX_STEPS, torch.full((problem.B,), self.count))
