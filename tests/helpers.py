"""What the tests of the maths core share: solvers, kernels, the problem zoo, twins and oracles.

A new solver, kernel, rule or loss that is added to ``SOLVERS``, ``KERNELS``, ``RULES`` or ``BASELINES`` meets
every test of its kind.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import lsq_linear
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmcl_lightning.kernels import RBF, Intersection, Kernel, Linear, Polynomial, Tanh
from mmcl_lightning.losses import (
    ContrastiveLoss,
    DebiasedLoss,
    DecoupledLoss,
    HCLLoss,
    HingeLoss,
    MMCLLoss,
    NTXentLoss,
    WeightedContrastiveLoss,
)
from mmcl_lightning.losses.weights import Hard, Near, NegativeWeights, Shuffled, SupportVectors, Uniform
from mmcl_lightning.svm import (
    Exact,
    Inverse,
    MaxMarginDual,
    ProjectedGradient,
    Solution,
    Solver,
    Status,
    max_margin_dual,
)

#: Every solver, set to run until it can do no better in float64.
SOLVERS: tuple[Solver, ...] = (
    Inverse(),
    Exact(tol=1e-10, max_steps=20_000),
    Exact(tol=1e-10, max_steps=600, path="fixed"),
    ProjectedGradient(tol=1e-10, max_steps=100_000),
)
#: Those that find the optimum of the box problem.
BOX_SOLVERS = tuple(solver for solver in SOLVERS if not isinstance(solver, Inverse))

#: Every kernel, in more than one setting where it has any.
KERNELS: tuple[Kernel, ...] = (
    RBF(),
    RBF(gamma=0.05),
    RBF(sigma2=0.1),
    Linear(),
    Polynomial(),
    Polynomial(degree=2, gamma=0.7, offset=0.0),
    Tanh(),
    Tanh(gamma=0.3, offset=-0.2),
    Intersection(),
)

#: Every loss that looks at similarities alone, in more than one setting where it has any.
BASELINES: tuple[ContrastiveLoss, ...] = (
    NTXentLoss(0.2),
    NTXentLoss(0.3, kernel=Tanh(gamma=2.0)),
    DebiasedLoss(),
    DebiasedLoss(0.2, tau_plus=0.3),
    HCLLoss(),
    HCLLoss(0.2, tau_plus=0.02, beta=0.5),
    DecoupledLoss(0.2),
    DecoupledLoss(0.2, sigma=0.5),
    HingeLoss(),
    HingeLoss(0.1),
)


#: Every rule that weighs negatives, in more than one setting where it has any.
RULES: tuple[NegativeWeights, ...] = (
    Uniform(),
    Near(),
    Near(beta=0.0),
    Hard(),
    SupportVectors(),
    SupportVectors(RBF(gamma=5.0), Exact(tol=1e-9, max_steps=5000), C=0.5, reg=1.0),
    SupportVectors(C=0.3, drop_at_bound=True),
    Shuffled(Near(beta=3.0)),
)

#: Losses that weigh negatives by a rule, in both forms.
WEIGHTED: tuple[ContrastiveLoss, ...] = (
    *(WeightedContrastiveLoss(rule, form, 0.3) for rule in RULES for form in ("log", "nce")),
    *(
        MMCLLoss(form=form, temperature=0.2, negatives=negatives, symmetric=symmetric)
        for form in ("log", "nce")
        for negatives in ("both", "one")
        for symmetric in (False, True)
    ),
)


def name(part: object) -> str:
    """Test id of a solver or kernel."""
    if isinstance(part, Exact):
        return f"Exact-{part.path}"
    return repr(part) if isinstance(part, Kernel) else type(part).__name__


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal draws in float64."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def make_views(
    images: int, dim: int, *, count: int = 2, noise: float = 0.5, classes: int = 0, seed: int = 0
) -> list[Tensor]:
    """Unit projections of ``count`` views of each image, each ``(images, dim)``, float64.

    Views scatter around their image by ``noise``; with ``classes``, images scatter around a class centre.
    """
    centres = randn(images, dim, seed=seed)
    if classes:
        member = torch.arange(images) % classes
        centres = 2 * randn(classes, dim, seed=seed + 1)[member] + centres
    views = [centres + noise * randn(images, dim, seed=seed + 10 + i) for i in range(count)]
    return [view / view.norm(dim=1, keepdim=True) for view in views]


@dataclass(frozen=True, eq=False)
class Case:
    """One batch of duals, to be built in either precision.

    Args:
        points: Candidates, shape ``(n, D)``, float64.
        kernel: The kernel among them.
        images: Number of images; candidates are stacked view by view.
        options: Further arguments of ``max_margin_dual``.
    """

    points: Tensor
    kernel: Kernel
    images: int
    C: float = 100.0
    reg: float = 0.1
    assume_unit_diag: bool = False

    @property
    def excluded(self) -> Tensor:
        """Views of each image, the first as positive, shape ``(B, m)``."""
        return torch.arange(len(self.points)).view(-1, self.images).T.contiguous()

    def gram(self, dtype: torch.dtype = torch.float64) -> Tensor:
        points = self.points.to(dtype)
        return self.kernel(points, points)

    def problem(self, dtype: torch.dtype = torch.float64) -> MaxMarginDual:
        return max_margin_dual(
            self.gram(dtype),
            self.excluded[:, 0],
            self.excluded[:, 1:],
            C=self.C,
            reg=self.reg,
            assume_unit_diag=self.assume_unit_diag,
            positive_semidefinite=self.kernel.positive_semidefinite,
            kernel_name=repr(self.kernel),
        )

    def delta(self, b: int) -> tuple[np.ndarray, list[int]]:
        """``Delta_b`` without ridge as the paper prints it, entry by entry, and its negatives."""
        K = self.gram().tolist()
        p = int(self.excluded[b, 0])
        negatives = [j for j in range(len(K)) if j not in self.excluded[b].tolist()]
        own = 1.0 if self.assume_unit_diag else K[p][p]
        return np.array(
            [[own + K[i][j] - K[p][i] - K[p][j] for j in negatives] for i in negatives]
        ), negatives


def _zoo() -> dict[str, Case]:
    one = make_views(12, 6, count=1, seed=1)[0]
    both = torch.cat(make_views(8, 6, seed=2))
    same = make_views(6, 5, seed=3)
    for view in same:
        view[4] = view[3]
    lengths = torch.logspace(-1, 0.5, 16, dtype=torch.float64)[:, None]
    apart = make_views(1, 6, seed=4)[0].expand(16, -1)
    zoo = {
        "one view": Case(one, RBF(), 12),
        "both views": Case(both, RBF(), 8),
        "three views": Case(torch.cat(make_views(6, 5, count=3, seed=5)), RBF(), 6),
        "clustered, B=64": Case(torch.cat(make_views(64, 32, classes=8, seed=6)), RBF(), 64),
        "duplicate negatives": Case(torch.cat(same), RBF(), 6),
        "rank-deficient linear": Case(torch.cat(make_views(8, 3, seed=7)), Linear(), 8),
        "two anchors, one view": Case(make_views(2, 4, count=1, seed=8)[0], RBF(), 2),
        "two anchors, both views": Case(torch.cat(make_views(2, 4, seed=8)), RBF(), 2),
        "all equal": Case(apart, RBF(), 8),
        "nearly equal": Case(apart + 1e-3 * randn(16, 6, seed=9), RBF(), 8),
        "large gamma": Case(both, RBF(gamma=1e3), 8),
        "tiny gamma": Case(both, RBF(gamma=1e-4), 8),
        "ill conditioned": Case(both * lengths, Polynomial(), 8),
        "unequal diagonal": Case(both * lengths, Intersection(), 8, C=1.0),
        "unit diagonal assumed": Case(0.8 * one, Linear(), 12, assume_unit_diag=True),
    }
    zoo |= {f"C={C}": replace(zoo["both views"], C=C) for C in (0.3, 1.0, math.inf)}
    return zoo


ZOO: dict[str, Case] = _zoo()
#: Not positive semi-definite, so a test of its own says who can solve it.
INDEFINITE = Case(torch.cat(make_views(8, 4, seed=21)), Tanh(gamma=5.0), 8, C=1.0, reg=0.1)


@functools.cache
def solved(case: Case, solver: Solver) -> Solution:
    """Solution of a case in float64, computed once for all tests; do not change it."""
    return solver(case.problem())


def some_rows(case: Case) -> list[int]:
    """A few problems of a case for oracles that solve one at a time."""
    return sorted({0, case.images // 2, case.images - 1})


def box_optimum(matrix: np.ndarray, C: float) -> np.ndarray:
    """Minimise ``a' Q a / 2 - 2 sum(a)`` over the box by bounded least squares on the Cholesky factor."""
    factor = np.linalg.cholesky(matrix)
    target = np.linalg.solve(factor, np.full(len(matrix), 2.0))
    result = lsq_linear(factor.T, target, bounds=(0, C), method="bvls", tol=1e-15, max_iter=10_000)
    return result.x


