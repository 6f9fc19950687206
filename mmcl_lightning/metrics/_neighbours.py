"""The steps of a k-NN readout: neighbours of a block of queries, their votes, the rank of the true class."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.metrics._topk import merge_top_k, no_neighbours, split_keys

__all__ = ["BANK_CHUNK_SIZE", "CHUNK_SIZE", "add_votes", "nearest", "rank_of_target"]

# Queries and bank rows per block: 128 MiB of similarities. On a CPU larger blocks gain nothing, and smaller
# ones cost merges.
CHUNK_SIZE = 1024
BANK_CHUNK_SIZE = 32768


def nearest(
    rows: Tensor,
    bank: Tensor,
    scale: Tensor | None,
    labels: Tensor,
    index: Tensor | None,
    k: int,
    bank_chunk_size: int,
) -> Tensor:
    """Find the k most similar labelled rows of the bank.

    Args:
        rows: Queries ``(Q, F)``, float32.
        bank: Features ``(N, F)``, any floating dtype, any device.
        scale: Factors of the bank's rows ``(N,)``, or None for 1.
        labels: Labels of the bank ``(N,)``; rows with a negative one are left out.
        index: Numbers of the bank's rows ``(N,)``; None for 0, 1, ...
        k: Neighbours per query.
        bank_chunk_size: Rows of the bank per block.

    Returns:
        Keys of at most k neighbours ``(Q, m)``, nearest first; see ``_topk``.
    """
    best = no_neighbours(len(rows), rows.device)
    for start in range(0, len(bank), bank_chunk_size):
        stop = start + bank_chunk_size
        kept = start + (labels[start:stop] >= 0).nonzero().squeeze(1)
        if len(kept) == 0:
            continue
        chunk = bank[start:stop]
        if len(kept) < len(chunk):
            chunk = chunk[(kept - start).to(chunk.device)]
        similarity = rows @ chunk.to(rows.device).float().T
        if scale is not None:
            # Scaling the products, not the bank: a float32 bank is used in place, at every query block.
            similarity *= scale[kept.to(scale.device)].to(rows.device)
        number = kept if index is None else index[kept.to(index.device)]
        best = merge_top_k(best, similarity, number.to(rows.device), k)
    return best


def add_votes(scores: Tensor, keys: Tensor, labels: Tensor, temperature: float) -> None:
    """Add the votes of neighbours to the scores of classes.

    Args:
        scores: Scores ``(Q, C)`` to add to.
        keys: Keys of the neighbours ``(Q, k)``, nearest first.
        labels: Labels ``(N,)`` by the number of the bank's row.
        temperature: T of the weights exp(s / T).
    """
    similarity, index = split_keys(keys)
    # Keys are in falling order, so column 0 is the nearest: its weight is 1 and no weight overflows. One
    # that underflows stays a vote.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    weights = weights.clamp_min(torch.finfo(weights.dtype).tiny)
    row = torch.arange(len(keys), device=keys.device).unsqueeze(1)
    cell = row * scores.shape[1] + labels[index]
    # In one dimension scatter_add_ has a deterministic form on CUDA.
    scores.view(-1).scatter_add_(0, cell.reshape(-1), weights.reshape(-1))


def rank_of_target(scores: Tensor, targets: Tensor) -> Tensor:
    """Return how many classes come before the true one ``(Q,)``; huge where that has no vote."""
    target_score = scores.gather(1, targets.unsqueeze(1))
    lower_class = torch.arange(scores.shape[1], device=scores.device) < targets.unsqueeze(1)
    ahead = (scores > target_score) | ((scores == target_score) & lower_class)
    voted = target_score.squeeze(1) > 0
    return torch.where(voted, ahead.sum(dim=1), torch.iinfo(torch.int64).max)
