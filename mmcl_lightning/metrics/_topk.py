"""Exact running top-k of similarities: the same neighbours however the bank is cut into chunks.

``torch.topk`` picks any of several equal values, so a merge of its results would depend on the chunks. Here a
neighbour is one int64 key, the similarity's bits in order-preserving form above the complement of its bank
index. Keys are distinct, and a larger key is a more similar neighbour or, of equal ones, an earlier row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["merge_top_k", "no_neighbours", "split_keys"]

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def no_neighbours(num_queries: int, device: torch.device) -> Tensor:
    """Return the empty start of a running top-k, keys ``(Q, 0)``."""
    return torch.empty(num_queries, 0, dtype=torch.int64, device=device)


def merge_top_k(best: Tensor, similarity: Tensor, index: Tensor, k: int) -> Tensor:
    """Merge one chunk of the bank into a running top-k.

    Args:
        best: Keys so far ``(Q, m)``, m <= k.
        similarity: Similarities to the chunk ``(Q, n)``, float32.
        index: Bank rows of the chunk ``(n,)``, int64, below 2^32, rising.
        k: Neighbours to keep, >= 1.

    Returns:
        Keys ``(Q, min(k, m + n))`` in falling order.
    """
    candidates = torch.cat([best, _chunk_keys(similarity, index, k)], dim=1)
    return candidates.topk(min(k, candidates.shape[1]), dim=1).values


def split_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the similarities (float32) and bank rows (int64) of keys, each of the keys' shape."""
    bits = _ordered_bits((keys >> _INDEX_BITS).to(torch.int32))
    return bits.view(torch.float32), _INDEX_MASK - (keys & _INDEX_MASK)


def _chunk_keys(similarity: Tensor, index: Tensor, k: int) -> Tensor:
    if k >= similarity.shape[1]:
        return _keys(similarity, index.expand_as(similarity))
    # Keys of all n columns cost several times the product that made them. So: topk in floats, keys of the
    # survivors, and only the rows whose k-th value equals the next one are ranked by full keys.
    values, columns = _top_values(similarity, k + 1)
    keys = _keys(values[:, :k], index[columns[:, :k]])
    tied = (values[:, k - 1] == values[:, k]).nonzero().squeeze(1)
    if len(tied) > 0:
        rows = similarity[tied]
        keys[tied] = _keys(rows, index.expand_as(rows)).topk(k, dim=1).values
    return keys


def _top_values(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their columns, as topk does, in two thirds of its time.

    The columns form a grid of equally many groups per row. What is left out of the k groups with the largest
    maxima is no larger than k values that are in them.
    """
    n = similarity.shape[1]
    size = 1 << max(0, round(math.log2(n / k) / 2))  # of a group; as many maxima as candidates
    groups = n // size
    if size < 4 or similarity.device.type != "cpu":
        return similarity.topk(k, dim=1)
    grid = similarity[:, : groups * size].unflatten(1, (size, groups))
    chosen = grid.amax(dim=1).topk(k, dim=1, sorted=False).indices
    candidates = grid.gather(2, chosen.unsqueeze(1).expand(-1, size, -1)).flatten(1)
    if groups * size < n:  # fewer columns than there are groups belong to none
        candidates = torch.cat([candidates, similarity[:, groups * size :]], dim=1)
    values, place = candidates.topk(k, dim=1)
    columns = chosen.gather(1, place % k) + groups * (place // k)
    return values, torch.where(place < size * k, columns, place + (groups - k) * size)


def _keys(similarity: Tensor, index: Tensor) -> Tensor:
    # Adding 0 turns -0 into 0: equal floats must have equal bits.
    bits = (similarity.contiguous() + 0.0).view(torch.int32)
    return (_ordered_bits(bits).to(torch.int64) << _INDEX_BITS) + (_INDEX_MASK - index)


def _ordered_bits(bits: Tensor) -> Tensor:
    # Negative floats grow more negative as their bits grow: flip all but the sign. Its own inverse.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
