"""Which batches of a loader are this process's."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from mmcl_lightning.distributed import broadcast_object, layout

__all__ = ["every_nth", "first_batches", "share_batches"]

#: Loaders made from others, with the positions that they have, for as long as the others live: a loader whose
#: workers persist is to find them again.
_MADE: WeakKeyDictionary[DataLoader[Any], dict[Any, tuple[Any, DataLoader[Any]]]] = WeakKeyDictionary()


def share_batches(loader: Iterable[Any], limit: int | None = None) -> tuple[Iterable[Any], int | None]:
    """Return this process's share of the batches of a loader, and how many rows they have, where known.

    Batch i goes to process i modulo the number of processes, whole, so that the same images pass the network
    together as in one process. A DataLoader over a data set with positions is made again with its share of
    the positions that the first process's sampler gives; a DistributedSampler, which may repeat images to
    make even shares, is replaced by all positions in order. Of any other iterable each process loads all
    batches and keeps its own, so every process has to be given the same batches.

    Args:
        loader: The loader that has the whole.
        limit: Take about this many images, evenly spaced; None, or where the loader has no positions: all.
    """
    where = layout()
    if not _has_positions(loader):
        return islice(loader, where.rank, None, where.world_size), None
    assert isinstance(loader, DataLoader)
    if where.world_size == 1 and limit is None:
        return loader, _row_count(loader)
    units = broadcast_object(_units(loader) if where.rank == 0 else [])
    if limit is not None and loader.batch_sampler is not None:
        units = _thin(units, limit)
    units = units[where.rank :: where.world_size]
    if loader.batch_sampler is None:  # the data set itself makes the batches
        return _again(loader, limit, batch_size=None, sampler=units), None
    return _again(loader, limit, batch_sampler=units), sum(map(len, units))


def first_batches(loader: Iterable[Any], rows: int) -> Iterable[Any]:
    """Return the batches of a loader until they have enough rows, or all of a loader without positions.

    Workers of the whole loader would load ahead what nobody reads.

    Args:
        loader: The loader.
        rows: How many are enough.
    """
    if not _has_positions(loader) or getattr(loader, "batch_sampler", None) is None:
        return loader
    assert isinstance(loader, DataLoader)
    units: list[Any] = []
    for batch in loader.batch_sampler:  # type: ignore[union-attr]
        units.append(list(batch))
        if sum(map(len, units)) >= rows:
            break
    return _again(loader, ("first", rows), batch_sampler=units)


def every_nth(count: int, limit: int) -> int:
    """Return the distance at which ``limit`` of ``count`` rows, or a few less, are evenly spaced."""
    return max(1, -(-count // limit))


def _has_positions(loader: Iterable[Any]) -> bool:
    # A subclass that iterates in its own way may do anything.
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader).__iter__ is DataLoader.__iter__
    )


def _row_count(loader: DataLoader[Any]) -> int | None:
    try:
        return None if loader.batch_size is None else len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:  # a sampler without a length
        return None


def _units(loader: DataLoader[Any]) -> list[Any]:
    """Positions of every batch, as lists, or single ones where the data set makes the batches."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        positions = list(range(len(loader.dataset)))  # type: ignore[arg-type]
        size = getattr(loader.batch_sampler, "batch_size", None)
        return positions if size is None else [positions[i : i + size] for i in positions[::size]]
    if loader.batch_sampler is None:
        return list(loader.sampler)
    return [list(batch) for batch in loader.batch_sampler]


def _thin(batches: list[list[Any]], limit: int) -> list[list[Any]]:
    """Keep evenly spaced positions, in batches of the same size as before."""
    positions = [position for batch in batches for position in batch]
    kept = positions[:: every_nth(len(positions), limit)]
    size = max(map(len, batches), default=1)
    return [kept[i : i + size] for i in range(0, len(kept), size)]


def _again(loader: DataLoader[Any], purpose: Any, **sampling: Any) -> DataLoader[Any]:
    """Make a loader like another one, with other positions; the same one where they are those of before."""
    made = _MADE.setdefault(loader, {})
    if purpose not in made or made[purpose][0] != sampling:
        made[purpose] = sampling, _like(loader, **sampling)
    return made[purpose][1]


def _like(loader: DataLoader[Any], **sampling: Any) -> DataLoader[Any]:
    return DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        **sampling,
    )
