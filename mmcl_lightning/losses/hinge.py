"""The hinge loss between positives and negatives."""

from __future__ import annotations

from torch import Tensor

from mmcl_lightning._options import check_number
from mmcl_lightning.losses.base import ContrastiveLoss
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weighted import similarity_stats

__all__ = ["HingeLoss"]


class HingeLoss(ContrastiveLoss):
    r"""Hinge loss: every negative has to be less similar than the positive, by a margin.

    With :math:`s` the cosine, :math:`p(i)` the other view of embedding i and t the margin,

    .. math:: L = \operatorname{mean}_i \operatorname{mean}_{k \ne i, p(i)} [t - s_{i, p(i)} + s_{ik}]_+

    On unit vectors it is half the triplet loss on squared distances with margin 2 t.

    Source: Shah et al., "Max-Margin Contrastive Learning", AAAI 2022, arXiv:2112.11450, preliminaries, after
    Arora et al., ICML 2019, arXiv:1902.09229. Mean instead of sum; the paper prints no margin.

    Args:
        margin: t > 0, in units of the similarity; the paper tunes it by hand, 0.1 to 1 is a range to try.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If the margin is not positive.
    """

    def __init__(self, margin: float = 0.5, *, normalize: bool = True, gather: bool = True):
        super().__init__(normalize=normalize, gather=gather)
        check_number("margin", margin, "> 0", "use 0.1 to 1")
        self.margin = margin

    def _terms(self, contrast: Contrast) -> Tensor:
        self._stats.append(similarity_stats(contrast, contrast.similarity))
        positive = contrast.of_positive(contrast.similarity)
        negatives = contrast.of_negatives(contrast.similarity)
        violation = (self.margin - positive[:, None] + negatives).relu()  # 0 at the two that are -inf
        return violation.sum(1) / contrast.negatives
