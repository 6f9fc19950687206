"""Labels of pictures from a file: a table with a row per picture."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["LabelFile", "Places", "find_label_file", "read_annotations", "sorted_names"]

#: Names of columns, in lower case and with underscores, the ones that count most first.
_COLUMNS = {
    "path": ("path", "file", "file_path", "filepath", "filename", "file_name", "image", "image_id", "id"),
    "label": ("label", "class", "target", "category"),
    "split": ("split", "set", "subset"),
}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def find_label_file(name: str, root: str) -> Path:
    """Return the path of a file of labels, which lies in the current folder, or else in ``root``.

    Raises:
        ConfigError: If it is in neither.
    """
    for path in (Path(name).expanduser(), Path(root) / name):
        if path.is_file():
            return path.absolute()
    raise ConfigError(
        f"labels must be 'folder', 'none' or a CSV file, got {name!r}: there is no such file, neither here "
        f"nor in {root}"
    )


def sorted_names(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels in the order of their class indices: as numbers where all of them are.

    Raises:
        DataError: If two labels are one number, such as 1 and 1.0.
    """
    names = sorted(set(labels))
    if not all(_NUMBER.fullmatch(name) for name in names):
        return names
    by_value: dict[Decimal, str] = {}  # a float has 16 digits, and numbers of images may have more
    for name in names:
        other = by_value.setdefault(Decimal(name), name)
        if other != name:
            raise DataError(f"the labels {other!r} and {name!r} are one number: write them alike")
    return [by_value[value] for value in sorted(by_value)]


def read_annotations(path: str) -> dict[str, str]:
    """Return the label of each picture in Tiny-ImageNet's table: name, label and a box, with tabs between.

    Args:
        path: The table, which has no line of names.

    Raises:
        DataError: If it cannot be read, a line is no such row, or a picture has several.
    """
    labels: dict[str, str] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the official archive again") from error
    for number, line in enumerate(lines, 1):
        name, _, rest = line.partition("\t")
        label = rest.partition("\t")[0].strip()
        if not label or name in labels:
            why = f"a second row of {name}" if label else "no name and label with a tab between"
            raise DataError(f"line {number} of {path} is {why}: unpack the official archive again")
        labels[name] = label
    return labels


def _plain(name: str) -> str:
    """Return the name of a column as it is compared with the usual ones."""
    return re.sub(r"[ -]+", "_", name.strip().lower())


