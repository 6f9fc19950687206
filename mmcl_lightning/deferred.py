"""Checks of values on a device that are looked at where the host waits for the device anyway.

Whether a number is finite is known to the device alone, and asking for it makes the host wait until all that
was launched is done: on a GPU longer than the work of a loss. So a check hands over a few values and a
function that judges them. On a CPU that happens at once. While :meth:`DeferredChecks.collect` is in force the
values stay on the device, and :meth:`DeferredChecks.look` reads those of many steps in one wait.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from mmcl_lightning.errors import NumericalError

__all__ = ["DeferredChecks", "check", "checker", "checks_of", "may_wait"]

Judge = Callable[[list[float]], None]


class DeferredChecks:
    """Values that were handed over for a check, until somebody looks.

    Args:
        most: Checks after which it looks by itself, so that neither memory nor delay grows without bound.
    """

    def __init__(self, most: int = 256) -> None:
        self.most = most
        self._pending: list[tuple[Tensor, Judge, str]] = []

    def __len__(self) -> int:
        """Number of checks that nobody has looked at."""
        return len(self._pending)

    def __deepcopy__(self, memo: object) -> DeferredChecks:
        """Return an empty one: a copy of a loss has made no call."""
        return DeferredChecks(self.most)

    def __reduce__(self) -> tuple[type[DeferredChecks], tuple[int]]:
        """Pickle as an empty one."""
        return DeferredChecks, (self.most,)

    def add(self, values: Tensor, judge: Judge, where: str = "") -> None:
        """Keep values, any shape, for ``judge``, which gets them as a list of floats.

        Args:
            values: Few numbers on any device.
            judge: Raises, or warns, where they are not as they should be.
            where: What the message of a :class:`NumericalError` begins with, such as the step.
        """
        self._pending.append((values.detach().flatten(), judge, where))

    def drop(self) -> None:
        """Forget the checks that nobody has looked at, such as those of a run that broke off."""
        self._pending = []

    def look(self) -> None:
        """Wait for all values, once for a device, and judge them in the order in which they came.

        Raises:
            NumericalError: What the first judge raises that finds fault; later values are dropped.
        """
        pending, self._pending = self._pending, []
        by_device: dict[torch.device, list[Tensor]] = {}
        for values, _, _ in pending:
            by_device.setdefault(values.device, []).append(values.float())
        numbers: dict[torch.device, Iterator[float]] = {}
        for device, parts in by_device.items():
            numbers[device] = iter(torch.cat(parts).tolist())
        for values, judge, where in pending:
            try:
                judge([next(numbers[values.device]) for _ in range(len(values))])
            except NumericalError as error:
                raise NumericalError(f"{where}: {error}" if where else str(error)) from error

    @staticmethod
    def defers(device: torch.device) -> bool:
        """Whether a look at a value on ``device`` is worth putting off."""
        return device.type != "cpu"

    def unless_waiting(self, x: Tensor) -> contextlib.AbstractContextManager[object]:
        """Collect where ``x`` is on a device that the host would wait for, unless others collect already."""
        if not self.defers(x.device) or not may_wait():
            return contextlib.nullcontext()
        return self.collect("an earlier call")

    @contextlib.contextmanager
    def collect(self, where: str = "") -> Iterator[DeferredChecks]:
        """Let checks made within wait for :meth:`look`.

        Args:
            where: As of :meth:`add`.
        """
        token = _collecting.set((self, where))
        try:
            yield self
        finally:
            _collecting.reset(token)
        if len(self) > self.most:
            self.look()


_collecting: ContextVar[tuple[DeferredChecks, str] | None] = ContextVar("collecting", default=None)


def checks_of(module: object, own: DeferredChecks) -> DeferredChecks:
    """Return the checks of a module, so that all that a step checks is read in one wait.

    Args:
        module: Any module; those of this package have some as ``_deferred_checks``.
        own: The caller's, which are returned for a module without.
    """
    found = vars(module).get("_deferred_checks")
    return found if isinstance(found, DeferredChecks) else own


def may_wait() -> bool:
    """Whether the host may wait for a value now: neither while checks are collected nor while compiling."""
    return not torch.compiler.is_compiling() and _collecting.get() is None


def check(values: Tensor, judge: Judge) -> None:
    """Judge values, now or where they are collected; a compiled graph has no checks.

    Args:
        values: Few numbers, any shape.
        judge: Gets them as a list of floats, and raises where they are not as they should be.
    """
    if not torch.compiler.is_compiling():
        checker()(values, judge)


def checker() -> Callable[[Tensor, Judge], None]:
    """Return what :func:`check` does now, to be called later, such as in a backward pass."""
    if (collecting := _collecting.get()) is None:
        return _judge_now
    checks, where = collecting
    return functools.partial(checks.add, where=where)


def _judge_now(values: Tensor, judge: Judge) -> None:
    judge(values.detach().flatten().tolist())
