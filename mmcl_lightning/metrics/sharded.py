"""k-NN accuracy where several processes hold a share of the features each; the bank never moves.

The queries are few: they travel, block by block, to all processes. Each finds the nearest rows of its own
part of the bank, and only those neighbours, a number of 8 bytes each, travel back and are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.distributed import gather_objects, gather_uneven, layout
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.metrics._neighbours import (
    BANK_CHUNK_SIZE,
    CHUNK_SIZE,
    add_votes,
    nearest,
    rank_of_target,
)
from mmcl_lightning.metrics._rows import check_norms, reciprocal, row_norms, without_autocast
from mmcl_lightning.metrics.knn import KNNProtocol, effective_k

__all__ = ["FeatureShard", "gather_in_order", "sharded_knn_accuracy"]

_NO_KEY = torch.iinfo(torch.int64).min  # below the key of any neighbour

#: Labels beyond it are no numbers of classes: a vote for each would take all memory.
_MOST_CLASSES = 2**20


@dataclass(frozen=True, eq=False)
class FeatureShard:
    """The rows of a feature matrix that this process holds.

    Args:
        features: Features ``(n, F)``, any floating dtype; n may be 0 and differ between processes.
        labels: Labels ``(n,)``, int64, negative = unlabelled.
        index: Numbers of the rows within the whole ``(n,)``, int64: each of 0 to N - 1 is in one process.
    """

    features: Tensor
    labels: Tensor
    index: Tensor

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or not (len(self.features) == len(self.labels) == len(self.index)):
            raise ShapeError(
                f"Expected features (n, F), labels (n,) and index (n,), got {tuple(self.features.shape)}, "
                f"{tuple(self.labels.shape)} and {tuple(self.index.shape)}."
            )


def gather_in_order(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows of all processes in the order of their numbers.

    Args:
        rows: Rows of this process ``(n, ...)``.
        index: Their numbers ``(n,)``, int64, distinct over all processes.
    """
    counts = gather_objects(len(index))
    order = torch.cat(gather_uneven(index, counts)).argsort()
    return torch.cat(gather_uneven(rows, counts))[order]


@torch.no_grad()
def sharded_knn_accuracy(
    query: FeatureShard,
    bank: FeatureShard,
    num_classes: int | None,
    protocols: Sequence[KNNProtocol],
    *,
    chunk_size: int = CHUNK_SIZE,
    bank_chunk_size: int = BANK_CHUNK_SIZE,
) -> list[dict[str, float]]:
    """Return what :func:`knn_accuracy` says of the whole, for every protocol, on every process.

    One search for neighbours serves all protocols of one similarity. The result is that of one process, up to
    the rounding of similarities: of equally similar rows those with lower numbers come first, whoever holds
    them. Every process has to call it, with the same options. Without a process group nothing travels.

    Beyond its inputs, a process holds labels of the whole bank, ``chunk_size`` queries, and for those
    ``bank_chunk_size + 2 * world_size * k`` numbers each. Works on the device of the queries.

    Args:
        query: This process's queries; those without a label are left out.
        bank: This process's part of the bank, on any device; rows without a label are left out.
        num_classes: C, or None for the largest label + 1.
        protocols: What to compute; ``feature`` and ``name`` are not looked at.
        chunk_size: Queries per block, over all processes, >= 1.
        bank_chunk_size: Rows of the bank per block, >= 1.

    Returns:
        ``top1`` and ``top5`` of each protocol, shares in [0, 1].

    Raises:
        ConfigError: On every process, if an option or a label is outside its range.
        DataError: On every process, if no row of the bank or no query is labelled.
        NumericalError: On every process, if a feature is not finite.
        ShapeError: If query and bank have different widths.
    """
    check_whole(1, chunk_size=chunk_size, bank_chunk_size=bank_chunk_size)
    if query.features.shape[1] != bank.features.shape[1]:
        raise ShapeError(
            f"Expected query (Q, F) and bank (N, F), got {tuple(query.features.shape)} and "
            f"{tuple(bank.features.shape)}."
        )
    device = query.features.device
    labels = gather_in_order(bank.labels.to(device), bank.index.to(device))
    known = (query.labels >= 0).to(device)
    rows = query.features if bool(known.all()) else query.features[known]
    targets = query.labels.to(device)[known]
    total, num_classes = _check_labels(labels, targets, num_classes)
    scales = _agreed_scale(rows, "query"), _agreed_scale(bank.features, "bank")
    hits = torch.zeros(len(protocols), 2, dtype=torch.int64)
    for normalize in (True, False):  # one search each
        chosen = [i for i, protocol in enumerate(protocols) if protocol.normalize == normalize]
        if chosen:
            sides = scales if normalize else (None, None)
            asked = [protocols[i] for i in chosen]
            k = max(protocol.k for protocol in asked)
            with without_autocast(device):
                blocks = _keys(rows, bank, sides, k, labels, chunk_size, bank_chunk_size)
                hits[chosen] = _count(blocks, targets, labels, num_classes, asked)
    everywhere = torch.tensor(gather_objects(hits.tolist())).sum(dim=0)
    return [{"top1": top1 / total, "top5": top5 / total} for top1, top5 in everywhere.tolist()]


