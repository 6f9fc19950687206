"""The optimum of the box problem by a number of products that is known before: no value is looked at.

A host that asks a GPU whether a problem is done waits for it, longer than the next steps take. So all
problems take all steps, in arrays of fixed shape, and what a problem does is chosen by masks: nothing here
depends on a value, which also lets a compiler or a CUDA graph take it whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.svm.factorisation import Factorisation
from mmcl_lightning.svm.problem import MaxMarginDual

__all__ = ["FixedPath"]

_FIRST = 3  # steps of conjugate gradients in the first round; one more in every other round
_LENGTHS, _RATIO = 3, 0.4  # step lengths that are tried: 1, 0.4, 0.16
_LEAST = 1e-4  # of the largest diagonal entry: below, an entry of the preconditioner would dominate


class FixedPath:
    """Splitting steps, then rounds of Newton steps on the free variables, of ``B`` problems.

    A round takes those variables as free that are inside the box or want to enter it, steps towards their
    minimum by conjugate gradients with the diagonal as preconditioner, goes back into the box along several
    step lengths, which share one product, and takes the best for each problem, or none.

    Args:
        problem: ``B`` problems over ``n`` candidates.
    """

    def __init__(self, problem: MaxMarginDual):
        self.problem = problem
        K, positive = problem.gram, problem.positive
        k = K[positive]  # (B, n)
        c = k.gather(1, positive[:, None]) + problem.diag_correction[:, None]
        # (Delta a)_j = (K a)_j - s k_j - k.a + c s with s the sum of a: the rows that correct K a, and the
        # rows whose products with a are their weights.
        ones = torch.ones_like(k)
        self._rows, self._weights = torch.stack([k, ones], 1), torch.stack([-ones, c - k], 1)
        self._gram = K.clone()
        self._gram.diagonal().add_(problem.reg)
        self._minus_two = K.new_full((len(K),), -2.0)
        diagonal = (self._gram.diagonal() + self._weights[:, 1] - k).abs()
        self._scale = problem.keep / diagonal.clamp_min(_LEAST * diagonal.amax(1, keepdim=True))
        self._lengths = _RATIO ** torch.arange(_LENGTHS, dtype=K.dtype, device=K.device)[:, None]
        self._tiny = K.new_full((1, 1, 1), torch.finfo(K.dtype).tiny)
        self._convex = problem.positive_semidefinite and not problem.assume_unit_diag

    def split(self, factorisation: Factorisation, state: Tensor, count: int, relaxation: float) -> Tensor:
        """Take ``count`` splitting steps from ``state`` ``(B, n)``; see :class:`Exact`."""
        C, keep, rows = self.problem.C, self.problem.keep, factorisation.rows
        basis = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
        rho = factorisation.ridge - self.problem.reg
        constant, scale = keep * (2 * relaxation), keep * (rho * relaxation)
        weights = factorisation.small @ basis
        for _ in range(count):  # candidates that are no negatives have a state too, which nothing reads
            z = state.clamp(0, C)
            rhs = torch.addcmul(constant, scale, torch.add(state, z, alpha=-2), value=-1)
            head = torch.addmm(torch.add(state, z, alpha=-relaxation), rhs, factorisation.inverse)
            correction = (weights @ rhs[:, :, None]).mT
            state = torch.baddbmm(head[:, None], correction, basis).squeeze(1)
        return state

    def gradient(self, points: Tensor) -> Tensor:
        """Gradient at several points per problem, ``(B, t, n)``; not set to 0 off the negatives."""
        B, t, n = points.shape
        head = torch.addmm(self._minus_two, points.reshape(B * t, n), self._gram).view(B, t, n)
        return torch.baddbmm(head, points @ self._weights.mT, self._rows)

    def rounds(self, alpha: Tensor, budget: int) -> tuple[Tensor, Tensor, int]:
        """Take rounds from ``alpha`` ``(B, n)``, of ``budget`` products at most.

        Returns:
            The point found and its gradient, both ``(B, n)``, and the number of products.
        """
        gradient = self.gradient(alpha[:, None]).squeeze(1)
        spent = turn = 0
        while budget - spent >= 2:
            count = min(_FIRST + (turn + 1) // 2, budget - spent - 1)
            alpha, gradient = self._search(alpha, gradient, self._step(alpha, gradient, count))
            spent, turn = spent + count + 1, turn + 1
        return alpha, gradient * self.problem.keep, spent

    def _step(self, alpha: Tensor, gradient: Tensor, count: int) -> Tensor:
        """What to subtract to come towards the minimum over the free variables, ``(B, n)``."""
        room = torch.where(gradient < 0, self.problem.C - alpha, alpha)  # in the direction of descent
        scale = (room > 0) * self._scale
        direction = gradient * scale
        size = self._dot(gradient, direction)
        step = None
        for i in range(count):
            image = self._product(direction)
            curvature = self._dot(direction, image)
            length = size / (curvature if self._convex else curvature.abs_())  # downhill all the same
            step = length * direction if step is None else torch.addcmul(step, length, direction)
            if i + 1 < count:
                gradient = torch.addcmul(gradient, length, image, value=-1)
                scaled, before = gradient * scale, size
                size = self._dot(gradient, scaled)
                direction = torch.addcmul(scaled, size / before, direction)
        assert step is not None
        return step

    def _product(self, direction: Tensor) -> Tensor:
        """``(Delta + reg I)`` times one vector per problem, ``(B, n)``; any value off the negatives."""
        head = (direction @ self._gram)[:, None]
        return torch.baddbmm(head, direction[:, None] @ self._weights.mT, self._rows).squeeze(1)

    def _search(self, alpha: Tensor, gradient: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return each problem's best point along the step, bent into the box, and the gradient there."""
        points = torch.addcmul(alpha[:, None], step[:, None], self._lengths, value=-1)
        points = points.clamp_(0, self.problem.C)
        gradients = self.gradient(points)
        # What a quadratic changes by, free of the cancellation between two objectives.
        change = ((gradients + gradient[:, None]) * (points - alpha[:, None])).sum(2)
        least, index = change.min(1)
        index = index[:, None, None].expand(-1, 1, alpha.shape[1])
        falls = (least < 0)[:, None]  # not where it is nan
        found, there = (every.gather(1, index).squeeze(1) for every in (points, gradients))
        return torch.where(falls, found, alpha), torch.where(falls, there, gradient)

    def _dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Scalar products of the rows, ``(B, n)`` to ``(B, 1)``, never exactly 0, to be divided by."""
        return torch.baddbmm(self._tiny, x[:, None], y[:, :, None]).squeeze(2)
