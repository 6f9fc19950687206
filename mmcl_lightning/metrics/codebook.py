"""Unit normals as a few codes, so that a classifier can predict them."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import DataError, ShapeError

__all__ = ["fit_codebook", "nearest_code"]

_ROUNDS = 100


def fit_codebook(normals: Tensor, codes: int = 40, seed: int = 0) -> Tensor:
    """Return unit vectors that stand for many, by k-means on the sphere.

    The first ones are drawn by k-means++ (Arthur & Vassilvitskii, SODA 2007); then each code is the mean of
    the normals that are nearest to it, made unit, until none changes sides, or 100 times.

    Args:
        normals: Unit vectors ``(N, 3)``.
        codes: Number of codes K.
        seed: The draw is a function of it.

    Returns:
        ``(K, 3)``, float32.

    Raises:
        ShapeError: If the normals are not ``(N, 3)``.
        DataError: If fewer than K of them differ.
    """
    check_whole(2, codes=codes)
    if normals.ndim != 2 or normals.shape[1] != 3:
        raise ShapeError(f"expected normals (N, 3), got {tuple(normals.shape)}")
    points = normals.detach().double().cpu()
    centres = _first_codes(points, codes, seed)
    before = torch.full((len(points),), -1)
    for _ in range(_ROUNDS):
        nearest = (points @ centres.T).argmax(dim=1)
        if torch.equal(nearest, before):
            break
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        lengths = sums.norm(dim=1, keepdim=True)
        # A code that nothing is near to stays where it is.
        centres = torch.where(lengths > 1e-9, sums / lengths.clamp_min(1e-9), centres)
        before = nearest
    return centres.float()


def nearest_code(normals: Tensor, codebook: Tensor) -> Tensor:
    """Return the code nearest to each normal, int64 ``(B, H, W)``, -1 where there is no normal.

    Args:
        normals: Unit vectors ``(B, 3, H, W)``, 0 where a pixel has none.
        codebook: Unit vectors ``(K, 3)``.

    Raises:
        ShapeError: If they have other shapes.
    """
    if normals.ndim != 4 or normals.shape[1] != 3 or codebook.ndim != 2 or codebook.shape[1] != 3:
        raise ShapeError(
            f"expected normals (B, 3, H, W) and a codebook (K, 3), got {tuple(normals.shape)} and "
            f"{tuple(codebook.shape)}"
        )
    codes = torch.einsum("bchw,kc->bkhw", normals, codebook.to(normals)).argmax(dim=1)
    return codes.masked_fill(~normals.any(dim=1), -1)


def _first_codes(points: Tensor, codes: int, seed: int) -> Tensor:
    """Draw codes, each with a probability that grows with the squared distance from those before."""
    generator = torch.Generator().manual_seed(seed)
    chosen: list[Tensor] = []
    distances = torch.ones(len(points), dtype=points.dtype)
    for _ in range(codes):
        total = distances.cumsum(0)
        if not len(points) or total[-1] <= 0:
            raise DataError(
                f"there are only {len(chosen)} different normals, and {codes} codes to find: set "
                "--model.codes, or give --model.codebook"
            )
        drawn = total[-1] * torch.rand((), generator=generator, dtype=points.dtype)
        at = torch.searchsorted(total, drawn, right=True).clamp_max(int((distances > 0).nonzero().max()))
        chosen.append(points[at])
        apart = (points - chosen[-1]).square().sum(dim=1)
        apart = torch.where(apart < 1e-12, 0.0, apart)  # the same normal
        distances = apart if len(chosen) == 1 else torch.minimum(distances, apart)
    return torch.stack(chosen)
