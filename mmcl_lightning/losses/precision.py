"""Losses compute in single precision; their gradients go back to projections that may be in half."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.errors import NumericalError

__all__ = ["shortest_row", "unit_length", "warn_of_short_rows", "watch_gradients", "working_dtype"]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that a loss computes in for projections of a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def shortest_row(dtype: torch.dtype) -> float:
    """Return the largest entry up to which a row of projections of a type counts as zero.

    The gradient of a direction grows as one over the length. In float16 it would leave the finite numbers
    where all entries are below the smallest normal number, and have few bits anyway.
    """
    if dtype == torch.float16:
        return torch.finfo(dtype).tiny
    return math.sqrt(torch.finfo(working_dtype(dtype)).tiny)


def unit_length(z: Tensor, shortest: float | None = None) -> Tensor:
    """Scale rows to unit length; rows of any size, since their largest entry is divided out first.

    A row of zeros stays zero and gets no gradient: it has no direction, and the gradient has no bound there.

    Args:
        z: Rows ``(B, D)`` in the working precision.
        shortest: Rows whose entries are no larger count as zero; None as :func:`shortest_row` has it.
    """
    largest = z.detach().abs().amax(dim=1, keepdim=True)
    shortest = shortest_row(z.dtype) if shortest is None else shortest
    alive = ~(largest <= shortest)  # nan counts as alive, to be found out
    return F.normalize(torch.where(alive, z / torch.where(alive, largest, 1.0), 0.0), dim=1)


def warn_of_short_rows(views: Sequence[Tensor]) -> bool:
    """Warn where projections in float16 are too short to have a direction; return whether some are.

    On a GPU it waits for the views, so it is to be called where something else waits for them anyway.

    Args:
        views: Projections ``(B, D)`` as they were given.
    """
    short = [view.detach().abs().amax(dim=1) <= shortest_row(view.dtype) for view in views]
    count, total = int(torch.cat(short).sum()), sum(map(len, views))
    if count:
        warnings.warn(
            f"{count} of {total} projections are too short for a direction in float16, all entries below "
            f"{shortest_row(torch.float16):.0e}: they count as zeros and get no gradient. Use bf16-mixed in "
            "place of 16-mixed. Later batches are not warned of",
            stacklevel=3,
        )
    return count > 0


def watch_gradients(loss: Tensor, views: Sequence[Tensor]) -> None:
    """Let the backward pass raise :class:`NumericalError` where a gradient is too large for float16.

    What a gradient scaler multiplies the loss by does not count: it looks for what overflows itself, and
    takes a smaller factor.

    Args:
        loss: The loss, a scalar.
        views: Projections ``(B, D)`` in float32 that were float16.
    """
    factor = [1.0]

    def remember(gradient: Tensor) -> None:
        factor[0] = max(1.0, abs(float(gradient)))

    def check(gradient: Tensor) -> None:
        largest = float(gradient.abs().max()) / factor[0]
        if not largest <= torch.finfo(torch.float16).max:
            raise NumericalError(
                f"a gradient of the projections is {largest:.3g}, and float16 ends at 65504: they are too "
                "short for this temperature, C or reg. Use bf16-mixed in place of 16-mixed"
            )

    if loss.requires_grad:
        loss.register_hook(remember)  # type: ignore[no-untyped-call]
        for view in views:
            if view.requires_grad:
                view.register_hook(check)  # type: ignore[no-untyped-call]
