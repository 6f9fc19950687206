"""Every error that this package raises on purpose derives from :class:`MMCLError`.

Each also derives from the built-in error that a caller would expect, so ``except ValueError`` works.
"""

from __future__ import annotations

__all__ = ["ConfigError", "DataError", "MMCLError", "NumericalError", "ShapeError"]


class MMCLError(Exception):
    """Base class of all errors of ``mmcl_lightning``."""


class ConfigError(MMCLError, ValueError):
    """An option has a value that cannot work; the message names it and says what can."""


class ShapeError(MMCLError, ValueError):
    """A tensor has a shape that does not fit; the message carries the expected and actual shape."""


class DataError(MMCLError, RuntimeError):
    """A data set is missing, empty or damaged; the message names the file and the remedy."""


class NumericalError(MMCLError, ArithmeticError):
    """A computation left the finite numbers, or a matrix could not be factorised."""
