"""The decoupled contrastive loss: NT-Xent without the positive in the denominator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmcl_lightning._options import is_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses.base import Views
from mmcl_lightning.losses.similarity import SimilarityLoss, check_temperature, split

__all__ = ["DecoupledLoss"]


class DecoupledLoss(SimilarityLoss):
    r"""Decoupled contrastive loss, called DCL by its authors: the sum runs over negatives alone.

    In NT-Xent a positive that is near already scales down the gradient of all negatives, the more so the
    smaller the batch. With :math:`s` the cosine, :math:`p(i)` the other view of embedding i of N = 2 B,

    .. math:: L = \frac1N \sum_i \Big( -w_i \, \frac{s_{i, p(i)}}{T}
        + \log \sum_{k \ne i, p(i)} \exp(s_{ik} / T) \Big), \qquad w_i = 1.

    With ``sigma``, positives that are far apart count for more (DCLW):

    .. math:: w_i = 2 - \frac{\exp(s_{i, p(i)} / \sigma)}{\operatorname{mean}_j \exp(s_{j, p(j)} / \sigma)}

    with the mean over the images of all processes, and no gradient through w. Not to be confused with
    :class:`~mmcl_lightning.losses.DebiasedLoss`, which its authors call DCL too. May be negative.

    Source: Yeh et al., "Decoupled Contrastive Learning", ECCV 2022, arXiv:2110.06848, equation 6 and its
    weighted form. Averaged over both views.

    Args:
        temperature: T > 0.
        sigma: Width of the weights of positives, > 0, 0.5 in the paper; ``None`` for equal weights.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If temperature or sigma is not positive.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        sigma: float | None = None,
        *,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(normalize=normalize, gather=gather)
        check_temperature(temperature)
        if sigma is not None and not (is_number(sigma) and 0 < sigma < math.inf):
            raise ConfigError(f"sigma must be > 0, or None for equal weights, got {sigma!r}")
        self.temperature = temperature
        self.sigma = sigma

    def _terms(self, similarity: Tensor, partner: Tensor, views: Views) -> Tensor:
        positive, negatives = split(similarity, partner)
        if self.sigma is not None:
            positive = self._weights(views, self.sigma) * positive
        return (negatives / self.temperature).logsumexp(1) - positive / self.temperature

    @staticmethod
    @torch.no_grad()
    def _weights(views: Views, sigma: float) -> Tensor:
        """Weights of the local anchors' positives, shape ``(2 B,)``; over all images their mean is 1."""
        similarity = (views.all[0] * views.all[1]).sum(1)  # (G,), alike for both views of an image
        weights = 2 - len(similarity) * (similarity / sigma).softmax(0)
        return weights[views.anchors].repeat(2)
