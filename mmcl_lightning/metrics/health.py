"""Signs of a healthy or collapsed representation: effective rank, alignment, uniformity, spread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.metrics._rows import float32_rows

__all__ = ["EffectiveRank", "alignment", "feature_std", "rankme", "uniformity"]


@dataclass(frozen=True)
class EffectiveRank:
    """Effective rank of a feature matrix beside the most it could have been.

    Args:
        value: Effective rank, about 1 (collapse to a line) to ``ceiling``.
        ceiling: min(N, F). With fewer images than features it is the sample, not the network, that
            bounds the rank: compare values of equal N, and take N > F.
    """

    value: float
    ceiling: int


@torch.no_grad()
def rankme(features: Tensor, *, eps: float = 1e-7, chunk_size: int = 4096) -> EffectiveRank:
    r"""Effective rank of features (RankMe: Garrido et al., ICML 2023, arXiv:2210.02885).

    With singular values :math:`\sigma_k` of the ``(N, F)`` matrix, not centred, and
    :math:`p_k = \sigma_k / \sum_l \sigma_l + \epsilon`, the value is :math:`\exp(-\sum_k p_k \log p_k)`.
    The :math:`\sigma_k` are roots of the eigenvalues of the smaller Gram matrix, in float64: seconds where a
    singular value decomposition takes minutes. Values below 1e-8 of the largest are rounding, and count as
    little there.

    Args:
        features: Features ``(N, F)``, N, F >= 1. The article uses 25,600 training images.
        eps: Added to every p, >= 0.
        chunk_size: Rows that are copied to float64 at a time (used when N > F).

    Returns:
        Value and ceiling. All-zero features have the value 1.
    """
    _check_rows(features, minimum=1)
    rows = float32_rows(features, normalize=False, name="health")
    if len(rows) <= rows.shape[1]:
        wide = rows.double()
        gram = wide @ wide.T
    else:
        gram = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), chunk_size):
            chunk = rows[start : start + chunk_size].double()
            gram.addmm_(chunk.T, chunk)
    sigma = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    total = sigma.sum()
    if total == 0:
        return EffectiveRank(value=1.0, ceiling=min(rows.shape))
    p = sigma / total + eps
    return EffectiveRank(value=torch.special.entr(p).sum().exp().item(), ceiling=min(rows.shape))


@torch.no_grad()
def alignment(z0: Tensor, z1: Tensor, *, alpha: float = 2.0, normalize: bool = True) -> Tensor:
    r"""Mean distance of positives, :math:`\mathrm{mean}_i \|z^0_i - z^1_i\|^\alpha` (0 is best).

    Source: Wang & Isola, ICML 2020, arXiv:2005.10242; alpha = 2 there.

    Args:
        z0: Features of one view ``(N, D)``.
        z1: Features of the other view ``(N, D)``, row i of the same image.
        alpha: Power of the distance, > 0.
        normalize: Bring rows to unit length; the article's features are.

    Returns:
        Scalar, float32.
    """
    if z0.shape != z1.shape:
        raise ShapeError(f"Expected two views of one shape, got {tuple(z0.shape)} and {tuple(z1.shape)}.")
    if alpha <= 0:
        raise ConfigError(f"alpha must be > 0, got {alpha}.")
    _check_rows(z0, minimum=1)
    difference = float32_rows(z0, normalize, "health") - float32_rows(z1, normalize, "health")
    distance: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return distance.pow(alpha).mean()


@torch.no_grad()
def uniformity(z: Tensor, *, t: float = 2.0, normalize: bool = True, chunk_size: int = 1024) -> Tensor:
    r"""Log of the mean Gaussian potential, :math:`\log \mathrm{mean}_{i<j} \exp(-t \|z_i - z_j\|^2)`.

    0 when all features are equal, near -2t when they are spread over a sphere of many dimensions.
    Source: Wang & Isola, ICML 2020, arXiv:2005.10242; t = 2 there. Cost N^2 D, memory ``chunk_size^2``.

    Args:
        z: Features ``(N, D)``, N >= 2.
        t: Sharpness of the potential, > 0.
        normalize: Bring rows to unit length; the article's features are.
        chunk_size: Rows and columns of a block of distances.

    Returns:
        Scalar, float32.
    """
    _check_rows(z, minimum=2)
    if t <= 0:
        raise ConfigError(f"t must be > 0, got {t}.")
    # In float64: |a|^2 + |b|^2 - 2ab cancels, and long un-normalised rows would lose their distances.
    rows = float32_rows(z, normalize, "health").double()
    logs = []
    for i in range(0, len(rows), chunk_size):
        a = rows[i : i + chunk_size]
        for j in range(i, len(rows), chunk_size):
            b = rows[j : j + chunk_size]
            potential = -t * (_squared(a)[:, None] + _squared(b) - 2 * a @ b.T).clamp_min(0)
            if i == j:  # each pair once, no point with itself
                pairs = torch.ones_like(potential, dtype=torch.bool).triu(diagonal=1)
                potential = potential.masked_fill(~pairs, -torch.inf)
            logs.append(potential.flatten().logsumexp(0))
    pair_count = len(rows) * (len(rows) - 1) / 2
    return (torch.stack(logs).logsumexp(0) - math.log(pair_count)).float()


@torch.no_grad()
def feature_std(z: Tensor, *, normalize: bool = True) -> Tensor:
    r"""Mean over dimensions of the standard deviation over images (Chen & He 2021, arXiv:2011.10566).

    With unit rows: 0 when all features are equal, about :math:`1/\sqrt D` when they are spread.

    Args:
        z: Features ``(N, D)``, N >= 2.
        normalize: Bring rows to unit length.

    Returns:
        Scalar, float32.
    """
    _check_rows(z, minimum=2)
    return float32_rows(z, normalize, "health").std(dim=0).mean()


def _squared(rows: Tensor) -> Tensor:
    return rows.square().sum(dim=1)


def _check_rows(features: Tensor, minimum: int) -> None:
    if features.ndim != 2 or len(features) < minimum or features.shape[1] < 1:
        raise ShapeError(f"Expected features (N, F) with N >= {minimum}, got {tuple(features.shape)}.")
