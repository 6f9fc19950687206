r"""Solving with every :math:`\Delta_b + \beta I` from one factorisation of the shared kernel matrix.

Let :math:`P = (K + \beta I)^{-1}` for the centred K, for which :math:`K \mathbf 1 = \mathbf 1`. A solution x
of :math:`(\Delta_b + \beta I) x = r` on the negatives extends to signed weights v over all candidates
(see :mod:`mmcl_lightning.svm.problem`), and these have the form

.. math:: v = P r + \theta \mathbf 1 + \kappa \nu\, P_{:,p} + P_{:,O}\, \mu ,
    \qquad \kappa = \beta - \delta ,

where p is the positive, O are the other candidates left out, :math:`\delta` is the correction of k(x+, x+)
(zero by default) and the m + 1 numbers :math:`(\nu, \mu, \theta)` follow from as many conditions: v at p
equals :math:`\nu`, v at O is zero, and v sums to zero. So each problem costs one small system beside its
share of the product with P.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmcl_lightning.deferred import check, may_wait
from mmcl_lightning.errors import ConfigError, NumericalError

__all__ = ["Factorisation", "factorise"]

_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # tried in turn, relative to the mean diagonal


@dataclass(frozen=True, eq=False)
class Factorisation:
    """Inverse of the shared matrix with what every problem needs to correct it.

    Args:
        inverse: P, shape ``(n, n)``.
        rows: Rows of P at the candidates left out, the positive first, shape ``(B, m, n)``.
        inner: Their sum at each candidate left out, shape ``(B, m)``.
        small: From the products of a right-hand side with the rows, and its sum, to the weights of the rows
            in the solution, and theta: shape ``(B, m + 1, m + 1)``.
        keep: Mask of the negatives, shape ``(B, n)``.
        ridge: beta, the total ridge of the factorised matrix, including what had to be added.
        retries: Failed attempts before this one.
        extra_ridge: What had to be added to the ridge that was asked for.
    """

    inverse: Tensor
    rows: Tensor
    inner: Tensor
    small: Tensor
    keep: Tensor
    ridge: float | Tensor
    retries: int | Tensor
    extra_ridge: float | Tensor

    def select(self, index: Tensor) -> Factorisation:
        """Return the part for the given problems, ``index`` of shape ``(b,)``; shares the inverse."""
        rows, inner, small, keep = (part[index] for part in (self.rows, self.inner, self.small, self.keep))
        return replace(self, rows=rows, inner=inner, small=small, keep=keep)

    def solve(self, rhs: Tensor) -> Tensor:
        """Solve every problem, ``rhs`` of shape ``(B, n)`` and zero off the negatives; returns ``(B, n)``."""
        conditions = torch.cat([self.rows @ rhs[:, :, None], rhs.sum(1)[:, None, None]], dim=1)
        return self._combine(rhs @ self.inverse, self.small @ conditions)

    def solve_constant(self, value: float) -> Tensor:
        """Solve with ``value`` at every negative, ``(B, n)``: needs no product, since P 1 is known."""
        m, mean = self.inner.shape[1], value / (1 + self.ridge)
        total = self.inner.new_full((len(self.inner), 1), value * (self.inverse.shape[0] - m))
        conditions = torch.cat([mean - value * self.inner, total], dim=1)
        weights = self.small @ conditions[:, :, None]
        weights[:, :m].sub_(value)  # the product with P itself is the mean, without these rows
        weights[:, m].add_(mean)
        return self._combine(None, weights)

    def _combine(self, head: Tensor | None, weights: Tensor) -> Tensor:
        """Add the weighted rows of P and theta to ``head``, and leave the negatives only."""
        weights, theta = weights[:, :-1].mT, weights[:, -1]
        found = weights @ self.rows if head is None else torch.baddbmm(head[:, None], weights, self.rows)
        return found.squeeze(1).add_(theta).mul_(self.keep)


def factorise(
    gram: Tensor,
    excluded: Tensor,
    keep: Tensor,
    ridge: float | Tensor,
    *,
    diag_correction: Tensor,
    allow_indefinite: bool = False,
    allow_ridge: bool = True,
    kernel_name: Callable[[], str] = lambda: "the kernel",
) -> Factorisation:
    """Invert ``gram + ridge I`` and prepare the corrections of every problem.

    Cholesky in the dtype of ``gram``; if that fails, in float64; then either a general inverse (an
    indefinite kernel) or a larger ridge. What was needed is recorded in the result. Where the host may not
    wait to see a failure, the ridge is raised before to what the precision can resolve, and an indefinite
    kernel takes the general inverse at once.

    Args:
        gram: Centred kernel matrix, shape ``(n, n)``, with ``gram @ 1 = 1``.
        excluded: Candidates left out of each problem, the positive first, shape ``(B, m)``.
        keep: Mask of the negatives, shape ``(B, n)``.
        ridge: Total ridge, >= 0; a tensor without dimensions where only the device knows it.
        diag_correction: Correction of k(x+, x+), shape ``(B,)``.
        allow_indefinite: Whether a general inverse may stand in for Cholesky.
        allow_ridge: Whether the ridge may be enlarged.
        kernel_name: What the error message calls the kernel.

    Raises:
        NumericalError: If no permitted attempt succeeds.
        ConfigError: If the ridge is no number in the precision of ``gram``.
    """
    if not isinstance(ridge, Tensor) and ridge > torch.finfo(gram.dtype).max:
        raise ConfigError(
            f"a ridge of {ridge:g} (reg, plus rho of the Exact solver) is too large for {gram.dtype}"
        )
    if may_wait() and not isinstance(ridge, Tensor):
        inverse, retries, extra = _invert(gram, ridge, allow_indefinite, allow_ridge, kernel_name)
        return _prepare(inverse, excluded, keep, ridge + extra, diag_correction, retries, extra)
    inverse, total = _invert_at_once(gram, ridge, allow_indefinite, allow_ridge, kernel_name)
    added = total - ridge
    return _prepare(inverse, excluded, keep, total, diag_correction, added > 0, added)


def _prepare(
    inverse: Tensor,
    excluded: Tensor,
    keep: Tensor,
    ridge: float | Tensor,
    diag_correction: Tensor,
    retries: int | Tensor,
    extra: float | Tensor,
) -> Factorisation:
    """Invert the small system of every problem."""
    (B, m), n = excluded.shape, len(inverse)
    inner = inverse[excluded[:, :, None], excluded[:, None, :]]
    kappa = ridge - diag_correction
    system = inverse.new_ones((B, m + 1, m + 1), dtype=torch.float64)
    system[:, :m, :m] = inner
    system[:, :, 0].mul_(kappa[:, None])
    system[:, 0, 0].sub_(1)
    system[:, m, m].mul_(n * (1 + ridge))
    small = torch.linalg.inv_ex(system).inverse.neg_()
    small[:, 0].mul_(kappa[:, None])
    small = small.to(inverse.dtype)
    return Factorisation(inverse, inverse[excluded], inner.sum(1), small, keep, ridge, retries, extra)


def _invert_at_once(
    gram: Tensor,
    ridge: float | Tensor,
    allow_indefinite: bool,
    allow_ridge: bool,
    kernel_name: Callable[[], str],
) -> tuple[Tensor, Tensor]:
    """Return the inverse and the ridge that it has, without a look at any value.

    A failure is found by the check, where the host looks at it.
    """
    shifted = gram.clone()
    largest = gram.diagonal().abs().max()
    # What rounding in the factorisation can take from the least eigenvalue.
    least = largest * (2 * len(gram) * torch.finfo(gram.dtype).eps if allow_ridge else 0)
    total = torch.maximum(least, ridge) if isinstance(ridge, Tensor) else least.clamp_min(ridge)
    shifted.diagonal().add_(total)
    if allow_indefinite:
        inverse, info = torch.linalg.inv_ex(shifted.double())
        inverse = inverse.to(gram.dtype)
    else:
        factor, info = torch.linalg.cholesky_ex(shifted)
        inverse = torch.cholesky_inverse(factor)
    # Rounding can let a singular matrix pass; the inverse's diagonal then gives it away.
    condition = inverse.diagonal().abs().max() * (largest + total)

    def judge(values: list[float]) -> None:
        failed, condition, asked = values
        bad = not condition * len(gram) * torch.finfo(gram.dtype).eps < 1  # also for nan
        if failed or (bad and not allow_indefinite) or not math.isfinite(condition):
            raise _not_definite(asked, kernel_name(), torch.float64 if allow_indefinite else gram.dtype)

    check(torch.stack([info.to(gram.dtype), condition, total]), judge)
    return inverse, total


def _not_definite(ridge: float, kernel_name: str, precision: torch.dtype) -> NumericalError:
    return NumericalError(
        f"K + {ridge:g} I is not positive definite for {kernel_name} in {str(precision)[6:]}: raise reg (or "
        "the solver's rho), or use a positive semi-definite kernel such as RBF, or ProjectedGradient with a "
        "finite C"
    )


def _invert(
    gram: Tensor, ridge: float, allow_indefinite: bool, allow_ridge: bool, kernel_name: Callable[[], str]
) -> tuple[Tensor, int, float]:
    """Return the inverse, the number of failed attempts and the ridge that had to be added."""
    inverse = _cholesky_inverse(gram, ridge)
    if inverse is not None:
        return inverse, 0, 0.0
    retries, double = 1, gram.double()
    inverse = _cholesky_inverse(double, ridge)
    if inverse is not None:
        return inverse.to(gram.dtype), retries, 0.0
    if allow_indefinite:
        identity = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
        result, info = torch.linalg.inv_ex(double + ridge * identity)
        if info.item() == 0 and result.isfinite().all():
            return result.to(gram.dtype), retries + 1, 0.0
    elif allow_ridge:
        scale = double.diagonal().mean().abs().item()
        for relative in _RIDGES:
            retries += 1
            inverse = _cholesky_inverse(double, ridge + relative * scale)
            if inverse is not None:
                return inverse.to(gram.dtype), retries, relative * scale
    raise _not_definite(ridge, kernel_name(), torch.float64)


def _cholesky_inverse(gram: Tensor, ridge: float) -> Tensor | None:
    """Inverse of ``gram + ridge I`` by Cholesky, or ``None`` where that is not positive definite.

    Rounding can let a singular matrix pass; the inverse's diagonal then gives it away.
    """
    shifted = gram.clone()
    shifted.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(shifted)
    if info.item() != 0:
        return None
    inverse = torch.cholesky_inverse(factor)
    condition = inverse.diagonal().max() * shifted.diagonal().max()
    usable = condition * len(gram) * torch.finfo(gram.dtype).eps < 1  # False for nan
    return inverse if usable else None
