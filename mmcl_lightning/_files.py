"""How files are written: results never over a file that is there, and each whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mmcl_lightning.errors import ConfigError

__all__ = ["free_path", "whole_file"]


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


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name when it is whole and on the disk.

    It is written beside the target: a rename within a folder is one step, whereas a move from elsewhere may
    be a copy. A kill leaves the old file, and at most ``NAME.tmp`` beside it, which the next one overwrites.

    Args:
        path: The file; its folder is made.

    Raises:
        OSError: If it cannot be written, as on a full disk; it names the file.
    """
    target = Path(path)
    draft = target.with_name(f"{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        _sync_folder(target.parent)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(draft)):
            error.filename = str(target)
        raise


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a loss of power; not every file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
