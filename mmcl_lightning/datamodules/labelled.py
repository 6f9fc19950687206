"""Pictures with their labels, which are folders, stand in a file or are not there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmcl_lightning.datamodules.labels import LabelFile, read_annotations, sorted_names
from mmcl_lightning.datamodules.walking import Walk
from mmcl_lightning.errors import DataError

__all__ = ["ByColumn", "ByFile", "ByFolder", "LabelledPictures", "Listed"]

#: Files, and their class indices, shape ``(N,)``, -1 without labels.
Listed = tuple[list[str], NDArray[np.int64]]


@dataclass
class LabelledPictures:
    """Pictures of one split: by class, and those without labels."""

    classes: dict[str, list[str]]
    loose: list[str]

    @property
    def labelled(self) -> bool:
        """Whether any has a label."""
        return bool(self.classes)

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [*(path for paths in self.classes.values() for path in paths), *self.loose]

    def numbered(self, names: list[str]) -> Listed:
        """Return the pictures by class, those without a label last, and their indices among ``names``."""
        groups = [*(self.classes.get(name, []) for name in names), self.loose]
        indices = np.repeat([*range(len(names)), -1], [len(paths) for paths in groups])
        return [path for paths in groups for path in paths], indices


class ByFolder:
    """Pictures of a folder, whose labels are the folders in it, or in its splits.

    Args:
        walk: Lists folders.
        top: The folder.
        only: Names of the class folders that are read, None for all.
    """

    kind = "class folder"
    otherwise = "if {} is a class, rename it or set data.layout to classes"

    def __init__(self, walk: Walk, top: str, only: Collection[str] | None = None) -> None:
        self.walk = walk
        self.top = top
        self.only = only

    def names(self) -> list[str]:
        """Return the names of what may be splits."""
        return self.walk.entries(self.top)[1]

    def place(self, split: str) -> str:
        """Say where a split is."""
        return os.path.join(self.top, split)

    def count(self, split: str) -> int:
        """Return the number of pictures of a split."""
        return self.walk.count(self.place(split))

    def lacking(self, split: str) -> str:
        """Say what a split that cannot be held out does not have."""
        if split == "val" and os.path.isdir(os.path.join(self.place(split), "images")):  # not so of its test
            return "whose labels, val_annotations.txt of Tiny-ImageNet, are missing"
        return "which has no class folders"

    def read(self, split: str = "") -> LabelledPictures:
        """Read a split, or the whole folder: class folders with pictures at any depth, or pictures alone."""
        folder = self.place(split) if split else self.top
        pictures, folders = self.walk.entries(folder)
        if split and not pictures and folders == ["images"]:
            return self._annotated(folder, split)
        loose = [os.path.join(folder, name) for name in pictures]
        if self.only is not None:
            if lost := sorted(set(self.only) - set(folders)):
                raise DataError(
                    f"{folder} lacks {len(lost)} of the {len(self.only)} class folders of data.class_list, "
                    f"such as {lost[0]}"
                )
            self.walk.ignored["class folders that class_list does not have"] += len(folders) - len(self.only)
            folders = [name for name in folders if name in self.only]
        found = {name: list(self.walk.pictures_below(os.path.join(folder, name))) for name in folders}
        classes = {name: paths for name, paths in found.items() if paths}
        if loose and classes:
            raise DataError(
                f"{folder} holds both images ({pictures[0]}, ...) and folders of images ({min(classes)}, "
                "...): set data.layout to flat to take all of them without labels, or move the images into a "
                "class folder"
            )
        if not loose and not classes:
            raise self.walk.nothing(folder)
        self.walk.ignored["class folders without a picture"] += len(found) - len(classes) if classes else 0
        return LabelledPictures(classes, loose)

    def _annotated(self, folder: str, split: str) -> LabelledPictures:
        """Read ``images/NAME`` with their labels in a table beside, as in Tiny-ImageNet, or without any."""
        paths = list(self.walk.pictures_below(os.path.join(folder, "images")))
        table = os.path.join(folder, f"{split}_annotations.txt")
        labels = read_annotations(table) if os.path.isfile(table) else {}
        self.walk.take(table)
        found = defaultdict(list)
        for path in paths:
            found[labels.pop(os.path.basename(path), "")].append(path)
        self.walk.ignored[f"rows of {os.path.basename(table)} without a picture"] += len(labels)
        loose = found.pop("", [])
        for name in [name for name in found if self.only is not None and name not in self.only]:
            self.walk.ignored["pictures of classes that class_list does not have"] += len(found.pop(name))
        return LabelledPictures(dict(found), loose)

    def refuse(self, train: str, others: list[str]) -> None:
        """Refuse pictures beside those to train on, where none is held out: there may be no splits at all."""
        raise DataError(
            f"{self.top} has a folder {train} and, beside it, folders of images ({', '.join(others[:3])}, "
            f"...) but none to hold out (test, val, ...): {self.otherwise.format(train)}; if it is the "
            "training split, move the others away"
        )

    def sorted_names(self, classes: Iterable[str]) -> list[str]:
        """Return the classes in the order of their indices."""
        return sorted(classes)

    def source(self, pictures: LabelledPictures) -> str:
        """Say where the labels of pictures are."""
        return "with class folders" if pictures.labelled else "unlabelled"

    def describe(self, pictures: LabelledPictures, within: str) -> str:
        """Say how a folder without splits was read."""
        return f"class folders{within}" if pictures.labelled else f"pictures alone{within}, unlabelled"


class ByFile(ByFolder):
    """Pictures of a folder at any depth, whose labels stand in a file, or nowhere.

    Args:
        walk: Lists folders.
        top: The folder.
        file: The file, or None.
    """

    kind = "class"
    otherwise = "if {} is no split, set data.layout to flat"

    def __init__(self, walk: Walk, top: str, file: LabelFile | None) -> None:
        super().__init__(walk, top)
        self.file = file

    def lacking(self, split: str) -> str:
        """Say what a split that cannot be held out does not have."""
        return "none of which has a label"

    def read(self, split: str = "") -> LabelledPictures:
        """Read a split, or the whole folder."""
        folder = self.place(split) if split else self.top
        paths = list(self.walk.pictures_below(folder))
        if not paths:
            raise self.walk.nothing(folder)
        return self._label(paths)

    def sorted_names(self, classes: Iterable[str]) -> list[str]:
        """Return the classes in the order of their indices."""
        return sorted_names(classes)

    def source(self, pictures: LabelledPictures) -> str:
        """Say where the labels of pictures are."""
        return "unlabelled" if self.file is None else f"labels from {self.file.read_as}"

    def describe(self, pictures: LabelledPictures, within: str) -> str:
        """Say how a folder without splits was read."""
        return f"all pictures at any depth{within}, {self.source(pictures)}"

    def _label(self, paths: list[str]) -> LabelledPictures:
        labels = {} if self.file is None else self.file.labels
        found = defaultdict(list)
        for path in paths:
            found[labels.get(path, "")].append(path)
        loose = found.pop("", [])
        return LabelledPictures(dict(found), loose)


class ByColumn(ByFile):
    """Pictures whose splits stand in the file of their labels.

    Args:
        walk: Knows what is left out.
        file: The file.
        splits: Split of each picture that has one.
    """

    def __init__(self, walk: Walk, file: LabelFile, splits: dict[str, str]) -> None:
        super().__init__(walk, str(file.path), file)
        self._found: dict[str, list[str]] = defaultdict(list)
        for picture in file.pictures:
            self._found[splits.get(picture, "")].append(picture)
        walk.ignored[f"pictures without a split in {file.path.name}"] += len(self._found.pop("", []))

    def names(self) -> list[str]:
        """Return the splits."""
        return sorted(self._found)

    def place(self, split: str) -> str:
        """Say where a split is."""
        return f"the split {split} of {self.top}"

    def count(self, split: str) -> int:
        """Return the number of pictures of a split."""
        return len(self._found[split])

    def read(self, split: str = "") -> LabelledPictures:
        """Read a split."""
        return self._label(self._found[split])

    def refuse(self, train: str, others: list[str]) -> None:
        """Nothing: the file says what is a split."""
