"""Gathering from all processes: projections with a gradient that is right, rows and numbers without one.

The convention of every loss in this package: each process computes the loss of *its own* anchors
against the candidates of *all* processes, and DistributedDataParallel averages the gradients. With the
gather below this equals, to rounding, the gradient of one process that holds the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mmcl_lightning.errors import ShapeError

__all__ = [
    "Layout",
    "broadcast_object",
    "gather_objects",
    "gather_uneven",
    "gather_with_gradient",
    "layout",
    "mean_over_processes",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Where a process stands among all.

    Args:
        rank: Index of this process.
        world_size: Number of processes; 1 where no process group is up.
    """

    rank: int = 0
    world_size: int = 1


def layout() -> Layout:
    """Return where this process stands; ``Layout(0, 1)`` without a process group."""
    if dist.is_available() and dist.is_initialized():
        return Layout(dist.get_rank(), dist.get_world_size())
    return Layout()


class _Gather(torch.autograd.Function):
    """All-gather whose backward sums the gradients of all processes and keeps the local part.

    Keeping only the local gradient instead, as is often done, gives exactly 1 / world_size of it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)  # autograd may share it with other branches
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather_with_gradient(x: Tensor) -> Tensor:
    """Concatenate the rows of all processes, in the order of their ranks.

    The host waits for the device once, to compare the numbers of rows: a gather of different numbers hangs.

    Args:
        x: Rows of this process, shape ``(B, D)``; every process must bring the same shape.

    Returns:
        Rows of all processes, shape ``(world_size * B, D)``; ``x`` itself without a process group.

    Raises:
        ShapeError: On every process, if the processes bring different numbers of rows.
    """
    where = layout()
    if where.world_size == 1:
        return x
    # A fill, as a copy of the number to a GPU would be waited for; then all of them are read in one wait.
    size = torch.full((1,), len(x), device=x.device)
    sizes = [torch.empty_like(size) for _ in range(where.world_size)]
    dist.all_gather(sizes, size)
    counts = torch.cat(sizes).tolist()
    if len(set(counts)) > 1:
        raise ShapeError(
            f"every process must bring the same number of rows, got {counts} by rank: "
            "use drop_last=True in the training loader"
        )
    gathered: Tensor = _Gather.apply(x)
    return gathered


def gather_uneven(x: Tensor, counts: Sequence[int] | None = None) -> list[Tensor]:
    """Return the rows of every process, by rank, without gradient; processes may bring different numbers.

    Args:
        x: Rows of this process, shape ``(n, ...)``, on the device that the processes talk over; all but n
            is the same on every process, and n may be 0.
        counts: n of every process, where it is known: saves asking for it.

    Returns:
        One tensor ``(n_rank, ...)`` per process; ``[x]`` without a process group.
    """
    where = layout()
    if where.world_size == 1:
        return [x]
    counts = gather_objects(len(x)) if counts is None else counts
    if max(counts) == 0:
        return [x] * where.world_size
    padded = x.new_zeros(max(counts), *x.shape[1:])
    padded[: len(x)] = x.detach()
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return [part[:count] for part, count in zip(parts, counts, strict=True)]


def mean_over_processes(x: Tensor) -> Tensor:
    """Return the mean of what the processes bring, without gradient; a GPU's host does not wait for it.

    Args:
        x: Of one shape on every process, floating point.
    """
    mean = x.detach()
    if (count := layout().world_size) > 1:
        mean = mean / count
        dist.all_reduce(mean)
    return mean


def gather_objects(value: T) -> list[T]:
    """Return what every process brings, by rank: numbers or small objects that can be pickled.

    Args:
        value: What this process brings.
    """
    where = layout()
    if where.world_size == 1:
        return [value]
    values: list[Any] = [None] * where.world_size
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: T) -> T:
    """Return what the first process brings, a small object that can be pickled.

    Args:
        value: What this process brings; it counts on the first process alone.
    """
    if layout().world_size == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]  # type: ignore[no-any-return]
