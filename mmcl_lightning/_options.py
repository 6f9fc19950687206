"""What kind of value an option has, before its size is compared with anything.

``"1"``, ``None`` or a tensor in place of a number would otherwise end in a ``TypeError`` that names no
option, and ``"no"`` in place of a flag would count as true.
"""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

from mmcl_lightning.errors import ConfigError

__all__ = ["check_flags", "check_whole", "is_number", "is_whole"]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a real number, of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether ``value`` is an integer, of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_flags(**flags: Any) -> None:
    """Raise :class:`ConfigError` unless every argument is ``True`` or ``False``."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}")


def check_whole(low: int, **values: Any) -> None:
    """Raise :class:`ConfigError` unless every argument is an integer >= ``low``."""
    for name, value in values.items():
        if not (is_whole(value) and value >= low):
            raise ConfigError(f"{name} must be an integer >= {low}, got {value!r}")
