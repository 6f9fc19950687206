"""Which batches of a loader are this process's, and what is in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from mmcl_lightning.distributed import broadcast_object, layout
from mmcl_lightning.errors import DataError, ShapeError

__all__ = ["images_and_labels", "labels_of", "share_batches"]

_IMAGE_KEYS = ("image", "images", "x")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Return images ``(B, ...)`` and labels ``(B,)``, int64, -1 where the batch has none.

    Args:
        batch: ``(images, labels, ...)``, of which the first two count, or a mapping with ``image`` and
            ``label`` (or ``images``, ``x``; ``labels``, ``target``, ``targets``, ``y``).

    Raises:
        DataError: If there is no image, or labels are not integers.
        ShapeError: If there is not one label per image.
    """
    labels, images = labels_of(batch), batch
    if isinstance(batch, Mapping):
        images = next((batch[key] for key in _IMAGE_KEYS if key in batch), None)
    elif isinstance(batch, list | tuple):
        images = batch[0] if batch else None
    if not isinstance(images, Tensor) or images.ndim == 0:
        found = f"keys {sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(images).__name__
        raise DataError(
            f"a readout needs batches (images, labels) or {{'image': ..., 'label': ...}} with one tensor of "
            f"images, got {found}"
        )
    if labels is None:
        return images, torch.full((len(images),), -1)
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"labels must be integers, got {type(labels).__name__}: {error}") from error
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(f"labels must be integers, got {targets.dtype}")
    if targets.numel() != len(images):
        raise ShapeError(f"Expected labels ({len(images)},), got {tuple(targets.shape)}")
    return images, targets.flatten().long()


def labels_of(batch: Any) -> Any:
    """Return what stands for the labels in a batch as :func:`images_and_labels` takes it, or None."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _LABEL_KEYS if key in batch), None)
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None


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
        return _again(loader, batch_size=None, sampler=units), None
    return _again(loader, batch_sampler=units), sum(map(len, units))


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


def _again(loader: DataLoader[Any], **sampling: Any) -> DataLoader[Any]:
    """Make a loader like another one, with other positions."""
    return DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        **sampling,
    )
