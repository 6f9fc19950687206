r"""Many support vector machines that share one kernel matrix.

Anchor b has a positive :math:`p_b` and negatives :math:`S_b`: all candidates but a few. Its dual is

.. math:: \min_{0 \le \alpha \le C}\;
    \tfrac12 \alpha^\top (\Delta_b + \beta I)\,\alpha - 2\,\mathbf 1^\top \alpha, \qquad
    \Delta_b = k_{pp}\mathbf 1 \mathbf 1^\top + K_{SS} - k_b \mathbf 1^\top - \mathbf 1 k_b^\top .

Source: Shah et al., AAAI 2022, arXiv:2112.11450, Proposition 1.

No :math:`\Delta_b` is ever formed. Let :math:`v` be the signed weights of all candidates: alpha on the
negatives, minus their sum on the positive, zero on the others. Then, for every negative j,

.. math:: (\Delta_b \alpha)_j = (K v)_j - (K v)_{p},

one matrix product for the whole batch. And since v sums to zero, adding a constant to a row and the
same column of K changes nothing. So K is kept *centred*, which is what makes single precision enough
where all projections are nearly equal: there K is all ones, but the centred K is nearly zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._options import check_number
from mmcl_lightning.deferred import check, may_wait
from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.svm.factorisation import Factorisation, factorise

__all__ = ["MaxMarginDual", "max_margin_dual"]

_MANY = 512  # candidates from which a sparse product pays: below, one of dense matrices takes no time
_FEW = 1 / 40  # of the weights: where a sparse product takes half the time of a dense one
_ROUNDINGS = 8  # times eps: most seen in a gradient, but for candidates that are equal to rounding


def max_margin_dual(
    gram: Tensor,
    positive: Tensor,
    left_out: Tensor | None = None,
    *,
    C: float = 100.0,
    reg: float = 0.1,
    positive_semidefinite: bool = True,
    assume_unit_diag: bool = False,
    kernel_name: object = "the kernel",
    rows: Tensor | None = None,
    total_rows: int | None = None,
) -> MaxMarginDual:
    r"""Build one box-constrained dual per anchor from a shared kernel matrix.

    Differs from the published code in one point: k(x, x) is read from the kernel, not fixed to 1.

    Args:
        gram: Kernel values among the candidates, shape ``(n, n)``, float32 or float64. That it is
            symmetric is not checked.
        positive: Index of the positive of each anchor, shape ``(B,)``, int64.
        left_out: Candidates that are neither positive nor negative of an anchor, typically its other
            views, shape ``(B, m - 1)``, int64; distinct within a row. ``None`` leaves out none.
        C: Upper bound of every dual variable, > 0; ``math.inf`` leaves the box open.
        reg: Ridge added to the diagonal of every problem, >= 0, in the unit of ``gram``.
        positive_semidefinite: Whether the kernel guarantees a positive semi-definite ``gram``.
        assume_unit_diag: Put 1 in place of k(x+, x+), as the paper prints and the published code does.
        kernel_name: What error messages call the kernel, such as the kernel itself.
        rows: Where these problems stand among those of all processes, shape ``(B,)``, so that the random
            start of a solver does not depend on how they are spread; 0 to B - 1 by default.
        total_rows: Number of problems of all processes; B by default.

    Returns:
        ``B`` problems that share ``gram``. Nothing of size ``B * n * n`` is allocated.

    Raises:
        ShapeError: If an argument is no tensor, the shapes do not fit together, or an index is out of range
            or repeated.
        NumericalError: If ``gram`` is not finite.
        ConfigError: If ``C <= 0``, ``reg < 0`` or ``gram`` is in half precision.
    """
    check_box(C, reg)
    given = (gram, positive) if left_out is None else (gram, positive, left_out)
    if not all(isinstance(part, Tensor) for part in given):
        raise ShapeError("gram, positive and left_out must be tensors: convert arrays and lists first")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ShapeError(f"gram must be square, got {tuple(gram.shape)}")
    if gram.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"gram must be float32 or float64, got {gram.dtype}: convert it first")
    _check_range(C, reg, gram.dtype)
    if positive.ndim != 1 or len(positive) == 0:
        raise ShapeError(f"positive must have shape (B,) with B >= 1, got {tuple(positive.shape)}")
    if left_out is None:
        left_out = positive.new_empty(len(positive), 0)
    if left_out.ndim != 2 or len(left_out) != len(positive):
        raise ShapeError(f"left_out must have shape ({len(positive)}, m - 1), got {tuple(left_out.shape)}")
    excluded = torch.cat([positive[:, None], left_out], dim=1)
    if excluded.dtype != torch.int64:
        raise ShapeError(f"positive and left_out must be int64 indices, got {excluded.dtype}")
    if excluded.shape[1] >= len(gram):
        raise ShapeError(f"{len(gram)} candidates leave no negative when {excluded.shape[1]} are left out")
    if may_wait():
        _check_indices(excluded, len(gram))
    return MaxMarginDual(
        gram=_centre(gram, kernel_name),
        excluded=excluded,
        C=float(C) if torch.finfo(gram.dtype).max >= C else math.inf,
        reg=float(reg),
        diag_correction=1 - gram.diagonal()[positive] if assume_unit_diag else gram.new_zeros(len(excluded)),
        positive_semidefinite=positive_semidefinite,
        kernel_name=kernel_name,
        assume_unit_diag=assume_unit_diag,
        rows=torch.arange(len(excluded), device=gram.device) if rows is None else rows,
        total_rows=len(excluded) if total_rows is None else total_rows,
    )


def _check_indices(excluded: Tensor, n: int) -> None:
    ordered = excluded.sort(dim=1).values
    inside = (ordered[:, 0] >= 0) & (ordered[:, -1] < n)
    if not (inside & (ordered[:, 1:] > ordered[:, :-1]).all(dim=1)).all():
        raise ShapeError(f"positive and left_out must be distinct indices of the {n} candidates, per problem")


def check_box(C: float, reg: float) -> None:
    """Raise :class:`ConfigError` unless ``C > 0`` (``inf`` allowed) and ``reg >= 0``."""
    check_number("C", C, "> 0", ".inf for no upper bound", infinite=True)
    check_number("reg", reg, ">= 0")


def _check_range(C: float, reg: float, dtype: torch.dtype) -> None:
    """Raise unless C is a number > 0 and reg a finite one in the precision of the kernel matrix too."""
    limits = torch.finfo(dtype)
    if limits.tiny > C:
        raise ConfigError(f"C={C:g} is too small for {dtype}: the least is {limits.tiny:g}")
    if reg > limits.max**0.5:  # its square is taken
        raise ConfigError(f"reg={reg:g} is too large for {dtype}: the most is {limits.max**0.5:g}")


def _centre(gram: Tensor, kernel_name: object) -> Tensor:
    """Subtract row and column means, then give the constant vector the eigenvalue 1 instead of 0.

    The second step changes nothing in the problem either, and keeps the matrix invertible without a ridge.
    """

    def judge(values: list[float]) -> None:
        if not math.isfinite(values[0]):
            raise NumericalError(f"the kernel matrix of {kernel_name} is not finite: use smaller parameters")

    mean = gram.mean(dim=0)
    overall = mean.mean()
    check(overall, judge)
    centred = gram - mean
    centred -= (mean - (overall + 1 / len(gram)))[:, None]
    return centred


def _weighted_rows(weights: Tensor, gram: Tensor) -> Tensor:
    """Return ``weights @ gram``, ``(B, n)``; on a CPU from single rows of ``gram`` where they are few."""
    sparse = weights.device.type == "cpu" and weights.shape[1] >= _MANY
    if not sparse or weights.count_nonzero() > _FEW * weights.numel():
        return weights @ gram
    row, column = weights.nonzero(as_tuple=True)
    starts = torch.searchsorted(row, torch.arange(len(weights)))
    return F.embedding_bag(column, gram, starts, mode="sum", per_sample_weights=weights[row, column])


@dataclass(frozen=True, eq=False)
class MaxMarginDual:
    """``B`` dual problems over ``n`` candidates; build it with :func:`max_margin_dual`.

    Args:
        gram: Centred kernel matrix, shape ``(n, n)``.
        excluded: Candidates left out of each problem, the positive in column 0, shape ``(B, m)``.
        rows: Where these problems stand among those of all processes, shape ``(B,)``.
        total_rows: Number of problems of all processes.
        C: Upper bound of the box, > 0, possibly ``inf``.
        reg: Ridge, >= 0.
        diag_correction: What to add to k(x+, x+) of each problem, shape ``(B,)``; zero by default.
        positive_semidefinite: Whether the kernel is positive semi-definite.
        kernel_name: What error messages call the kernel, such as the kernel itself.
        assume_unit_diag: Whether ``diag_correction`` is what k(x+, x+) lacks of 1.
    """

    gram: Tensor
    excluded: Tensor
    rows: Tensor
    total_rows: int
    C: float
    reg: float
    diag_correction: Tensor
    positive_semidefinite: bool = True
    kernel_name: object = "the kernel"
    assume_unit_diag: bool = False
    keep: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        keep = self.gram.new_ones(self.B, self.n).scatter_(1, self.excluded, 0.0)
        object.__setattr__(self, "keep", keep)

    @property
    def B(self) -> int:  # noqa: N802 - the paper's letter
        """Number of problems."""
        return self.excluded.shape[0]

    @property
    def n(self) -> int:
        """Number of candidates."""
        return self.gram.shape[0]

    @property
    def negatives(self) -> int:
        """Number of negatives of each problem."""
        return self.n - self.excluded.shape[1]

    @property
    def curvature_loss(self) -> Tensor:
        """Most that ``diag_correction`` may take from the least eigenvalue of any problem, >= 0, scalar."""
        return (-self.diag_correction.min()).clamp_min(0) * self.negatives

    @property
    def may_be_concave(self) -> Tensor:
        """Whether ``diag_correction`` may take more than ``reg`` gives, bool without dimensions."""
        return self.curvature_loss > self.reg + 8 * self.n * torch.finfo(self.gram.dtype).eps

    @property
    def convex(self) -> bool:
        """Whether every problem is sure to be convex: a minimum is then the optimum, with or without a C.

        Waits for the device where k(x, x) was set to 1.
        """
        return self.positive_semidefinite and not (self.assume_unit_diag and bool(self.may_be_concave))

    @property
    def name(self) -> str:
        """What error messages call the kernel, with what was done to its diagonal where that matters."""
        to_blame = self.assume_unit_diag and bool(self.curvature_loss > self.reg)
        return f"{self.kernel_name} with assume_unit_diag" if to_blame else str(self.kernel_name)

    @property
    def positive(self) -> Tensor:
        """Index of each problem's positive, shape ``(B,)``."""
        return self.excluded[:, 0]

    def select(self, rows: Tensor) -> MaxMarginDual:
        """Return the problems of the given rows only, shape ``(b,)`` of int64 or bool; shares ``gram``."""
        return replace(
            self,
            excluded=self.excluded[rows],
            rows=self.rows[rows],
            diag_correction=self.diag_correction[rows],
        )

    def signed_weights(self, alpha: Tensor) -> Tensor:
        """Weights of the candidates in the decision function, ``(B, n)``: alpha, and minus its sum at x+."""
        return alpha.scatter(1, self.positive[:, None], -alpha.sum(1, keepdim=True))

    def product(self, alpha: Tensor) -> Tensor:
        """Return ``(Delta + reg I) alpha``, shape ``(B, n)``, by one matrix product for the whole batch.

        On a CPU that of a sparse matrix, where few alpha are not zero.
        """
        with torch.autocast(alpha.device.type, enabled=False):  # half precision would hide a small residual
            images = _weighted_rows(self.signed_weights(alpha), self.gram)
        at_positive = images.gather(1, self.positive[:, None])
        at_positive -= self.diag_correction[:, None] * alpha.sum(1, keepdim=True)
        return torch.add(images.sub_(at_positive), alpha, alpha=self.reg).mul_(self.keep)

    def gradient(self, alpha: Tensor) -> Tensor:
        """Gradient of the objective, shape ``(B, n)``, zero where a candidate is no negative."""
        return self.product(alpha).sub_(self.keep, alpha=2)

    def objective(self, alpha: Tensor) -> Tensor:
        """Value that each problem minimises, shape ``(B,)``."""
        return (alpha * (self.product(alpha) / 2 - 2 * self.keep)).sum(1)

    def clip(self, alpha: Tensor) -> Tensor:
        """Nearest point of the box, shape ``(B, n)``."""
        return (alpha * self.keep).clamp_(0, self.C)

    def kkt_residual(self, alpha: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Largest ``|alpha - clip(alpha - a gradient)| / a`` of each problem, ``(B,)``; zero at the optimum.

        With ``a``, the largest alpha of the problem, as the unit: a variable counts by its gradient, which
        is -2 at alpha = 0, or by its relative distance from the bound that the gradient points to,
        whichever is less. So neither the scale of the kernel nor that of ``C`` matters.
        """
        gradient = self.gradient(alpha) if gradient is None else gradient
        unit = alpha.amax(1, keepdim=True).clamp_min_(torch.finfo(alpha.dtype).tiny)
        moved = torch.addcmul(alpha, gradient, unit, value=-1).clamp_(0, self.C)
        return moved.sub_(alpha).div_(unit).abs_().amax(1)

    def rounding(self, alpha: Tensor) -> Tensor:
        """Size up to which rounding explains an entry of the gradient at ``alpha``, shape ``(B,)``."""
        size = self.gram.diagonal().abs().max() * alpha.sum(1) + self.reg * alpha.amax(1) + 2
        return _ROUNDINGS * torch.finfo(alpha.dtype).eps * size

    def duality_gap(self, alpha: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Bound on the distance of the objective from its optimum, shape ``(B,)``.

        The Fenchel dual value at the point that ``alpha`` suggests. A bound only where Delta is positive
        semi-definite; infinite where ``reg`` is 0, ``C`` is infinite and the gradient is negative.
        """
        gradient = self.gradient(alpha) if gradient is None else gradient
        if self.reg > 0:
            step = (alpha - gradient / self.reg).clamp_(0, self.C) - alpha
            return -(gradient * step + self.reg / 2 * step.square()).sum(1)
        room = torch.where(gradient > 0, alpha, self.C - alpha)
        return (gradient.abs() * room).masked_fill_(gradient == 0, 0).sum(1)

    def frobenius_norm(self) -> Tensor:
        """Frobenius norm of ``Delta + reg I`` of each problem, shape ``(B,)``, without forming any."""
        K, N, excluded = self.gram, self.negatives, self.excluded
        rows = K[excluded]  # (B, m, n)
        corner = rows.gather(2, excluded[:, None, :].expand(-1, excluded.shape[1], -1))  # K[R, R]
        k = rows[:, 0] * self.keep
        c = corner[:, 0, 0] + self.diag_correction
        row_sums = (K.sum(1) - rows.sum(1)) * self.keep  # over the negatives of each problem
        squares = K.square()
        sum_squares = squares.sum() - 2 * squares[excluded].sum((1, 2)) + corner.square().sum((1, 2))
        total, sum_k, sum_k2 = row_sums.sum(1), k.sum(1), k.square().sum(1)
        trace = (K.diagonal() * self.keep).sum(1) - 2 * sum_k + N * c
        delta = sum_squares + 2 * N * sum_k2 + 2 * sum_k**2 + N**2 * c**2
        delta += 2 * c * total - 4 * (k * row_sums).sum(1) - 4 * c * N * sum_k
        return (delta.clamp_min(0) + 2 * self.reg * trace + self.reg**2 * N).clamp_min(0).sqrt()

    def factorise(self, shift: float | Tensor = 0.0, *, require_definite: bool = False) -> Factorisation:
        """Factorise ``Delta_b + (reg + shift) I`` of every problem at once; see :func:`factorise`."""
        return factorise(
            self.gram,
            self.excluded,
            self.keep,
            self.reg + shift,
            diag_correction=self.diag_correction,
            allow_indefinite=not (require_definite or self.positive_semidefinite),
            allow_ridge=self.positive_semidefinite,
            kernel_name=lambda: self.name,
        )

    def dense(self, b: int) -> tuple[Tensor, Tensor]:
        """Form one problem's ``Delta + reg I`` and the candidates it is over: for tests and for looking.

        Returns:
            The matrix, shape ``(N, N)`` for N negatives, and their indices, shape ``(N,)``.
        """
        indices = self.keep[b].nonzero().squeeze(1)
        p = self.positive[b]
        k = self.gram[p, indices]
        delta = self.gram[indices][:, indices] - k[:, None] - k[None, :] + self.gram[p, p]
        delta += self.diag_correction[b]
        return delta + self.reg * torch.eye(len(indices), dtype=delta.dtype, device=delta.device), indices
