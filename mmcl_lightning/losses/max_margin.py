"""The max-margin contrastive loss: one support vector machine per image."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_flags
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF, Kernel
from mmcl_lightning.losses.base import ContrastiveLoss, Views
from mmcl_lightning.svm import Inverse, MaxMarginDual, Solution, Solver, max_margin_dual
from mmcl_lightning.svm.negatives import at_bound, is_support
from mmcl_lightning.svm.problem import check_box

__all__ = ["MMCLLoss", "svm_stats"]


class MMCLLoss(ContrastiveLoss):
    r"""Max-margin contrastive loss (MMCL).

    For anchor b, a support vector machine separates its positive :math:`x^+` (one view) from the
    negatives :math:`y_j` (other images). The other view :math:`z` is then pushed to the right side:

    .. math:: L = \frac1B \sum_b \sum_j \alpha_{bj} \left( k(y_j, z_b) - k(x^+_b, z_b) \right)

    with :math:`\alpha_b` from the dual in :mod:`mmcl_lightning.svm.problem`. No gradient flows through
    alpha. The loss is minus the mean decision value, so it is normally negative and *falls* as the
    classes move apart; its size depends on alpha, so compare k-NN readouts, not losses, between settings.

    Source: Shah et al., "Max-Margin Contrastive Learning", AAAI 2022, arXiv:2112.11450, equation 8 and
    Algorithm 1. Differs from the paper in one point: mean over anchors instead of sum, as in the
    published code.

    Args:
        kernel: Similarity; ``RBF(gamma=1.0)`` by default.
        solver: How the duals are solved; ``Inverse()`` by default.
        C: Upper bound of the dual variables, > 0; ``math.inf`` for none. Where Delta has no negative
            entry, no alpha exceeds ``2 / reg``, and a larger C does nothing; see ``docs/choosing.md``.
        reg: Ridge on every dual, >= 0.
        negatives: ``"both"`` views of every other image, 2 (B - 1) as in the paper's Algorithm 1, or
            only the view of the positive (``"one"``), B - 1 as in the published code.
        symmetric: Let each view be the positive once and average. The paper and the published code do not.
        drop_at_bound: Set alpha to 0 where it is at C: the paper's correction for false negatives.
        assume_unit_diag: Take k(x+, x+) as 1, as printed and published, for kernels where it is not.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Attributes:
        last_problem: The duals of the last call, for looking at them; freed when the next call begins.
        last_solution: Their solution, with alpha of shape ``(B, n)`` (``(2 B, n)`` if symmetric).

    Raises:
        ConfigError: If ``C <= 0``, ``reg < 0`` or an option is unknown.

    Example:
        >>> z0, z1 = torch.randn(8, 16), torch.randn(8, 16)
        >>> MMCLLoss(RBF(gamma=1.0), C=100.0)(z0, z1).shape
        torch.Size([])
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        solver: Solver | None = None,
        C: float = 100.0,
        reg: float = 0.1,
        *,
        negatives: Literal["both", "one"] = "both",
        symmetric: bool = False,
        drop_at_bound: bool = False,
        assume_unit_diag: bool = False,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(normalize=normalize, gather=gather)
        check_box(C, reg)
        check_flags(symmetric=symmetric, drop_at_bound=drop_at_bound, assume_unit_diag=assume_unit_diag)
        if negatives not in ("both", "one"):
            raise ConfigError(f"negatives must be 'both' or 'one', got {negatives!r}")
        self.kernel: Kernel = RBF() if kernel is None else kernel
        self.solver: Solver = Inverse() if solver is None else solver
        for part, kind in ((self.kernel, Kernel), (self.solver, Solver)):
            if not isinstance(part, kind):
                raise ConfigError(
                    f"expected a {kind.__name__} object, such as {kind.__name__.lower()}="
                    f"{'RBF(gamma=1.0)' if kind is Kernel else 'Inverse()'}, got {part!r}"
                )
        self.C = C
        self.reg = reg
        self.negatives = negatives
        self.symmetric = symmetric
        self.drop_at_bound = drop_at_bound
        self.assume_unit_diag = assume_unit_diag
        self.last_problem: MaxMarginDual | None = None
        self.last_solution: Solution | None = None

    @classmethod
    def reference(cls, **changes: Any) -> MMCLLoss:
        """Return the loss of the published code: one view of negatives, k(x+, x+) = 1."""
        options: dict[str, Any] = {"negatives": "one", "assume_unit_diag": True}
        return cls(**(options | changes))

    def set_option(self, path: str, value: Any) -> None:
        """Change an option by name between steps, for schedules.

        Args:
            path: ``"C"``, ``"reg"``, ``"drop_at_bound"``, or a field of a part: ``"kernel.gamma"``,
                ``"solver.max_steps"``.
            value: The new value; checked as in the constructor.

        Raises:
            ConfigError: If there is no such option or the value is out of range.
        """
        part, _, name = path.rpartition(".")
        if part in ("kernel", "solver") and name in _field_names(getattr(self, part)):
            changes = {name: value} | ({"gamma": None} if name == "sigma2" else {})  # sigma2 is an alias
            setattr(self, part, dataclasses.replace(getattr(self, part), **changes))
        elif path in ("C", "reg", "drop_at_bound"):
            check_box(value if path == "C" else self.C, value if path == "reg" else self.reg)
            check_flags(drop_at_bound=value if path == "drop_at_bound" else self.drop_at_bound)
            setattr(self, path, value)
        else:
            known = ["C", "reg", "drop_at_bound"]
            known += [f"kernel.{name}" for name in _field_names(self.kernel)]
            known += [f"solver.{name}" for name in _field_names(self.solver)]
            raise ConfigError(f"{path!r} is no option of this loss; there are {', '.join(known)}")

    def negatives_per_anchor(self, images: int) -> int:
        """Number of negatives of an anchor among ``images`` images."""
        return (2 if self.negatives == "both" else 1) * (images - 1)

    def extra_repr(self) -> str:
        """Options as ``print(module)`` shows them."""
        return (
            f"kernel={self.kernel}, solver={self.solver}, C={self.C}, reg={self.reg}, "
            f"negatives={self.negatives!r}, symmetric={self.symmetric}, drop_at_bound={self.drop_at_bound}"
        )

    def _loss(self, views: Views) -> Tensor:
        self.last_problem = self.last_solution = None  # free before the next one is built
        if self.negatives == "both":
            candidates = torch.cat(views.all)  # (2 G, D): both views of every image
            roles = (0, 1) if self.symmetric else (0,)
            return self._separate(views, candidates, roles)
        loss = self._separate(views, views.all[0], (0,))
        if self.symmetric:
            loss = (loss + self._separate(views, views.all[1], (1,))) / 2
        return loss

    def _separate(self, views: Views, candidates: Tensor, roles: tuple[int, ...]) -> Tensor:
        """Solve the duals over ``candidates`` ``(n, D)`` and return the mean loss of the local anchors.

        ``roles`` are the views that stand for x+ in turn; the other view of each is scored.
        """
        anchors, images = views.anchors, len(views.all[0])
        kernel = self.kernel.fit(candidates.detach())
        problem, solution = self._solve(kernel, candidates.detach(), anchors, images, roles)
        self.last_problem, self.last_solution = problem, solution
        alpha = solution.alpha
        if self.drop_at_bound:
            alpha = torch.where(at_bound(alpha, self.C), 0.0, alpha)
        scored = torch.cat([views.local[1 - role] for role in roles])
        return (problem.signed_weights(alpha) * kernel(scored, candidates)).sum() / len(scored)

    @torch.no_grad()
    def _solve(
        self, kernel: Kernel, candidates: Tensor, anchors: Tensor, images: int, roles: tuple[int, ...]
    ) -> tuple[MaxMarginDual, Solution]:
        both = len(candidates) > images
        positive = torch.cat([anchors + role * images * both for role in roles])
        other = torch.cat([anchors + (1 - role) * images for role in roles])[:, None] if both else None
        problem = max_margin_dual(
            kernel(candidates, candidates),
            positive,
            other,
            C=self.C,
            reg=self.reg,
            positive_semidefinite=kernel.positive_semidefinite,
            assume_unit_diag=self.assume_unit_diag,
            kernel_name=repr(kernel),
        )
        rows = torch.cat([anchors + i * images for i in range(len(roles))])
        return problem, self.solver(problem, rows=rows, total_rows=len(roles) * images)

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """What the last call found, computed when asked for: see :func:`svm_stats`; empty before."""
        if self.last_problem is None or self.last_solution is None:
            return {}
        return svm_stats(self.last_problem, self.last_solution)


