"""The normalised temperature-scaled cross-entropy of SimCLR."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses.base import ContrastiveLoss, Views

__all__ = ["NTXentLoss"]


class NTXentLoss(ContrastiveLoss):
    r"""NT-Xent: tell the other view of an image from all views of all other images.

    With :math:`s` the cosine and :math:`p(i)` the other view of embedding i, of N = 2 B embeddings,

    .. math:: L = -\frac1N \sum_i \log
        \frac{\exp(s_{i, p(i)} / T)}{\sum_{k \ne i} \exp(s_{ik} / T)}

    Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML
    2020, arXiv:2002.05709, equation 1. Averaged over both views (Google's code adds them up: twice this).

    Args:
        temperature: T > 0; 0.1 in the ImageNet recipe, 0.5 in the CIFAR and STL-10 recipes.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If the temperature is not positive.
    """

    def __init__(self, temperature: float = 0.5, *, normalize: bool = True, gather: bool = True):
        super().__init__(normalize=normalize, gather=gather)
        if not temperature > 0:
            raise ConfigError(f"temperature must be > 0, got {temperature}")
        self.temperature = temperature
        self._stats: dict[str, Tensor] = {}

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """Mean cosine of the positives, share of anchors nearest to their positive, negatives per anchor."""
        return self._stats

    def negatives_per_anchor(self, images: int) -> int:
        """Both views of every other image."""
        return 2 * (images - 1)

    def _loss(self, views: Views) -> Tensor:
        local, everyone = torch.cat(views.local), torch.cat(views.all)  # (2 B, D), (2 G, D)
        anchors, images = views.anchors, len(views.all[0])
        logits = local @ everyone.T / self.temperature  # (2 B, 2 G)
        own = torch.cat([anchors, anchors + images])
        positive = torch.cat([anchors + images, anchors])
        # -inf, not a large number: -1e9 overflows half precision and moves the sum in single.
        logits = logits.scatter(1, own[:, None], -torch.inf)
        loss = F.cross_entropy(logits, positive)
        with torch.no_grad():
            at_positive = logits.detach().gather(1, positive[:, None])
            self._stats = {
                "positive_similarity": at_positive.mean() * self.temperature,
                "contrast_top1": (logits.detach().amax(1, keepdim=True) <= at_positive).float().mean(),
                "negatives": torch.tensor(float(self.negatives_per_anchor(images))),
            }
        return loss
