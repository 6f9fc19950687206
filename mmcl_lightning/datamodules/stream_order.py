"""Samples of shards in an order that reads every shard from its beginning on, and that a run can go on in.

Which process and which worker reads which samples is planned before anything is read, since the number of
samples of every shard is known: all processes get equally many batches, and nothing comes twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmcl_lightning.datamodules.loading import EpochSampler, mix_seed
from mmcl_lightning.datamodules.sources import IntArray

__all__ = ["StreamOrder", "StreamSampler"]


class StreamOrder:
    """Which samples a process reads in an epoch, and in which order: a function of seed and epoch.

    The shards are put in a random order, and their samples cut into equal parts for the processes, each of
    whole batches, and within these for the workers. Where a cut falls within a shard two of them read it. A
    worker goes through its part with a shuffle buffer, WebDataset's, and the loader takes a batch of each
    worker in turn. Samples have positions, those of the first shard first. A plan takes 8 bytes a sample for
    a moment, and about a microsecond for each that the process trains on.

    Args:
        counts: Number of samples of each shard.
        batch_size: Samples of a batch of one process.
        world_size: Number of processes.
        rank: This one.
        workers: Workers that its loader has, 0 as 1.
        buffer: Samples among which the next one is drawn; 1 leaves the order of the shards' samples.
        seed: The order is a function of it and the epoch.
    """

    def __init__(
        self,
        counts: Sequence[int],
        batch_size: int,
        world_size: int = 1,
        rank: int = 0,
        workers: int = 1,
        buffer: int = 1000,
        seed: int = 0,
    ) -> None:
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.batch_size, self.world_size, self.rank = batch_size, world_size, rank
        self.workers, self.buffer, self.seed = max(1, workers), buffer, seed
        self.earlier: tuple[int, list[tuple[int, int]]] = -1, []
        """An epoch, and the numbers of workers that began it, with how many batches each gave."""

    @property
    def batches(self) -> int:
        """Batches of each process in an epoch."""
        return int(self.starts[-1]) // (self.world_size * self.batch_size)

    @property
    def left_out(self) -> int:
        """Samples of an epoch that no process reads, other ones each time."""
        return int(self.starts[-1]) - self.batches * self.world_size * self.batch_size

    def positions(self, epoch: int) -> IntArray:
        """Return the samples of this process in the order in which its loader gives them."""
        given, parts = self._given(epoch)
        lanes = [self._shuffled(part, epoch).reshape(-1, self.batch_size) for part in parts]
        return np.concatenate([given, _in_turn(lanes)])

    def lane(self, epoch: int, position: int) -> tuple[IntArray, IntArray]:
        """Return what the worker that gives a sample has still to read and to give, from that sample on.

        Returns:
            The samples in the order of the stream, and in that in which they are given.
        """
        for part in self._given(epoch)[1]:
            if (part == position).any():
                order = self._shuffled(part, epoch)
                order = order[np.flatnonzero(order == position)[0] :]
                return part[np.isin(part, order)], order
        return np.array([position]), np.array([position])  # asked for by a foreign sampler

    def _given(self, epoch: int) -> tuple[IntArray, list[IntArray]]:
        """Return what other numbers of workers gave before an interruption, and the parts of these."""
        shards = np.random.default_rng(mix_seed(self.seed, epoch)).permutation(len(self.starts) - 1)
        stream = np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in shards])
        own = self.batches * self.batch_size
        left, given = stream[self.rank * own :][:own], [np.empty(0, dtype=np.int64)]
        for workers, batches in self.earlier[1] if self.earlier[0] == epoch else []:
            lanes = [
                self._shuffled(part, epoch).reshape(-1, self.batch_size) for part in self._cut(left, workers)
            ]
            given.append(_in_turn(lanes)[: batches * self.batch_size])
            left = left[~np.isin(left, given[-1])]
        return np.concatenate(given), self._cut(left, self.workers)

    def _cut(self, stream: IntArray, workers: int) -> list[IntArray]:
        """Cut a stream into parts of whole batches, of which the first may have one more."""
        each, more = divmod(len(stream) // self.batch_size, workers)
        counts = [(each + (worker < more)) * self.batch_size for worker in range(workers)]
        return np.split(stream, np.cumsum(counts)[:-1])

    def _shuffled(self, part: IntArray, epoch: int) -> IntArray:
        if self.buffer == 1 or not len(part):
            return part
        import webdataset

        draws = random.Random(mix_seed(self.seed, epoch, int(part[0])))
        stage = webdataset.shuffle(self.buffer, initial=self.buffer, rng=draws)
        return np.fromiter(stage(iter(part.tolist())), dtype=np.int64, count=len(part))


def _in_turn(lanes: list[IntArray]) -> IntArray:
    """Return the batches of lanes ``(batches, B)``, one of each in turn, as one array of samples."""
    most = max(map(len, lanes))
    rows = [lane[number] for number in range(most) for lane in lanes if number < len(lane)]
    return np.concatenate([np.empty(0, dtype=np.int64), *rows])


class StreamSampler(EpochSampler):
    """Yields the ``(epoch, position)`` keys of a :class:`StreamOrder`.

    Its state is what a run that goes on with another number of workers needs to know.

    Args:
        dataset: The samples.
        order: Which of them this process reads.
    """

    def __init__(self, dataset: Any, order: StreamOrder) -> None:
        super().__init__(dataset, order.world_size, order.rank, seed=order.seed)
        self.order = order
        self.num_samples = order.batches * order.batch_size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        positions = self.order.positions(epoch)[self.skip :]
        return ((epoch, position) for position in positions.tolist())

    def state_of(self, epoch: int, batches: int) -> dict[str, Any]:
        """Return how the batches of an epoch that were given were shared out."""
        order = self.order
        passes = list(order.earlier[1]) if order.earlier[0] == epoch else []
        passes.append((order.workers, batches - sum(count for _, count in passes)))
        return {"passes": passes}

    def plan(self, batch_size: int) -> dict[str, int]:
        """Return what the order of an epoch depends on, but for the number of workers."""
        order = self.order
        return {
            "processes": order.world_size,
            "batch_size": order.batch_size,
            "buffer": order.buffer,
            "seed": order.seed,
            "samples": int(order.starts[-1]),
            "shards": len(order.starts) - 1,
        }

    def load_state(self, state: dict[str, Any], batch_size: int) -> None:
        """Plan the rest of the epoch that a state is of."""
        order = self.order
        passes = [(int(workers), int(count)) for workers, count in state.get("passes", [])]
        if not self._goes_on(state, batch_size, "" if passes else "from no shards"):
            passes = []
        elif passes and passes[-1][0] == order.workers:  # which go on in their own order
            passes.pop()
        order.earlier = state["epoch"], passes
