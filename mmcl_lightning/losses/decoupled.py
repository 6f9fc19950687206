"""The decoupled contrastive loss: NT-Xent without the positive in the denominator."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning._options import check_number
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weighted import WeightedContrastiveLoss

__all__ = ["DecoupledLoss"]


class DecoupledLoss(WeightedContrastiveLoss):
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
        super().__init__(form="log", temperature=temperature, normalize=normalize, gather=gather)
        if sigma is not None:
            check_number("sigma", sigma, "> 0", also="None for equal weights")
        self.sigma = sigma

    def _combine(self, positive: Tensor, log_sum: Tensor, contrast: Contrast) -> Tensor:
        if self.sigma is not None:
            positive = self._weights_of_positives(contrast, self.sigma) * positive
        return super()._combine(positive, log_sum, contrast)

    @staticmethod
    @torch.no_grad()
    def _weights_of_positives(contrast: Contrast, sigma: float) -> Tensor:
        """Weights of the anchors' positives, shape ``(R,)``; over all images their mean is 1."""
        views = contrast.candidates.view(2, contrast.images, -1)
        similarity = (views[0] * views[1]).sum(1)  # (G,), alike for both views of an image
        weights = 2 - contrast.images * (similarity / sigma).softmax(0)
        return weights[contrast.positive % contrast.images]
