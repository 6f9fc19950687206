"""Logging of numbers that the host has."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule

__all__ = ["log_number"]


def log_number(module: LightningModule, name: str, value: Any, **options: Any) -> None:
    """Log a number that the host has, without copies to the device and back, for which the host waits.

    Args:
        module: Logs it.
        name: Its name.
        value: A number.
        options: As of Lightning's ``log``.
    """
    module.log(name, torch.as_tensor(value, dtype=torch.float64), **options)