def objective(matrix: np.ndarray, alpha: np.ndarray) -> float:
    return float(alpha @ matrix @ alpha / 2 - 2 * alpha.sum())


def kernel_twin(kernel: Kernel) -> Callable[[list[float], list[float]], float]:
    """The formula of a kernel for two points, in Python floats."""

    def dot(x: list[float], y: list[float]) -> float:
        return sum(a * b for a, b in zip(x, y, strict=True))

    if isinstance(kernel, RBF):
        return lambda x, y: math.exp(-kernel.gamma * sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
    if isinstance(kernel, Linear):
        return dot
    if isinstance(kernel, Polynomial):
        return lambda x, y: (kernel.gamma * dot(x, y) + kernel.offset) ** kernel.degree
    if isinstance(kernel, Tanh):
        return lambda x, y: math.tanh(kernel.gamma * dot(x, y) + kernel.offset)
    if isinstance(kernel, Intersection):
        return lambda x, y: sum(min(max(a, 0.0), max(b, 0.0)) for a, b in zip(x, y, strict=True))
    raise TypeError(f"no twin for {kernel!r}: write one here")


@dataclass(frozen=True, eq=False)
class Given(Solver):
    """Answers with the dual variables that it was given."""

    alpha: Tensor

    def _solve(self, problem: MaxMarginDual) -> Solution:
        return Solution(self.alpha, Status.CONVERGED, torch.zeros(problem.B, dtype=torch.int64))


class Memory(TorchDispatchMode):
    """Counts the bytes of tensors that operations return, as long as their storages live."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        self.largest = max(self.largest, size)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
