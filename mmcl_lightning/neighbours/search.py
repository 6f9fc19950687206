"""Search among representations, in blocks: no array of all pairs is made."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.metrics._neighbours import BANK_CHUNK_SIZE, CHUNK_SIZE, nearest
from mmcl_lightning.metrics._rows import inverse_norms
from mmcl_lightning.metrics._topk import split_keys

__all__ = ["near_duplicates", "nearest_neighbours"]

_MOST_PAIRS = 100_000  # of near duplicates; a collapsed network has N^2 / 2


@torch.no_grad()
def nearest_neighbours(features: Tensor, queries: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
    """Find the k other rows of the largest cosine similarity, for some rows of a matrix.

    Args:
        features: Representations ``(N, F)``, N at least 2.
        queries: Which rows to search for, ``(Q,)``, int64.
        k: Neighbours of each, fewer where there are not as many other rows.

    Returns:
        Similarities ``(Q, k)``, float32, the largest first, and the rows that have them, ``(Q, k)``, int64.
        Of equally similar rows the earlier ones come first.

    Raises:
        ConfigError: If k is less than 1.
        DataError: If there is only one row.
        NumericalError: If a feature is not finite.
        ShapeError: If ``features`` is no matrix.
    """
    check_whole(1, k=k)
    scale = _scale(features)
    known = torch.zeros(len(features), dtype=torch.int64)
    found = []
    for block in torch.split(queries, CHUNK_SIZE):
        rows = features[block].float() * scale[block, None]
        keys = nearest(rows, features, scale, known, None, k + 1, BANK_CHUNK_SIZE)
        similarity, index = split_keys(keys)
        similarity[index == block[:, None]] = -torch.inf  # itself
        order = similarity.argsort(dim=1, descending=True, stable=True)[:, : min(k, len(features) - 1)]
        found.append((similarity.gather(1, order).clamp_(-1, 1), index.gather(1, order)))
    similarities, indices = zip(*found, strict=True)
    return torch.cat(similarities), torch.cat(indices)


@torch.no_grad()
def near_duplicates(
    features: Tensor, queries: Tensor, similarity: Tensor, index: Tensor, threshold: float
) -> tuple[Tensor, Tensor] | None:
    """Find all pairs of rows that are at least so similar, one of each pair being a query.

    Args:
        features: Representations ``(N, F)``.
        queries: The rows that were searched for, ``(Q,)``.
        similarity: What :func:`nearest_neighbours` found for them, ``(Q, k)``.
        index: Likewise.
        threshold: Least cosine similarity, in (0, 1].

    Returns:
        The pairs ``(P, 2)``, each once with its smaller row first, and their similarities ``(P,)``, the
        largest first. None where there are more than 100,000.

    Raises:
        ConfigError: If the threshold is out of range.
    """
    check_number("duplicates", threshold, "in (0, 1]")
    scale = _scale(features)
    threshold -= 1e-6  # rounding
    # A query whose last neighbour is no duplicate has them all among its neighbours.
    full = similarity[:, -1] >= threshold
    row, column = (similarity >= threshold).logical_and(~full[:, None]).nonzero(as_tuple=True)
    found = [(queries[row], index[row, column], similarity[row, column])]
    count = len(row)
    for block in torch.split(queries[full], CHUNK_SIZE):
        rows = features[block].float() * scale[block, None]
        for start in range(0, len(features), BANK_CHUNK_SIZE):
            bank = slice(start, start + BANK_CHUNK_SIZE)
            values = (rows @ features[bank].float().T) * scale[bank]
            row, column = (values >= threshold).nonzero(as_tuple=True)
            found.append((block[row], column + start, values[row, column]))
            count += len(row)
            if count > 2 * (_MOST_PAIRS + len(features)):  # each pair twice, and each row with itself
                return None
    first, second, values = (torch.cat(part) for part in zip(*found, strict=True))
    number = torch.minimum(first, second) * len(features) + torch.maximum(first, second)
    other = first != second
    distinct, places = torch.unique(number[other], return_inverse=True)
    best = torch.full((len(distinct),), -1.0).scatter_reduce_(0, places, values[other], "amax")
    if len(distinct) > _MOST_PAIRS:
        return None
    order = best.argsort(descending=True, stable=True)
    pairs = torch.stack([distinct // len(features), distinct % len(features)], dim=1)
    return pairs[order], best[order].clamp(-1, 1)


def _scale(features: Tensor) -> Tensor:
    """Return the factors that bring rows to unit length."""
    if features.ndim != 2:
        raise ShapeError(f"Expected representations (N, F), got {tuple(features.shape)}.")
    if len(features) < 2:
        raise DataError(f"there is {len(features)} image, which has no neighbour: at least 2 are needed")
    return inverse_norms(features, "h")
