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

from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError, NumericalError

__all__ = ["Factorisation", "factorise"]

_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # tried in turn, relative to the mean diagonal


@dataclass(frozen=True, eq=False)
class Factorisation:
    """Inverse of the shared matrix with what every problem needs to correct it.

    Args:
        inverse: P, shape ``(n, n)``.
        rows: Rows of P at the candidates left out, the positive first, shape ``(B, m, n)``.
        excluded: Indices of those rows, shape ``(B, m)``.
        keep: Mask of the negatives, shape ``(B, n)``.
        small: Inverse of each problem's small system, shape ``(B, m + 1, m + 1)``.
        kappa: Ridge seen by the positive, shape ``(B,)``.
        ridge: beta, the total ridge of the factorised matrix, including what had to be added.
        retries: Failed attempts before this one.
        extra_ridge: What had to be added to the ridge that was asked for.
    """

    inverse: Tensor
    rows: Tensor
    excluded: Tensor
    keep: Tensor
    small: Tensor
    kappa: Tensor
    ridge: float
    retries: int
    extra_ridge: float

    def select(self, index: Tensor) -> Factorisation:
        """Return the part for the given problems, ``index`` of shape ``(b,)``; shares the inverse."""
        parts = (self.rows, self.excluded, self.keep, self.small, self.kappa)
        rows, excluded, keep, small, kappa = (part[index] for part in parts)
        return Factorisation(
            self.inverse, rows, excluded, keep, small, kappa, self.ridge, self.retries, self.extra_ridge
        )

    def solve(self, rhs: Tensor) -> Tensor:
        """Solve every problem, ``rhs`` of shape ``(B, n)`` and zero off the negatives; returns ``(B, n)``."""
        head = rhs @ self.inverse
        weights, theta = self._corrections(head.gather(1, self.excluded), rhs.sum(1))
        return self._combine(head.add_(theta[:, None]), weights)

    def solve_constant(self, value: float) -> Tensor:
        """Solve with ``value`` at every negative, ``(B, n)``: needs no product, since P 1 is known."""
        mean = value / (1 + self.ridge)
        inner = self.rows.gather(2, self.excluded[:, None, :].expand(-1, self.excluded.shape[1], -1))
        head = mean - value * inner.sum(1)
        negatives = self.inverse.shape[0] - self.excluded.shape[1]
        weights, theta = self._corrections(head, head.new_full((len(head),), value * negatives))
        return self._combine((theta + mean)[:, None].expand(-1, self.inverse.shape[0]), weights - value)

    def _corrections(self, at_excluded: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the rows of P, ``(B, m)``, and theta, ``(B,)``."""
        conditions = torch.cat([at_excluded, total[:, None]], dim=1)
        unknowns = (self.small @ conditions[:, :, None]).squeeze(2).neg_()
        weights, theta = unknowns[:, :-1], unknowns[:, -1]
        weights[:, 0] *= self.kappa
        return weights, theta

    def _combine(self, head: Tensor, weights: Tensor) -> Tensor:
        """Add the weighted rows of P to ``head`` and leave the negatives only."""
        for j in range(weights.shape[1]):
            head = torch.addcmul(head, weights[:, j : j + 1], self.rows[:, j])
        return head * self.keep


def factorise(
    gram: Tensor,
    excluded: Tensor,
    ridge: float,
    *,
    diag_correction: Tensor,
    allow_indefinite: bool = False,
    allow_ridge: bool = True,
    kernel_name: str = "the kernel",
) -> Factorisation:
    """Invert ``gram + ridge I`` and prepare the corrections of every problem.

    Cholesky in the dtype of ``gram``; if that fails, in float64; then either a general inverse (an
    indefinite kernel) or a larger ridge. What was needed is recorded in the result.

    Args:
        gram: Centred kernel matrix, shape ``(n, n)``, with ``gram @ 1 = 1``.
        excluded: Candidates left out of each problem, the positive first, shape ``(B, m)``.
        ridge: Total ridge, >= 0.
        diag_correction: Correction of k(x+, x+), shape ``(B,)``.
        allow_indefinite: Whether a general inverse may stand in for Cholesky.
        allow_ridge: Whether the ridge may be enlarged.
        kernel_name: What the error message calls the kernel.

    Raises:
        NumericalError: If no permitted attempt succeeds.
        ConfigError: If the ridge is no number in the precision of ``gram``.
    """
    if ridge > torch.finfo(gram.dtype).max:
        raise ConfigError(
            f"a ridge of {ridge:g} (reg, plus rho of the Exact solver) is too large for {gram.dtype}"
        )
    inverse, retries, extra = _invert(gram, ridge, allow_indefinite, allow_ridge, kernel_name)
    ridge = ridge + extra
    B, m = excluded.shape
    rows = inverse[excluded]
    kappa = ridge - diag_correction
    system = gram.new_ones((B, m + 1, m + 1), dtype=torch.float64)
    system[:, :m, :m] = rows.gather(2, excluded[:, None, :].expand(-1, m, -1))
    system[:, :, 0] *= kappa[:, None]
    system[:, 0, 0] -= 1
    system[:, m, m] = len(gram) * (1 + ridge)
    keep = gram.new_ones(B, len(gram)).scatter_(1, excluded, 0.0)
    small = torch.linalg.inv(system).to(gram.dtype)
    return Factorisation(inverse, rows, excluded, keep, small, kappa, ridge, retries, extra)


def _invert(
    gram: Tensor, ridge: float, allow_indefinite: bool, allow_ridge: bool, kernel_name: str
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
    raise NumericalError(
        f"K + {ridge:g} I is not positive definite for {kernel_name}, even in float64: raise reg (or the "
        "solver's rho), use a positive semi-definite kernel such as RBF, or ProjectedGradient with a finite C"
    )


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
