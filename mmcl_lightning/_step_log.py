"""What module, callbacks and readouts log of a training step, read from the device in one wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.errors import ConfigError

__all__ = ["StepLog", "log_number", "step_log"]

Names = Callable[[list[float]], dict[str, float]]


class StepLog:
    """Checks and numbers of training steps that stay on the device until :meth:`write`.

    A module that has one under ``step_log`` writes it in its ``on_train_batch_end``, which Lightning calls
    after that of every callback; see :func:`step_log`.
    """

    def __init__(self) -> None:
        self.checks = DeferredChecks()
        self._read: dict[str, float] = {}

    def add(self, values: Tensor, names: Names) -> None:
        """Log numbers of this step.

        Args:
            values: Few numbers, any shape.
            names: Gets them as a list of floats, and returns what to log, by name.
        """
        self.checks.add(values, lambda numbers: self._read.update(names(numbers)))

    def write(self, module: LightningModule) -> None:
        """Wait for the device, once, judge the checks and log the numbers.

        Args:
            module: Logs them, within ``on_train_batch_end``.

        Raises:
            NumericalError: What a check finds.
        """
        self.checks.look()
        read, self._read = self._read, {}
        for name, value in read.items():
            log_number(module, name, value, on_step=True)

    def end_epoch(self, module: LightningModule) -> None:
        """Judge the checks of the last steps.

        Args:
            module: The module that is trained.

        Raises:
            ConfigError: If numbers of a step were never written.
            NumericalError: What a check finds.
        """
        self.checks.look()
        if self._read:
            raise ConfigError(
                f"{', '.join(self._read)} of a training step could not be logged: let on_train_batch_end of "
                f"{type(module).__name__} begin with super().on_train_batch_end(outputs, batch, batch_idx)"
            )


def step_log(module: LightningModule, own: StepLog) -> StepLog:
    """Return the step log of a module, and ``own`` where the module has none: the caller writes that itself.

    Args:
        module: Any module.
        own: The caller's.
    """
    found = getattr(module, "step_log", None)
    return found if isinstance(found, StepLog) else own


def log_number(module: LightningModule, name: str, value: Any, **options: Any) -> None:
    """Log a number that the host has, without copies to the device and back, for which the host waits.

    Args:
        module: Logs it.
        name: Its name.
        value: A number.
        options: As of Lightning's ``log``.
    """
    module.log(name, torch.as_tensor(value, dtype=torch.float64), **options)
