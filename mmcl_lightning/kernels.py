r"""Kernels: the similarity in which the margin is measured.

A kernel is called as ``kernel(x, y)`` on points of shape ``(n, D)`` and ``(m, D)`` and returns the
``(n, m)`` matrix of its values, differentiable in both. ``kernel.diag(x)`` is the diagonal of
``kernel(x, x)`` without forming it; nothing in this package assumes that it is 1.

Source: Shah et al., "Max-Margin Contrastive Learning", AAAI 2022, arXiv:2112.11450, section 3 and
the kernel ablation of its appendix.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import ConfigError, ShapeError

__all__ = ["RBF", "Intersection", "Kernel", "Linear", "Polynomial", "Tanh", "squared_distances"]

_MEDIAN_SAMPLE = 1024  # points that the median heuristic looks at: 524,000 distances are plenty


class Kernel(abc.ABC):
    """A similarity between points. Leaves are frozen dataclasses, so they compare, print and copy well."""

    #: Whether every matrix ``kernel(x, x)`` is positive semi-definite.
    positive_semidefinite: bool = True

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel values between two sets of points.

        Args:
            x: Points, shape ``(n, D)``, floating point.
            y: Points, shape ``(m, D)``, same dtype and device.

        Returns:
            Values, shape ``(n, m)``.

        Raises:
            ShapeError: If either is not a matrix, or their widths differ.
        """
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
            raise ShapeError(
                f"a kernel takes points of shape (n, D) and (m, D), got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        return self._values(x, y)

    @abc.abstractmethod
    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        """Kernel values of checked input, shape ``(n, m)``."""

    @abc.abstractmethod
    def diag(self, x: Tensor) -> Tensor:
        """Return ``k(x_i, x_i)`` for each row of ``x``, shape ``(n, D)`` to ``(n,)``."""

    def fit(self, x: Tensor) -> Kernel:
        """Return this kernel with what depends on the data filled in from points ``x``, ``(n, D)``."""
        return self

    def fit_on_device(self, x: Tensor) -> Kernel:
        """Return what :meth:`fit` does, for points ``x``, ``(n, D)``, and use on their device.

        A kernel that overrides it need not wait for a value of the device, as :meth:`fit` may.
        """
        return self.fit(x)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances, ``(n, D)`` and ``(m, D)`` to ``(n, m)``, never negative.

    Both sets are moved by their common mean first. Distances do not change, but the cancellation in
    ``|x|^2 + |y|^2 - 2 x.y`` does: early in training all projections lie close together.
    """
    same = y is x
    centre = y.detach().mean(dim=0)
    x = x - centre
    y = x if same else y - centre
    lengths = y.square().sum(1)
    squares = (lengths if same else x.square().sum(1))[:, None] + lengths
    distances = torch.addmm(squares, x, y.T, alpha=-2).clamp_min(0)
    return distances.fill_diagonal_(0) if same else distances  # rounding would leave 1e-7 of it there


@dataclass(frozen=True)
class RBF(Kernel):
    r"""Gaussian kernel :math:`k(x, y) = \exp(-\gamma \|x - y\|^2)`.

    Args:
        gamma: Inverse width, > 0, as in scikit-learn. ``"median"`` sets it on every batch so that
            :math:`\gamma = 1 / (2 \operatorname{median} \|x - y\|^2)` over pairs of distinct candidates
            (the lower median of an even number).
        sigma2: Alias: ``gamma = 1 / (2 sigma2)``, the form printed in the paper. Give one of the two.

    Raises:
        ConfigError: If the width is not positive, or both forms are given.
    """

    gamma: float | Literal["median"] | None = None
    sigma2: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.sigma2 is not None:
            raise ConfigError(f"give gamma or sigma2, not both: gamma={self.gamma}, sigma2={self.sigma2}")
        if self.sigma2 is not None:
            check_number("sigma2", self.sigma2, "> 0", infinite=True)
            object.__setattr__(self, "gamma", 1 / (2 * self.sigma2))
            object.__setattr__(self, "sigma2", None)  # one stored form, so that replace() and == work
        elif self.gamma is None:
            object.__setattr__(self, "gamma", 1.0)
        if self.gamma != "median":
            check_number("gamma", self.gamma, "> 0", also="'median'")
            object.__setattr__(self, "gamma", float(cast(float, self.gamma)))  # a NumPy scalar, say

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        if self.gamma == "median":
            return self.fit_on_device(y)(x, y)
        assert isinstance(self.gamma, float)
        return squared_distances(x, y).mul(-self.gamma).exp()

    def diag(self, x: Tensor) -> Tensor:
        """Ones, shape ``(n,)``."""
        return torch.ones_like(x[:, 0])

    def fit(self, x: Tensor) -> RBF:
        """Return the kernel with the median heuristic carried out on ``x``, shape ``(n, D)``."""
        return RBF(self._median(x).item()) if self.gamma == "median" else self

    def fit_on_device(self, x: Tensor) -> RBF:
        """Return the same, with ``gamma`` a tensor where it is the median's."""
        return _FittedRBF(self._median(x)) if self.gamma == "median" else self

    @torch.no_grad()
    def _median(self, x: Tensor) -> Tensor:
        points = x[:: max(1, -(-len(x) // _MEDIAN_SAMPLE))]
        distances = squared_distances(points, points)
        row, column = torch.triu_indices(len(points), len(points), offset=1, device=x.device)
        pairs = distances[row, column]
        median = pairs.median() if len(pairs) else pairs.new_zeros(())
        # Points that coincide up to rounding carry no scale, and any width gives them the same matrix.
        noise = 100 * torch.finfo(x.dtype).eps ** 2
        return torch.where(median > noise, 0.5 / median, 1.0)


class _FittedRBF(RBF):
    """An RBF kernel whose width the device knows, so that the host need not wait for it."""

    def __init__(self, gamma: Tensor) -> None:
        object.__setattr__(self, "gamma", gamma)
        object.__setattr__(self, "sigma2", None)

    def __repr__(self) -> str:
        return repr(RBF(float(self.gamma)))  # type: ignore[arg-type]

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return squared_distances(x, y).mul(-self.gamma).exp()  # type: ignore[operator]


@dataclass(frozen=True)
class Linear(Kernel):
    r"""Linear kernel :math:`k(x, y) = x^\top y`."""

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.T

    def diag(self, x: Tensor) -> Tensor:
        """Squared lengths, shape ``(n,)``."""
        return x.square().sum(1)


@dataclass(frozen=True)
class Polynomial(Kernel):
    r"""Polynomial kernel :math:`k(x, y) = (\gamma\, x^\top y + r)^d`.

    The defaults are those of the published code.

    Args:
        degree: Power d, an integer >= 1.
        gamma: Scale, > 0.
        offset: Constant r, >= 0, which keeps the kernel positive semi-definite.
    """

    degree: int = 3
    gamma: float = 1.0
    offset: float = 0.5

    def __post_init__(self) -> None:
        check_whole(1, degree=self.degree)
        check_number("gamma", self.gamma, "> 0")
        check_number("offset", self.offset, ">= 0")

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.gamma * (x @ y.T) + self.offset) ** self.degree

    def diag(self, x: Tensor) -> Tensor:
        """Values at zero distance, shape ``(n,)``."""
        return (self.gamma * x.square().sum(1) + self.offset) ** self.degree


@dataclass(frozen=True)
class Tanh(Kernel):
    r"""Sigmoid kernel :math:`k(x, y) = \tanh(\gamma\, x^\top y + r)`.

    Not positive semi-definite, so the dual need not be convex: use
    :class:`~mmcl_lightning.svm.ProjectedGradient` with a finite C, or a larger ``reg``.
    The paper prints :math:`-\gamma`, under which the loss would push positives apart; the published
    code uses :math:`+\gamma`, as here.

    Args:
        gamma: Scale, > 0.
        offset: Constant r.
    """

    gamma: float = 1.0
    offset: float = 0.0
    positive_semidefinite = False

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, "> 0")
        check_number("offset", self.offset, "> -inf")

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.gamma * (x @ y.T) + self.offset)

    def diag(self, x: Tensor) -> Tensor:
        """Values at zero distance, shape ``(n,)``."""
        return torch.tanh(self.gamma * x.square().sum(1) + self.offset)


class _ManhattanDistance(torch.autograd.Function):
    """``cdist`` with p = 1, whose own backward on CUDA stores an array of all pairs and dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return torch.cdist(x, y, p=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
        for d in range(x.shape[1]):  # one dimension at a time: (n, m) of memory
            part = torch.sub(x[:, d, None], y[None, :, d]).sign_().mul_(grad)
            grad_x[:, d] = part.sum(1)
            grad_y[:, d] = -part.sum(0)
        return grad_x, grad_y


@dataclass(frozen=True)
class Intersection(Kernel):
    r"""Histogram intersection :math:`k(x, y) = \sum_d \min(x_d^+, y_d^+)` with :math:`x^+ = \max(x, 0)`.

    Uses :math:`2\min(a, b) = a + b - |a - b|`, so that nothing of size ``n * m * D`` is stored.
    """

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x.relu(), y.relu()
        distances: Tensor = _ManhattanDistance.apply(x, y)
        return (x.sum(1, keepdim=True) + y.sum(1) - distances) / 2

    def diag(self, x: Tensor) -> Tensor:
        """Sums of the positive parts, shape ``(n,)``."""
        return x.relu().sum(1)
