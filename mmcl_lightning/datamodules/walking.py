"""List the pictures of a folder, and remember what was left out."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning.datamodules.pictures import is_picture
from mmcl_lightning.errors import DataError

__all__ = ["Walk"]

#: Folders that systems and programs leave among pictures; hidden ones besides.
_SYSTEM = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
_PATIENCE = 2.0  # seconds, after which it is said how far a walk is


def _readable(folder: str) -> Any:
    """Open a folder; pictures and classes in one that cannot be opened would be missed without a word."""
    try:
        return os.scandir(folder)
    except OSError as error:
        raise DataError(
            f"the folder {folder} cannot be read ({error.strerror}): make it readable, or move it away"
        ) from error


class Walk:
    """Lists folders, and remembers what it left out.

    Args:
        root: The folder; links that lead into it are not followed.
    """

    def __init__(self, root: str) -> None:
        self.real_root = os.path.realpath(root)
        self.ignored: Counter[str] = Counter()
        self._reported: dict[str, str] = {}  # why, by path
        self._links: dict[str, str] = {}  # folders outside by the link that leads to them
        self._listed: set[str] = set()
        self._pictures = 0
        self._start, self._patience = time.monotonic(), _PATIENCE

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the pictures and of the folders of a folder, sorted."""
        pictures, folders = [], []
        with _readable(folder) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name.startswith(".") or entry.name.lower() in _SYSTEM:
                    self._leave_out(entry.path, "hidden or system")
                elif entry.is_dir():
                    if entry.is_symlink() and not self._leads_out(entry.path):
                        self._leave_out(entry.path, "links into the folder itself, or twice to one place")
                    else:
                        folders.append(entry.name)
                elif not entry.is_file():  # to open a pipe would wait for somebody who writes to it
                    nothing = entry.is_symlink() and not os.path.exists(entry.path)
                    self._leave_out(
                        entry.path, "links to nothing" if nothing else "pipes, sockets and devices"
                    )
                elif is_picture(entry.path):
                    pictures.append(entry.name)
                else:
                    self._leave_out(entry.path, os.path.splitext(entry.name)[1].lower() or "no ending")
        self._say_progress(folder, len(pictures))
        return pictures, folders

    def pictures_below(self, folder: str) -> Iterator[str]:
        """Return all pictures of a folder and of those in it, sorted by folder."""
        pictures, folders = self.entries(folder)
        for name in pictures:
            yield os.path.join(folder, name)
        for name in folders:
            yield from self.pictures_below(os.path.join(folder, name))

    def count(self, folder: str) -> int:
        """Return the number of pictures in a folder, at any depth."""
        return sum(1 for _ in self.pictures_below(folder))

    def take(self, path: str) -> None:
        """Count a file no longer among those that are left out: it was read after all."""
        if why := self._reported.get(path):
            self.ignored[why] -= 1
            self._reported[path] = ""

    def nothing(self, folder: str) -> DataError:
        """Return the error of a folder without a picture."""
        others = ", ".join(f"{why}: {count}" for why, count in self.ignored.most_common(5))
        found = f"; what is there is not read ({others})" if others else ""
        return DataError(f"no image was found in {folder} or below{found}")

    def _say_progress(self, folder: str, pictures: int) -> None:
        """Say how many pictures were found so far, after two seconds, four, eight, and so on."""
        if folder in self._listed:
            return
        self._listed.add(folder)
        self._pictures += pictures
        taken = time.monotonic() - self._start
        if taken >= self._patience:
            rank_zero_info(
                f"looking for pictures in {self.real_root}: {self._pictures:,} so far, in "
                f"{len(self._listed):,} folders"
            )
            self._patience = 2 * taken

    def _leads_out(self, link: str) -> bool:
        """Whether a link leads out of the root, to a place where no other link has led."""
        target = os.path.realpath(link)
        inside = (target + os.sep).startswith(self.real_root + os.sep)
        above = (self.real_root + os.sep).startswith(target.rstrip(os.sep) + os.sep)
        return not inside and not above and self._links.setdefault(target, link) == link

    def _leave_out(self, path: str, why: str) -> None:
        if path not in self._reported:
            self._reported[path] = why
            self.ignored[why] += 1