@torch.no_grad()
def svm_stats(problem: MaxMarginDual, solution: Solution) -> dict[str, Tensor]:
    r"""Summarise a solution; every value is a scalar.

    Args:
        problem: The duals.
        solution: Their solution.

    Returns:
        ``sv_fraction``: share of negatives with alpha > 0. ``bound_fraction``: share with alpha at C.
        ``free_fraction``: share strictly between. ``zero_fraction``: the rest. ``margin``: mean over anchors
        of :math:`1 / \|w\|` with :math:`\|w\|^2 = \alpha^\top \Delta \alpha`. ``kkt_residual``: largest
        optimality residual. ``duality_gap``: mean bound on the distance from the optimal objective, relative
        to its size. ``steps``: mean iterations. ``alpha_max``. ``negatives``: per anchor. ``retries``: failed
        factorisations.
    """
    alpha, N = solution.alpha, problem.negatives
    gradient = problem.gradient(alpha)
    support, bound = is_support(alpha), at_bound(alpha, problem.C)
    total = problem.B * N
    curvature = (alpha * (gradient + 2)).sum(1)
    squared_norm = curvature - problem.reg * alpha.square().sum(1)
    objective = (curvature / 2 - 2 * alpha.sum(1)).abs()
    gap = problem.duality_gap(alpha, gradient)
    tiny = torch.finfo(alpha.dtype).tiny
    return {
        "sv_fraction": support.sum() / total,
        "bound_fraction": bound.sum() / total,
        "zero_fraction": 1 - support.sum() / total,
        "free_fraction": (support & ~bound).sum() / total,
        "margin": squared_norm.clamp_min(torch.finfo(alpha.dtype).eps).rsqrt().mean(),
        "kkt_residual": problem.kkt_residual(alpha, gradient).max(),
        "duality_gap": (gap / objective.clamp_min(tiny)).mean(),
        "steps": solution.steps.float().mean(),
        "alpha_max": alpha.max(),
        "negatives": torch.tensor(float(N)),
        "retries": torch.tensor(float(solution.retries)),
    }


def _field_names(part: object) -> list[str]:
    return [f.name for f in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []
