"""Find files that are trained on and tested on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

__all__ = ["digest", "shared_files"]

_START = 65536  # bytes of a file that are compared


def shared_files(
    train: Iterable[str], test: Iterable[str], limit: int = 20_000
) -> list[tuple[str, str]] | None:
    """Return files of two sets with the same content: of equal size, and equal in their first 64 KiB.

    Args:
        train: Files of one set.
        test: Files of the other.
        limit: Most files to read.

    Returns:
        Pairs of one file of each set, one per file of the second, or None where more would have to be read.
    """
    sizes = {path: size for path in test if (size := _size(path))}
    wanted = set(sizes.values())
    candidates = {path: size for path in train if (size := _size(path)) in wanted}
    found = set(candidates.values())
    sizes = {path: size for path, size in sizes.items() if size in found}
    if len(candidates) + len(sizes) > limit:
        return None
    known = {(size, digest(path)): path for path, size in candidates.items()}
    pairs = ((known.get((size, digest(path))), path) for path, size in sizes.items())
    return [(trained, path) for trained, path in pairs if trained is not None]


def _size(path: str) -> int:
    """Bytes of a file; 0 of one that is not there, of which reading says so."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def digest(path: str, whole: bool = False) -> bytes:
    """Return a hash of a file; of one that cannot be read, that of its name, which no other has.

    Args:
        path: The file.
        whole: Whether the hash is of all of it, and not of the first 64 KiB.
    """
    found = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while part := file.read(_START):
                found.update(part)
                if not whole:
                    break
    except OSError:
        found.update(os.fsencode(path))
    return found.digest()
