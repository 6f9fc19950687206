"""Where results are written: never over a file that is there."""

from __future__ import annotations

from pathlib import Path

from mmcl_lightning.errors import ConfigError

__all__ = ["free_path"]


def free_path(given: str | Path | None, default: str | Path, *beside: str) -> Path:
    """Return the path of a file to write, which does not exist.

    Args:
        given: What the user asks for; None for ``default``, or the first of ``default_2`` and so on that is
            free.
        default: The usual name.
        *beside: Suffixes of further files that will be written beside it, such as ``".csv"``.

    Raises:
        ConfigError: If the file that was asked for, or one of those beside it, exists.
    """
    path = Path(default if given is None else given)

    def taken() -> Path | None:
        return next((p for p in (path, *map(path.with_suffix, beside)) if p.exists()), None)

    if given is not None and (there := taken()) is not None:
        raise ConfigError(f"{there} exists: give another path to write to, or remove it")
    stem, number = path.stem, 1
    while taken() is not None:
        number += 1
        path = path.with_stem(f"{stem}_{number}")
    return path
