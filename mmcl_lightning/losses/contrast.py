"""Which candidates are the positive and the negatives of every anchor of a batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Contrast"]


@dataclass(frozen=True, eq=False)
class Contrast:
    """``R`` anchors, each to be told from its negatives among ``n`` candidates.

    An anchor z is one view of an image. Its positive x+ is the other view of that image, which is one of the
    candidates. Every candidate that shows another image is a negative.

    Args:
        anchors: z, the projections of this process that are scored, shape ``(R, D)``, with gradient.
        candidates: Projections of all processes, shape ``(n, D)``, with gradient.
        excluded: Candidates that are no negatives of an anchor, the positive in column 0, then the anchor
            itself where it is among the candidates; shape ``(R, m)``, int64, m = 1 or 2.
        images: Number G of images of all processes; n is G or 2 G.
        rows: Where these anchors stand among those of all processes, shape ``(R,)``, int64.
        total_rows: Number of anchors of all processes.
    """

    anchors: Tensor
    candidates: Tensor
    excluded: Tensor
    images: int
    rows: Tensor
    total_rows: int

    @property
    def positive(self) -> Tensor:
        """Index of each anchor's positive among the candidates, shape ``(R,)``."""
        return self.excluded[:, 0]

    @property
    def negatives(self) -> int:
        """Number of negatives of each anchor."""
        return len(self.candidates) - self.excluded.shape[1]

    @property
    def similarity(self) -> Tensor:
        """Scalar product of anchors and candidates, the cosine for unit rows, shape ``(R, n)``."""
        if torch.compiler.is_compiling():  # which finds by itself what is computed twice, but takes no lock
            return self.anchors @ self.candidates.T
        return self._similarity

    @functools.cached_property
    def _similarity(self) -> Tensor:
        return self.anchors @ self.candidates.T

    def of_negatives(self, values: Tensor) -> Tensor:
        """Return ``values`` ``(R, n)`` with ``-inf`` at the candidates that are no negatives.

        ``-inf`` and not a large number: -1e9 overflows half precision and moves a sum in single.
        """
        return values.scatter(1, self.excluded, -torch.inf)

    def of_positive(self, values: Tensor) -> Tensor:
        """Return the entry of ``values`` ``(R, n)`` at each anchor's positive, shape ``(R,)``."""
        return values.gather(1, self.positive[:, None]).squeeze(1)
