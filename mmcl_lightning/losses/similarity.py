"""What the losses that compare every projection with every other one have in common."""

from __future__ import annotations

import abc
import inspect
import math

import torch
from torch import Tensor

from mmcl_lightning._options import is_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses.base import ContrastiveLoss, Views

__all__ = ["SimilarityLoss", "check_temperature", "split"]


class SimilarityLoss(ContrastiveLoss):
    """Base of the losses that look at similarities between projections and at nothing else.

    The projections of both views are anchors, 2 B in a process. The positive of an anchor is the other view
    of its image; its negatives are both views of every other image of all processes, 2 (G - 1) for G images.

    Args:
        normalize: Scale every projection to unit length first, so that similarities are cosines.
        gather: Use the images of all processes as candidates.
    """

    def __init__(self, *, normalize: bool = True, gather: bool = True):
        super().__init__(normalize=normalize, gather=gather)
        self._stats: dict[str, Tensor] = {}

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """Mean similarity of positives, share of anchors nearest to theirs, negatives per anchor."""
        return self._stats

    def negatives_per_anchor(self, images: int) -> int:
        """Both views of every other image."""
        return 2 * (images - 1)

    def extra_repr(self) -> str:
        """Options as ``print(module)`` shows them."""
        names = inspect.signature(type(self)).parameters
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names if hasattr(self, name))

    def _loss(self, views: Views) -> Tensor:
        anchors, candidates = torch.cat(views.local), torch.cat(views.all)  # (2 B, D), (2 G, D)
        rows, images = views.anchors, len(views.all[0])
        own, partner = torch.cat([rows, rows + images]), torch.cat([rows + images, rows])
        # -inf, not a large number: -1e9 overflows half precision and moves the sum in single.
        similarity = self._similarity(anchors, candidates).scatter(1, own[:, None], -torch.inf)
        with torch.no_grad():
            positive = similarity.gather(1, partner[:, None])
            self._stats = {
                "positive_similarity": positive.mean(),
                "contrast_top1": (similarity.amax(1, keepdim=True) <= positive).float().mean(),
                "negatives": torch.tensor(float(self.negatives_per_anchor(images))),
            }
        return self._terms(similarity, partner, views).mean()

    def _similarity(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """Similarity of anchors ``(2 B, D)`` to candidates ``(2 G, D)``, shape ``(2 B, 2 G)``."""
        return anchors @ candidates.T

    @abc.abstractmethod
    def _terms(self, similarity: Tensor, partner: Tensor, views: Views) -> Tensor:
        """Loss of every anchor.

        Args:
            similarity: Of anchors to candidates, shape ``(2 B, 2 G)``; ``-inf`` at the anchor itself.
            partner: Index of each anchor's positive among the candidates, shape ``(2 B,)``.
            views: The projections.

        Returns:
            Shape ``(2 B,)``.
        """


def split(similarity: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Separate the positive from the negatives; arguments as of :meth:`SimilarityLoss._terms`.

    Returns:
        Similarity to the positive, shape ``(2 B,)``, and to the negatives, shape ``(2 B, 2 G)`` with ``-inf``
        at the two candidates that are none.
    """
    column = partner[:, None]
    return similarity.gather(1, column).squeeze(1), similarity.scatter(1, column, -torch.inf)


def check_temperature(temperature: float) -> None:
    """Raise :class:`ConfigError` unless similarities can be divided by it."""
    if not (is_number(temperature) and 0 < temperature < math.inf):
        raise ConfigError(f"temperature must be > 0, got {temperature!r}: use 0.1 to 0.5")
