"""Losses that allow for negatives of the anchor's own class: debiased, and with hard negatives (HCL)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmcl_lightning._options import check_number
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weighted import WeightedContrastiveLoss
from mmcl_lightning.losses.weights import Hard, Uniform

__all__ = ["DebiasedLoss", "HCLLoss"]


class DebiasedLoss(WeightedContrastiveLoss):
    r"""Debiased contrastive loss, called DCL by its authors: some negatives are of the anchor's own class.

    If that share is :math:`\tau^+`, and the positive stands for its class, the sum over true negatives can be
    estimated. With :math:`s` the cosine, :math:`p(i)` the other view of embedding i and n negatives,

    .. math:: L = -\operatorname{mean}_i \log \frac{e^{s_{i, p(i)} / T}}{e^{s_{i, p(i)} / T} + G_i}, \quad
        G_i = \max\Big( \frac{\sum_k e^{s_{ik} / T} - n \tau^+ e^{s_{i, p(i)} / T}}{1 - \tau^+},\;
        n\, e^{-1 / T} \Big).

    The second term is the least that the sum can be for unit vectors. :math:`\tau^+ = 0` is NT-Xent. Not
    to be confused with :class:`~mmcl_lightning.losses.DecoupledLoss`, which its authors call DCL too.

    Source: Chuang et al., "Debiased Contrastive Learning", NeurIPS 2020, arXiv:2007.00224, with one positive
    per anchor (M = 1), as in the published code.

    Args:
        temperature: T > 0; 0.5 in the published code.
        tau_plus: Share of negatives of the anchor's own class, in [0, 1); 0.1 for ten classes.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If the temperature is not positive or ``tau_plus`` no share.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        tau_plus: float = 0.1,
        *,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(form="nce", temperature=temperature, normalize=normalize, gather=gather)
        check_number("tau_plus", tau_plus, "in [0, 1)", "it is a share of the negatives")
        self.tau_plus = tau_plus

    def _combine(self, positive: Tensor, log_sum: Tensor, contrast: Contrast) -> Tensor:
        # By logarithms throughout: a difference of large numbers loses the gradient where positives lead.
        n = contrast.negatives
        estimate = log_sum
        if self.tau_plus > 0:
            share = math.log(n * self.tau_plus) + positive - log_sum  # of the sum, that is false negatives
            some = share < 0
            left = (-torch.expm1(torch.where(some, share, -1.0))).log() - math.log1p(-self.tau_plus)
            estimate = torch.where(some, log_sum + left, -torch.inf)
        least = torch.full_like(estimate, math.log(n) - 1 / self.temperature)
        return super()._combine(positive, torch.maximum(estimate, least), contrast)


class HCLLoss(DebiasedLoss):
    r"""Contrast with hard negatives (HCL): the debiased loss, where nearer negatives count for more.

    The sum over negatives of :class:`DebiasedLoss` becomes

    .. math:: \frac{\sum_k w_{ik} e^{s_{ik} / T}}{\operatorname{mean}_k w_{ik}}, \qquad
        w_{ik} = e^{\beta s_{ik} / T},

    with gradient through w, as in the published code. :math:`\beta = 0` is the debiased loss.

    Source: Robinson et al., "Contrastive Learning with Hard Negative Samples", ICLR 2021, arXiv:2010.04592.
    :math:`\beta` multiplies s / T, as in the published code.

    Args:
        temperature: T > 0; 0.5 in the published code.
        tau_plus: Share of negatives of the anchor's own class, in [0, 1); 0.1 for ten classes.
        beta: Concentration on near negatives, >= 0; 1 for STL-10 in the published code.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Raises:
        ConfigError: If the temperature is not positive, ``tau_plus`` no share or ``beta`` negative.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        tau_plus: float = 0.1,
        beta: float = 1.0,
        *,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(temperature, tau_plus, normalize=normalize, gather=gather)
        check_number("beta", beta, ">= 0", "0 weighs all negatives alike")
        self.beta = beta
        self.weights = Hard(beta / temperature) if beta > 0 else Uniform()
