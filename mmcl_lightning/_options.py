"""What kind of value an option has, before its size is compared with anything.

``"1"``, ``None`` or a tensor in place of a number would otherwise end in a ``TypeError`` that names no
option, and ``"no"`` in place of a flag would count as true.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import numbers
from collections.abc import Iterable
from typing import Any, TypeGuard

from mmcl_lightning.errors import ConfigError

__all__ = [
    "arguments_of",
    "check_choice",
    "check_flags",
    "check_installed",
    "check_number",
    "check_whole",
    "is_number",
    "is_whole",
]


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


def check_number(
    name: str, value: Any, rule: str, hint: str = "", *, also: str = "", infinite: bool = False
) -> None:
    """Raise :class:`ConfigError` unless an option is a number within its range.

    Args:
        name: Name of the option.
        value: What was given.
        rule: The range as the message says it: ``"> 0"``, ``">= 0"``, or an interval, ``"in [0, 1)"``.
        hint: What the message says after the value, such as which numbers are usual.
        also: What else the option may be, as the message says it; the caller has seen that it is not.
        infinite: Whether infinity is in the range.
    """
    if not (is_number(value) and _fits(float(value), rule) and (infinite or math.isfinite(value))):
        kind = f"a {'' if infinite else 'finite '}number {rule}{f' or {also}' if also else ''}"
        raise ConfigError(f"{name} must be {kind}, got {value!r}{f': {hint}' if hint else ''}")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise :class:`ConfigError` unless an option is one of ``choices``."""
    known = list(choices)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in known):
        *most, last = map(repr, known)
        words = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{name} must be {words}, got {value!r}")


def check_installed(user: str, package: str, extra: str, title: str = "") -> None:
    """Raise :class:`ConfigError` unless an optional package is there; it is not imported.

    Args:
        user: Who needs it.
        package: As it is imported.
        extra: Extra of this package that brings it.
        title: What it is called, where that differs.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f'{user} needs {title or package}: pip install "mmcl-lightning[{extra}]"')


def arguments_of(thing: Any) -> dict[str, Any]:
    """Return the arguments that build an object again, by name, read from the attributes of those names.

    Args:
        thing: An object whose class keeps every argument of its constructor.

    Raises:
        ConfigError: If an argument is not kept.
    """
    names = inspect.signature(type(thing)).parameters
    missing = [name for name in names if not hasattr(thing, name)]
    if missing:
        raise ConfigError(
            f"{type(thing).__name__} does not say how it was built: keep the argument {missing[0]!r} of its "
            f"__init__ as self.{missing[0]}"
        )
    return {name: getattr(thing, name) for name in names}


def _fits(value: float, rule: str) -> bool:
    if rule.startswith("in "):
        low, high = (float(end) for end in rule[4:-1].split(","))
        above = value >= low if rule[3] == "[" else value > low
        return above and (value <= high if rule[-1] == "]" else value < high)
    comparison, _, bound = rule.partition(" ")
    return value >= float(bound) if comparison == ">=" else value > float(bound)
