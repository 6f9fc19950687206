"""Synthetic negatives from the hardest ones of a queue (MoCHI)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import ConfigError

__all__ = ["HardNegativeMixing", "MixingDraws"]

_PART = 2**24  # numbers of a gathered (queries, pairs, D) array at a time, 64 MiB in float32


@dataclass(frozen=True, eq=False)
class MixingDraws:
    """The random numbers behind the synthetic negatives of some queries.

    Args:
        first: Rank among the hardest of one part of each pair, shape ``(B, pairs)``, int64.
        second: Rank of the other part, shape ``(B, pairs)``, int64.
        share: Share of the first part, in [0, 1), shape ``(B, pairs)``.
        partner: Rank of the negative that the query is mixed with, shape ``(B, with_query)``, int64.
        query_share: Share of the query, in [0, 0.5), shape ``(B, with_query)``.
    """

    first: Tensor
    second: Tensor
    share: Tensor
    partner: Tensor
    query_share: Tensor

    def rows(self, start: int, step: int) -> MixingDraws:
        """Return the draws of every ``step``-th query from ``start`` on, as several processes share them."""
        parts = (self.first, self.second, self.share, self.partner, self.query_share)
        return MixingDraws(*(part[start::step] for part in parts))


@dataclass(frozen=True)
class HardNegativeMixing:
    r"""Mixing of hard negatives (MoCHI): synthetic negatives near the query, of unit length.

    Of the queue, the ``hardest`` negatives of a query q are those most similar to it. ``pairs`` synthetic
    ones mix two of them, :math:`h \propto a\, n_i + (1 - a)\, n_j` with a uniform in [0, 1); ``with_query``
    more mix one with the query itself, :math:`h \propto b\, q + (1 - b)\, n_j` with b uniform in [0, 0.5). No
    gradient flows into a synthetic negative.

    Source: Kalantidis et al., "Hard Negative Mixing for Contrastive Learning", NeurIPS 2020,
    arXiv:2010.01028, equations 3 and 4. No synthetic negative is stored: its similarity to the query follows
    from those of its parts.

    Args:
        hardest: Negatives to mix, N in the paper, at most the size of the queue.
        pairs: Synthetic negatives from two of them, s in the paper.
        with_query: Synthetic negatives from one of them and the query, s' in the paper.

    Raises:
        ConfigError: If a number is not whole or out of range, or both kinds are 0.
    """

    hardest: int = 1024
    pairs: int = 1024
    with_query: int = 128

    def __post_init__(self) -> None:
        check_whole(1, hardest=self.hardest)
        check_whole(0, pairs=self.pairs, with_query=self.with_query)
        if self.pairs == self.with_query == 0:
            raise ConfigError("pairs and with_query are both 0, so there is nothing to mix: leave mixing out")

    def draw(self, queries: int, generator: torch.Generator | None = None) -> MixingDraws:
        """Draw for ``queries`` queries, on the CPU."""
        pairs, mixed = (queries, self.pairs), (queries, self.with_query)
        return MixingDraws(
            first=torch.randint(self.hardest, pairs, generator=generator),
            second=torch.randint(self.hardest, pairs, generator=generator),
            share=torch.rand(pairs, generator=generator),
            partner=torch.randint(self.hardest, mixed, generator=generator),
            query_share=torch.rand(mixed, generator=generator) / 2,
        )

    def similarities(self, query: Tensor, queue: Tensor, similarity: Tensor, draws: MixingDraws) -> Tensor:
        """Return the similarity of each query to its synthetic negatives.

        Args:
            query: Rows of unit length, shape ``(B, D)``, with gradient.
            queue: Rows of unit length, shape ``(K, D)``, without gradient.
            similarity: Their scalar products, shape ``(B, K)``, with gradient.
            draws: Of these queries.

        Returns:
            Shape ``(B, pairs + with_query)``, with gradient to the query.

        Raises:
            ConfigError: If the queue has fewer rows than ``hardest``.
        """
        if self.hardest > len(queue):
            raise ConfigError(
                f"mixing takes the {self.hardest} hardest negatives, and the queue has {len(queue)}: lower "
                "hardest or raise queue_size"
            )
        places = similarity.detach().topk(self.hardest, dim=1).indices  # (B, hardest)
        first, second, partner = (
            places.gather(1, rank.to(places.device, non_blocking=True))
            for rank in (draws.first, draws.second, draws.partner)
        )
        a, b = (share.to(similarity, non_blocking=True) for share in (draws.share, draws.query_share))
        with torch.no_grad():
            length = _mixed_length(a, _pair_products(queue, first, second))
            query_length = _mixed_length(b, similarity.gather(1, partner))
        own = (query * query.detach()).sum(1, keepdim=True)  # 1, with the gradient that it has
        mixed = a * similarity.gather(1, first) + (1 - a) * similarity.gather(1, second)
        with_query = b * own + (1 - b) * similarity.gather(1, partner)
        return torch.cat([mixed / length, with_query / query_length], dim=1)


def _mixed_length(share: Tensor, product: Tensor) -> Tensor:
    """Length of ``share x + (1 - share) y`` for unit vectors with the given scalar product."""
    square = share.square() + (1 - share).square() + 2 * share * (1 - share) * product
    # Two opposite parts can cancel: such a mixture has no direction, and its similarity becomes 0.
    return torch.where(square > torch.finfo(square.dtype).eps, square, torch.inf).sqrt()


def _pair_products(queue: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Scalar products of pairs of rows of the queue, shape ``(B, pairs)``, some queries at a time."""
    step = max(1, _PART // max(1, first.shape[1] * queue.shape[1]))
    parts = [
        (queue[first[at : at + step]] * queue[second[at : at + step]]).sum(2)
        for at in range(0, len(first), step)
    ]
    return torch.cat(parts)