@dataclass
class LabelFile:
    """A table of pictures with their labels and perhaps their splits, as it is matched with a folder.

    The first line names the columns: ``path``, ``label`` and perhaps ``split``, or one of the usual names for
    them in any case. They are separated by commas, semicolons or tabs.

    Args:
        path: The file.
        pictures: All pictures of the folder.
        root: The folder. A row's path is relative to it, or absolute, or the end of one picture's path, such
            as its name alone; the ending of the name may be missing.
        columns: The file's names of the columns by ours, where they are not the usual ones.

    Attributes:
        labels: Label of each picture that has one.
        splits: Split of each picture that has one, or None where the file has no such column.
        read_as: The columns that are read, in words.
        unused: What of the file is not used, and how often.

    Raises:
        ConfigError: If ``columns`` names what the file does not have.
        DataError: If the file is no such table, a row fits several pictures, a picture has several labels, or
            no row fits any picture.
    """

    path: Path
    pictures: list[str]
    root: str
    columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.splits: dict[str, str] | None = None
        self.unused: Counter[str] = Counter()
        found: dict[str, tuple[str, str]] = {}
        places, absent, first = Places(self.pictures, self.root), 0, ""
        for line, (name, label, split) in self._rows():
            picture = self._one(places.find(name), name, line)
            if picture is None:
                absent, first = absent + 1, first or name
            elif found.setdefault(picture, (label, split)) != (label, split):
                other = " and ".join(
                    repr(", ".join(filter(None, pair))) for pair in (found[picture], (label, split))
                )
                raise DataError(
                    f"{self.path.name} has several rows for {picture}, {other}: leave one of them"
                )
            else:
                self.unused[f"repeated rows of {self.path.name}"] += picture in self.labels
                self.labels[picture] = label
        if not (found or absent):
            raise DataError(f"{self.path} names columns and has no row: add one for each picture")
        if not found:
            raise DataError(
                f"no row of {self.path} fits a picture of {self.root}: the first row is {first!r}, the first "
                f"picture {os.path.relpath(self.pictures[0], self.root)!r}"
            )
        self.unused[f"rows of {self.path.name} without a picture, such as {first}"] += absent
        self.unused[f"rows of {self.path.name} without a label"] += sum(not row[0] for row in found.values())
        self.labels = {picture: label for picture, (label, _) in found.items() if label}
        if self.splits is not None:
            self.splits = {picture: split for picture, (_, split) in found.items()}

    def _rows(self) -> Iterator[tuple[int, tuple[str, str, str]]]:
        """Yield the number of the line, and path, label and split, of every row."""
        try:
            with open(self.path, newline="", encoding="utf-8-sig") as file:
                separator = self._separator(file.readline())
                file.seek(0)
                reader = csv.reader(file, delimiter=separator, strict=True)
                where = self._places_of(next(reader, []))
                for row in reader:
                    if not any(row):
                        continue
                    if len(row) <= max(where.values()):
                        raise DataError(
                            f"line {reader.line_num} of {self.path} has {len(row)} columns, and the first "
                            f"line names at least {max(where.values()) + 1}"
                        )
                    values = [row[where[part]].strip() if part in where else "" for part in _COLUMNS]
                    values[1] = "" if values[1].lower() == "nan" else values[1]  # as pandas writes no label
                    yield reader.line_num, (values[0], values[1], values[2])
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error}): give another file of labels") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} is no text in UTF-8 ({error}): save it as CSV in UTF-8") from error
        except csv.Error as error:
            raise DataError(
                f"{self.path} is no CSV ({error}): double quotes open and close a value, and are doubled "
                "within it"
            ) from error

    def _places_of(self, head: list[str]) -> dict[str, int]:
        """Return where path, label and perhaps split stand."""
        if unknown := self.columns.keys() - _COLUMNS.keys():
            raise ConfigError(f"label_columns names path, label and split, got {unknown.pop()!r}")
        plain = list(map(_plain, head))
        where = {}
        for part, names in _COLUMNS.items():
            if part in self.columns:
                if self.columns[part] not in head:
                    raise ConfigError(
                        f"label_columns: {self.path.name} has no column {self.columns[part]!r}; it has "
                        f"{', '.join(head)}"
                    )
                where[part] = self._only(head, self.columns[part])
            elif known := [name for name in names if name in plain]:
                where[part] = self._only(plain, known[0])
            elif part != "split":
                raise DataError(
                    f"{self.path} has no column {part}: its first line must name the columns, as in "
                    f"'path,label', or set data.label_columns, as in --data.label_columns '{{{part}: "
                    f"{(head or ['NAME'])[-1]}}}'; it is {', '.join(head)!r}"
                )
        self.splits = {} if "split" in where else None
        self.read_as = f"{self.path.name} (columns {', '.join(head[at].strip() for at in where.values())})"
        return where

    def _only(self, head: list[str], name: str) -> int:
        if head.count(name) > 1:
            raise DataError(f"{self.path} has {head.count(name)} columns {name}: leave one of them")
        return head.index(name)

    def _separator(self, head: str) -> str:
        """Return what separates the columns: by the names that are known, then by their number."""
        usual = {name for names in _COLUMNS.values() for name in names}

        def fit(separator: str) -> tuple[int, int]:
            names = next(csv.reader([head], delimiter=separator), [])
            known = [name in self.columns.values() or _plain(name) in usual for name in names]
            return sum(known), len(names)

        return max(",;\t", key=fit)

    def _one(self, found: list[str], name: str, line: int) -> str | None:
        if len(found) > 1:
            raise DataError(
                f"line {line} of {self.path.name}, {name!r}, fits several pictures, such as {found[0]} and "
                f"{found[1]}: write the path relative to data.root, or set data.root to a folder with one of "
                "them"
            )
        return found[0] if found else None


class Places:
    """Finds pictures by their path, or by its end, with or without the ending of the name.

    Args:
        pictures: Their paths.
        root: The folder that paths are relative to, where pictures have absolute ones.
    """

    def __init__(self, pictures: list[str], root: str) -> None:
        self._prefix = root.rstrip(os.sep) + os.sep
        self._names = {
            picture.removeprefix(self._prefix).replace(os.sep, "/"): picture for picture in pictures
        }
        self._levels: list[dict[str, list[str]]] = []  # made when a row first needs them

    def find(self, name: str) -> list[str]:
        """Return the pictures that a row's path fits."""
        name = name.removeprefix(self._prefix).replace("\\", "/").removeprefix("./")
        for level in range(4):
            if level == len(self._levels):
                self._levels.append(self._names_by(tails=level > 1, endings=level % 2 == 0))
            if found := self._levels[level].get(name):
                return found
        own = os.path.basename(self._prefix[:-1]) + "/"
        return self.find(name.removeprefix(own)) if name.startswith(own) else []

    def _names_by(self, tails: bool, endings: bool) -> dict[str, list[str]]:
        known = defaultdict(list)
        for name, picture in self._names.items():
            key = name if endings else os.path.splitext(name)[0]
            known[key].append(picture)
            while tails and "/" in key:
                key = key.partition("/")[2]
                known[key].append(picture)
        return known