def _keys(
    rows: Tensor,
    bank: FeatureShard,
    scales: tuple[Tensor | None, Tensor | None],
    k: int,
    labels: Tensor,
    chunk_size: int,
    bank_chunk_size: int,
) -> Iterator[Tensor]:
    """Yield, for this process's queries block by block, the keys of their neighbours in the whole bank."""
    where, k = layout(), effective_k(k, labels)
    share, lengths = max(1, chunk_size // where.world_size), gather_objects(len(rows))
    for start in range(0, max(lengths), share):  # all processes take equally many turns
        block = rows[start : start + share].float()
        if scales[0] is not None:
            block = block * scales[0][start : start + share, None]
        counts = [min(share, max(0, length - start)) for length in lengths]
        every = torch.cat(gather_uneven(block, counts))
        keys = nearest(every, bank.features, scales[1], bank.labels, bank.index, k, bank_chunk_size)
        # A process with fewer than k labelled rows: all k exist, but elsewhere.
        keys = torch.cat([keys, keys.new_full((len(keys), k - keys.shape[1]), _NO_KEY)], dim=1)
        first = sum(counts[: where.rank])
        found = gather_uneven(keys, [len(every)] * where.world_size)
        parts = [part[first : first + len(block)] for part in found]
        yield torch.cat(parts, dim=1).topk(k, dim=1).values


def _count(
    blocks: Iterable[Tensor], targets: Tensor, labels: Tensor, num_classes: int, protocols: list[KNNProtocol]
) -> Tensor:
    """Count the queries whose class is first, and among the first five, ``(protocols, 2)``."""
    hits, start = torch.zeros(len(protocols), 2, dtype=torch.int64), 0
    for keys in blocks:
        mine = targets[start : start + len(keys)]
        start += len(keys)
        for i, protocol in enumerate(protocols):
            scores = torch.zeros(len(keys), num_classes, device=keys.device)
            add_votes(scores, keys[:, : protocol.k], labels, protocol.temperature)
            rank = rank_of_target(scores, mine)
            hits[i] += torch.stack([(rank < m).sum() for m in (1, 5)]).cpu()
    return hits


def _check_labels(labels: Tensor, targets: Tensor, num_classes: int | None) -> tuple[int, int]:
    """Return the number of queries over all processes, and of classes."""
    found = gather_objects((len(targets), int(targets.max()) if len(targets) else -1))
    total, largest = sum(count for count, _ in found), max(label for _, label in found)
    effective_k(1, labels)  # raises where no row of the bank is labelled
    if total == 0:
        raise DataError("None of the k-NN queries is labelled.")
    if num_classes is None:
        largest = max(largest, int(labels.max()))
        if largest >= _MOST_CLASSES:
            raise DataError(f"a label is {largest}: number the classes from 0, or give num_classes")
        return total, largest + 1
    for side, label in (("the bank", int(labels.max())), ("a query", largest)):
        if label >= num_classes:
            raise ConfigError(f"num_classes={num_classes}, but {side} has label {label}.")
    return total, num_classes


def _agreed_scale(features: Tensor, name: str) -> Tensor:
    """Return the factors that bring rows to unit length, or raise on every process."""
    norms = row_norms(features)
    found = gather_objects((int((~torch.isfinite(norms)).sum()), len(norms)))
    check_norms(sum(bad for bad, _ in found), sum(count for _, count in found), name, features.dtype)
    return reciprocal(norms)
