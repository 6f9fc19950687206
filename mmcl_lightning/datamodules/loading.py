"""Deterministic, resumable loading: which image comes when, and with which random numbers.

Every view is a function of (seed, epoch, position of the image, number of the view) alone: not of the
number of workers, of the ranks, of the global random state, or of an interruption.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

__all__ = [
    "EpochSampler",
    "EvenSampler",
    "ResumableDataLoader",
    "leave_process_group",
    "mix_seed",
]

_MASK = 2**64 - 1


def mix_seed(*values: int) -> int:
    """Mix integers into one seed of 32 bits, as far as torch's CPU generator reads one.

    Each value goes through the finaliser of SplitMix64 (Steele et al., OOPSLA 2014), so that neighbouring
    seeds, epochs and positions give unrelated streams; a plain sum would give seed 1 in epoch 0 the
    order of seed 0 in epoch 1.
    """
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 32


def leave_process_group(worker_id: int) -> None:
    """Let a worker go on after a Ctrl-C or SIGTERM of the whole process group.

    The main process ends its step first, for which it may need a batch, and then ends its workers itself.
    """
    if hasattr(os, "setpgid"):
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


class EpochSampler(DistributedSampler[Any]):
    """Yields ``(epoch, position)`` keys, the same images for any number of ranks.

    Global batch t holds the same images whether one process loads it or several share it. A subclass of
    torch's DistributedSampler, so that Lightning keeps it and calls :meth:`set_epoch`.

    Args:
        dataset: Anything with a length.
        num_replicas: Number of processes.
        rank: This process, 0 to ``num_replicas - 1``.
        shuffle: A new order in every epoch; otherwise the order of the data set.
        seed: The order is a function of the seed and the epoch.
        fixed_epoch: Stay in epoch 0 whatever :meth:`set_epoch` says, for comparable validations.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int = 1,
        rank: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        fixed_epoch: bool = False,
    ) -> None:
        # drop_last: padding would show some images twice in an epoch, as their own negatives.
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=True)
        self.fixed_epoch = fixed_epoch
        self.skip = 0
        """Samples of this rank to leave out at the start of the next pass; a resumed loader sets it."""

    def state_of(self, epoch: int, batches: int) -> dict[str, Any]:
        """Return what else than these two numbers it takes to go on after so many batches; here nothing."""
        return {}

    def plan(self, batch_size: int) -> dict[str, int]:
        """Return what else the order of an epoch, and its place after some batches, depend on.

        Args:
            batch_size: Samples of a batch of this process.
        """
        samples = len(self.dataset)  # type: ignore[arg-type]
        return {
            "processes": self.num_replicas, "batch_size": batch_size, "seed": self.seed, "samples": samples
        }  # fmt: skip

    def load_state(self, state: dict[str, Any], batch_size: int) -> None:
        """Take the state of a loader in, before the next pass.

        Args:
            state: What the loader's ``state_dict`` gave.
            batch_size: Samples of a batch of this process now.
        """
        self._goes_on(state, batch_size)

    def _goes_on(self, state: dict[str, Any], batch_size: int, otherwise: str = "") -> bool:
        """Whether an epoch goes on with the samples that are left; warn where it does not."""
        plan = self.plan(batch_size).items()
        changed = [f"{name} {state[name]}, now {now}" for name, now in plan if state.get(name, now) != now]
        how = otherwise or (f"with {'; '.join(changed)}" if changed else "")
        if not how or not state["batches"]:
            return True
        from lightning.pytorch.utilities import rank_zero_warn  # which workers that are spawned lack

        rank_zero_warn(
            f"the checkpoint stands within an epoch that was read {how}: some samples of this epoch come "
            "twice or not at all; the same as before would read those that are left"
        )
        return False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the passes that start from now on."""
        self.epoch = 0 if self.fixed_epoch else epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, length = self.epoch, len(self.dataset)  # type: ignore[arg-type]
        if self.shuffle:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
            order = torch.randperm(length, generator=generator).tolist()
        else:
            order = list(range(length))
        mine = order[self.rank : self.total_size : self.num_replicas]
        return iter([(epoch, position) for position in mine[self.skip :]])


class EvenSampler(DistributedSampler[Any]):
    """Yields every position once over all ranks, and fills up so that each rank has equally many.

    Ranks that evaluate together must run equally many batches. A filling is ``~position``, for which
    :class:`EvalDataset` gives the image without its label, so that it is not counted a second time.

    Args:
        dataset: Anything with a length.
        num_replicas: Number of processes.
        rank: This process, 0 to ``num_replicas - 1``.
    """

    def __init__(self, dataset: Any, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)  # type: ignore[arg-type]
        mine = range(self.rank, self.total_size, self.num_replicas)
        return iter([at if at < length else ~(at % length) for at in mine])


class ResumableDataLoader(DataLoader[Any]):
    """A DataLoader that continues an interrupted epoch with the next batch.

    It counts the batches that it handed out, not those that workers prepared ahead. Lightning saves
    :meth:`state_dict` in its checkpoints and restores it for a checkpoint from within an epoch. Batches
    that were seen are skipped in the sampler, so no image of theirs is loaded. The length stays that of
    a full epoch, because Lightning adds the batches that it remembers.
    """

    # Class attributes, not __init__: Lightning builds loaders again from DataLoader's own arguments.
    _epoch = 0
    _delivered = 0
    _pending: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate over the rest of an interrupted epoch, or over a whole one."""
        # A generator, so that nothing happens before the first batch is asked for: Lightning calls iter()
        # before set_epoch(), and eager workers would prepare batches of the wrong epoch after a resume.
        sampler = self.sampler
        epoch = sampler.epoch if isinstance(sampler, EpochSampler) else 0
        pending, self._pending = self._pending, None
        skip = pending[1] if pending is not None and pending[0] == epoch else 0
        if isinstance(sampler, EpochSampler):
            sampler.skip = skip * (self.batch_size or 1)
        self._epoch, self._delivered = epoch, skip
        for batch in super().__iter__():
            self._delivered += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of batches handed out in it, and what the sampler adds."""
        epoch, batches = self._pending or (self._epoch, self._delivered)
        state, sampler = {"epoch": epoch, "batches": batches}, self.sampler
        if not isinstance(sampler, EpochSampler):
            return state
        return state | sampler.plan(self.batch_size or 1) | sampler.state_of(epoch, batches)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after ``state_dict["batches"]`` batches if the next pass is in the same epoch."""
        self._pending = (state_dict["epoch"], state_dict["batches"])
        if isinstance(self.sampler, EpochSampler):
            self.sampler.load_state(state_dict, self.batch_size or 1)
