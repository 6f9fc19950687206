"""Read the files of a published data set, with errors that name the file and say what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmcl_lightning._options import check_installed, is_whole
from mmcl_lightning.datamodules.image_files import FileSource
from mmcl_lightning.datamodules.sources import IntArray
from mmcl_lightning.errors import DataError

__all__ = ["PublishedFiles", "Row", "ascending"]

#: Where a list says it, such as "line 3"; the image, relative to the folder; its class by name or index.
Row = tuple[str, str, str | int]


class _Published(FileSource):
    """Pictures as published evaluations read them: 8 bits RGB by Pillow, without a look at orientation."""

    def item(self, index: int) -> Image.Image:
        path = self.path(index)
        try:
            with Image.open(path) as image:
                converted: Image.Image = image.convert("RGB")
                return converted
        except Exception as error:  # decoders have errors of many kinds
            raise DataError(
                f"the image {path} cannot be read ({type(error).__name__}: {error}): the set is not whole, "
                "unpack its archive again"
            ) from error


@dataclass(frozen=True)
class PublishedFiles:
    """The files of one set.

    Args:
        title: Name of the set in messages.
        folder: Its folder, to which all names are relative.
        remedy: What to do where a file is missing.
    """

    title: str
    folder: Path
    remedy: str

    def missing(self, name: str) -> DataError:
        """Return the error that says that a file or folder is not there."""
        return DataError(f"{self.title}: {self.folder / name} is missing; {self.remedy}")

    def damaged(self, name: str, why: object) -> DataError:
        """Return the error that says that a file is not what it should be."""
        return DataError(
            f"{self.title}: {self.folder / name} is not as published ({why}): unpack the archive again"
        )

    def lines(self, name: str) -> list[tuple[str, str]]:
        """Return the lines of a text file that are not empty, each after its place, such as ``"line 3"``."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise self.missing(name) from None
        except (OSError, UnicodeDecodeError) as error:
            raise self.damaged(name, error) from error
        lines = enumerate(text.splitlines(), 1)
        return [(f"line {number}", line.strip()) for number, line in lines if line.strip()]

    def json(self, name: str) -> dict[str, list[str]]:
        """Return lists of names by class."""
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise self.missing(name) from None
        except (OSError, ValueError) as error:
            raise self.damaged(name, error) from error
        if not isinstance(found, dict) or not all(isinstance(names, list) for names in found.values()):
            raise self.damaged(name, "no lists by class")
        return found

    def mat(self, name: str, *variables: str) -> tuple[Any, ...]:
        """Return variables of a MATLAB file."""
        check_installed(f"{self.title}, whose labels are MATLAB files,", "scipy", "transfer", "SciPy")
        from scipy.io import loadmat

        if not (self.folder / name).is_file():
            raise self.missing(name)
        try:
            found = loadmat(str(self.folder / name), squeeze_me=True)
            return tuple(found[variable] for variable in variables)
        except Exception as error:  # SciPy has errors of many kinds for a file that is damaged
            raise self.damaged(name, f"{type(error).__name__}: {error}") from error

    def pictures(self, table: str, rows: Iterable[Row], classes: Sequence[str]) -> FileSource:
        """Return the pictures that a list names.

        Args:
            table: The list, for messages.
            rows: What it says.
            classes: Names of the classes in the order of their indices.

        Raises:
            DataError: If it is empty, or names a picture or a class that there is not.
        """
        paths, targets = self._listed(table, rows, {name: index for index, name in enumerate(classes)})
        return _Published(paths, targets)

    def joined(self, table: str, rows: Iterable[tuple[str, str]], labels: IntArray) -> FileSource:
        """Return pictures with labels that are given, such as joined ones of several classes.

        Args:
            table: The list, for messages.
            rows: Where the list says it, and the picture.
            labels: Shape ``(n,)``.

        Raises:
            DataError: As :meth:`pictures`.
        """
        paths, _ = self._listed(table, [(where, path, 0) for where, path in rows], {"": 0})
        return _Published(paths, labels)

    def _listed(self, table: str, rows: Iterable[Row], index: dict[str, int]) -> tuple[list[str], list[int]]:
        paths, targets = [], []
        for where, name, label in rows:
            known = label < len(index) and label >= 0 if is_whole(label) else label in index
            if not known:
                raise DataError(
                    f"{self.title}: {self.folder / table}, {where}: there is no class {label!r} among the "
                    f"{len(index)} of the set"
                )
            path = self.folder / name
            if not path.is_file():
                raise DataError(
                    f"{self.title}: {self.folder / table}, {where}: there is no image {path}; {self.remedy}"
                )
            paths.append(str(path))
            targets.append(int(label) if is_whole(label) else index[str(label)])
        if not paths:
            raise self.damaged(table, "it lists no image")
        return paths, targets


def ascending(rows: Sequence[Any]) -> list[tuple[str, Any]]:
    """Number the entries of a table that is no text, for messages.

    Args:
        rows: The entries.
    """
    return [(f"entry {number}", row) for number, row in enumerate(rows, 1)]


def draw_thirty(counts: Sequence[int]) -> list[IntArray]:
    """Draw the published training images of Caltech-101: 30 of each class with replacement, each kept once.

    Args:
        counts: Files of each class, the classes in the order of their names.

    Returns:
        Sorted positions among the files of each class.
    """
    generator = np.random.RandomState(0)
    return [np.unique(generator.choice(count, 30)) for count in counts]
