"""Retrieval: is one of the nearest training items of the query's class?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmcl_lightning._options import check_flags, check_whole
from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.metrics._neighbours import BANK_CHUNK_SIZE, CHUNK_SIZE, nearest
from mmcl_lightning.metrics._rows import float32_rows, without_autocast
from mmcl_lightning.metrics._topk import split_keys

__all__ = ["recall_at_k"]


@torch.no_grad()
def recall_at_k(
    query: Tensor,
    query_labels: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    ks: Sequence[int] = (1, 5, 10, 20, 50),
    *,
    center: bool = True,
) -> dict[int, float]:
    """Return the share of queries of whose k nearest rows of the bank at least one has their class.

    Source: the published code of CoCLR (Han et al., NeurIPS 2020), where training and test features each lose
    their own mean before the cosine is taken.

    Args:
        query: Features ``(Q, F)``.
        query_labels: Labels ``(Q,)``; queries with a negative one are skipped.
        bank: Features ``(N, F)``.
        bank_labels: Labels ``(N,)``; rows with a negative one are skipped.
        ks: Numbers of neighbours, >= 1; a smaller bank is taken whole.
        center: Subtract the mean of the queries from the queries, and that of the bank from the bank.

    Returns:
        The share in [0, 1] for each k.

    Raises:
        DataError: If no query or no row of the bank is labelled.
        ConfigError, NumericalError, ShapeError: If an option, a feature or a shape cannot be used.
    """
    check_flags(center=center)
    for k in ks:
        check_whole(1, ks=k)
    if query.ndim != 2 or bank.ndim != 2 or query.shape[1] != bank.shape[1]:
        raise ShapeError(
            f"expected query (Q, F) and bank (N, F), got {tuple(query.shape)} and {tuple(bank.shape)}"
        )
    query, targets = query[query_labels >= 0].float(), query_labels[query_labels >= 0]
    bank, labels = bank[bank_labels >= 0].float(), bank_labels[bank_labels >= 0]
    if not len(query) or not len(bank):
        raise DataError(
            f"retrieval needs labels, and {len(query)} queries and {len(bank)} of the bank have one"
        )
    if center:
        query, bank = query - query.mean(dim=0), bank - bank.mean(dim=0)
    bank = float32_rows(bank, normalize=True, name="bank")
    hits = torch.zeros(max(ks), dtype=torch.int64)
    with without_autocast(query.device):
        for start in range(0, len(query), CHUNK_SIZE):
            rows = float32_rows(query[start : start + CHUNK_SIZE], normalize=True, name="query")
            keys = nearest(rows, bank, None, labels, None, min(max(ks), len(bank)), BANK_CHUNK_SIZE)
            right = labels.to(rows.device)[split_keys(keys)[1]] == targets[start : start + CHUNK_SIZE, None]
            found = right.cummax(dim=1).values.sum(dim=0).cpu()
            hits[: len(found)] += found
            hits[len(found) :] += found[-1]
    return {k: hits[k - 1].item() / len(query) for k in ks}
