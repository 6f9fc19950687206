"""Losses compute in single precision; their gradients go back to projections that may be in half."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.deferred import check, checker
from mmcl_lightning.errors import NumericalError

__all__ = [
    "check_loss",
    "check_rows",
    "shortest_row",
    "unit_length",
    "warn_of_short_rows",
    "watch_gradients",
    "working_dtype",
]


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
        z: Rows ``(..., D)`` in the working precision.
        shortest: Rows whose entries are no larger count as zero; None as :func:`shortest_row` has it.
    """
    largest = z.detach().abs().amax(dim=-1, keepdim=True)
    shortest = shortest_row(z.dtype) if shortest is None else shortest
    dead = largest <= shortest  # not where it is nan, to be found out
    return F.normalize((z / largest.masked_fill(dead, 1.0)).masked_fill(dead, 0.0), dim=-1)


def check_loss(loss: Tensor, criterion: object) -> None:
    """Raise :class:`NumericalError` where a loss is not finite although its projections are.

    Args:
        loss: The value, without dimensions.
        criterion: What the message names.
    """

    def judge(values: list[float]) -> None:
        if not math.isfinite(values[0]):
            raise NumericalError(f"the loss is {values[0]} although all projections are finite: {criterion}")

    check(loss, judge)


def check_rows(rows: Tensor, parts: Sequence[tuple[str, int]]) -> None:
    """Raise :class:`NumericalError` where projections are not finite.

    Args:
        rows: All of them, ``(..., D)``.
        parts: What the message calls parts of them, one after the other, and how many rows each has.
    """

    def judge(marks: list[float]) -> None:
        found, start = [], 0
        for name, count in parts:
            found.append((sum(map(math.isnan, marks[start : start + count])), count, name))
            start += count
        if any(bad for bad, _, _ in found):
            words = " and ".join(f"{bad} of {count} {name}" for bad, count, name in found)
            raise NumericalError(
                f"projections are not finite: {words}. Lower the learning rate, warm up longer, or use "
                "bf16-mixed in place of 16-mixed"
            )

    check((rows.detach() * 0).sum(-1), judge)  # nan for a row with an entry that is not finite


def warn_of_short_rows(views: Sequence[Tensor], said: list[str]) -> None:
    """Warn, once, where projections in float16 are too short to have a direction.

    Args:
        views: Projections ``(B, D)`` as they were given.
        said: Empty until it was warned; then it has the warning.
    """
    if said or views[0].dtype != torch.float16:
        return
    short = [view.detach().abs().amax(dim=1) <= shortest_row(view.dtype) for view in views]
    total = sum(map(len, views))

    def judge(values: list[float]) -> None:
        if values[0] and not said:
            said.append(
                f"{values[0]:.0f} of {total} projections are too short for a direction in float16, all "
                f"entries below {shortest_row(torch.float16):.0e}: they count as zeros and get no gradient. "
                "Use bf16-mixed in place of 16-mixed. Later batches are not warned of"
            )
            warnings.warn(said[0], stacklevel=5)

    check(torch.cat(short).sum(), judge)


def watch_gradients(loss: Tensor, views: Sequence[Tensor]) -> None:
    """Let the backward pass raise :class:`NumericalError` where a gradient is too large for float16.

    What a gradient scaler multiplies the loss by does not count: it looks for what overflows itself, and
    takes a smaller factor.

    Args:
        loss: The loss, a scalar.
        views: Projections ``(B, D)`` in float32 that were float16.
    """
    factor: list[Tensor] = []
    hand_over = checker()  # that of the forward pass, since the backward pass runs elsewhere

    def remember(gradient: Tensor) -> None:
        factor[:] = [gradient.detach().abs().clamp_min(1.0)]

    def judge(values: list[float]) -> None:
        if not values[0] <= torch.finfo(torch.float16).max:
            raise NumericalError(
                f"a gradient of the projections is {values[0]:.3g}, and float16 ends at 65504: they are too "
                "short for this temperature, C or reg. Use bf16-mixed in place of 16-mixed"
            )

    def look(gradient: Tensor) -> None:
        largest = gradient.abs().max()
        hand_over(largest / factor[0] if factor else largest, judge)

    if loss.requires_grad:
        loss.register_hook(remember)  # type: ignore[no-untyped-call]
        for view in views:
            if view.requires_grad:
                view.register_hook(look)  # type: ignore[no-untyped-call]
