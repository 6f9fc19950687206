"""How files are written: results never over a file that is there, and each whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from mmcl_lightning.errors import ConfigError

__all__ = ["free_path", "short_path", "whole_file", "whole_text", "write_csv"]


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
        return next((p for p in (path, *map(path.with_suffix, beside)) if os.path.lexists(p)), None)

    if given is not None and (there := taken()) is not None:
        raise ConfigError(f"{there} exists: give another path to write to, or remove it")
    stem, number = path.stem, 1
    while taken() is not None:
        number += 1
        path = path.with_stem(f"{stem}_{number}")
    return path


def short_path(path: str) -> str:
    """Return a path relative to the current folder where it lies below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return path


class _Raw(io.FileIO):
    """A file that keeps the error of its disk, which libraries that write to it may turn into another."""

    failed: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name when it is whole and on the disk.

    It is written beside the target: a rename within a folder is one step, whereas a move from elsewhere may
    be a copy. A kill leaves the old file, and at most ``NAME.tmp`` beside it, which the next one removes. The
    draft is always a new file: a link that somebody has put there is not followed.

    Args:
        path: The file; its folder is made. A link of that name is replaced, not what it leads to.

    Raises:
        OSError: If it cannot be written, as on a full disk; it names the file.
    """
    target = Path(path)
    draft, raw = target.with_name(f"{target.name}.tmp"), None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        raw = _Raw(draft, "xb")
        with io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        _sync_folder(target.parent)
    except BaseException as error:
        if raw is not None:  # else it is somebody else's
            draft.unlink(missing_ok=True)
        cause = raw.failed if raw is not None and raw.failed is not None else error
        if isinstance(cause, OSError) and cause.filename in (None, str(draft)):
            cause.filename = str(target)
        if cause is not error:
            raise cause from error
        raise


@contextlib.contextmanager
def whole_text(path: str | Path) -> Iterator[TextIO]:
    """Open a text in UTF-8 to write, as :func:`whole_file`; names of files keep their bytes."""
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        try:
            yield text
        finally:
            text.detach()  # which writes what it has, and leaves the file open


def write_csv(path: str | Path, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table, all of it or nothing.

    Raises:
        OSError: As of :func:`whole_file`.
    """
    with whole_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a loss of power; not every file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
