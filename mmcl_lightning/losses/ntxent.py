"""The normalised temperature-scaled cross-entropy of SimCLR."""

from __future__ import annotations

from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import Kernel, Linear
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weighted import WeightedContrastiveLoss

__all__ = ["NTXentLoss"]


class NTXentLoss(WeightedContrastiveLoss):
    r"""NT-Xent: tell the other view of an image from all views of all other images.

    With :math:`s` the cosine and :math:`p(i)` the other view of embedding i, of N = 2 B embeddings,

    .. math:: L = -\frac1N \sum_i \log
        \frac{\exp(s_{i, p(i)} / T)}{\sum_{k \ne i} \exp(s_{ik} / T)}

    Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML
    2020, arXiv:2002.05709, equation 1. Averaged over both views (Google's code adds them up: twice this).

    Args:
        temperature: T > 0; 0.1 in the ImageNet recipe, 0.5 in the CIFAR and STL-10 recipes.
        kernel: Similarity s; ``None`` for ``Linear()``, on unit vectors the cosine. ``Tanh(gamma=1.0)`` is
            the tanh kernel in SimCLR of the MMCL paper's appendix, which prints gamma (0.1 to 10) but no T.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If the temperature is not positive, or ``kernel`` is no kernel.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        *,
        kernel: Kernel | None = None,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(form="nce", temperature=temperature, normalize=normalize, gather=gather)
        self.kernel: Kernel = Linear() if kernel is None else kernel
        if not isinstance(self.kernel, Kernel):
            raise ConfigError(f"expected a Kernel object, such as kernel=Tanh(gamma=1.0), got {kernel!r}")

    def _similarity(self, contrast: Contrast) -> Tensor:
        if isinstance(self.kernel, Linear):
            return contrast.similarity
        candidates = contrast.candidates
        return self.kernel.fit_on_device(candidates.detach())(contrast.anchors, candidates)
