"""Encode a batch in chunks, so that its activations need not fit in memory at once.

The negatives of a contrastive loss come from one batch, so accumulating gradients over small batches does
not give more of them. Here the whole batch enters one loss, but the network sees a chunk at a time: a first
pass keeps projections only, and the backward pass runs each chunk again before it needs its activations.
The gradient is that of the whole batch; the price is a second forward pass.

The idea is that of Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"
(GradCache), 2021, arXiv:2101.06983, expressed by non-reentrant activation checkpointing, so that mixed
precision and DistributedDataParallel work as they do without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from mmcl_lightning.views import concatenate, split

__all__ = ["encode_in_chunks"]


def encode_in_chunks(
    encode: Callable[[Any], tuple[Tensor, Tensor]],
    views: list[Any],
    chunk_size: int,
    modules: list[nn.Module],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Encode views, ``chunk_size`` items with all their views at a time.

    Batch norm sees a chunk as its batch, so its statistics, and with them the gradient, differ from those of
    one pass unless it is frozen or replaced; running statistics move once per chunk. Random states are
    restored for the second run of a chunk.

    Args:
        encode: From a view of b items to h ``(b, F)`` and projections ``(b, D)``.
        views: Views of the same B items; two in most losses.
        chunk_size: Items per chunk, >= 1; each brings all its views.
        modules: What ``encode`` runs through, to keep running statistics from moving twice.

    Returns:
        h ``(B, F)`` of each view, and projections ``(B, D)`` of each view.
    """

    def contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        return contextlib.nullcontext(), _running_statistics_held(modules)

    hs, zs = [], []
    for chunk in zip(*(split(view, chunk_size) for view in views), strict=True):
        h, z = checkpoint(encode, concatenate(*chunk), use_reentrant=False, context_fn=contexts)
        hs.append(h.chunk(len(views)))
        zs.append(z.chunk(len(views)))
    return _joined(hs), _joined(zs)


def _joined(chunks: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the rows of each view, from the views' rows of each chunk."""
    return tuple(torch.cat(view) for view in zip(*chunks, strict=True))


@contextlib.contextmanager
def _running_statistics_held(modules: list[nn.Module]) -> Iterator[None]:
    """Keep running statistics of normalisation layers as they are: the second run of a chunk."""
    layers = [m for root in modules for m in root.modules() if isinstance(m, _NormBase) and m.training]
    momenta = [m.momentum for m in layers]
    counts = [None if m.num_batches_tracked is None else m.num_batches_tracked.clone() for m in layers]
    try:
        for m in layers:
            m.momentum = 0.0  # removing the statistics instead would change what autograd saves
        yield
    finally:
        for m, momentum, count in zip(layers, momenta, counts, strict=True):
            m.momentum = momentum
            if m.num_batches_tracked is not None and count is not None:
                m.num_batches_tracked.copy_(count)
