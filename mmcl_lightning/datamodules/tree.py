"""Understand a folder of pictures: which are trained on, which are held out, and of which class each is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmcl_lightning.datamodules.pictures import is_picture
from mmcl_lightning.errors import DataError

__all__ = ["Layout", "PictureTree", "scan_tree"]

Layout = Literal["auto", "splits", "classes", "flat"]

#: Names of split folders, in lower case and without separators.
_TRAIN = ("train", "training", "trainset", "trainingset")
_TEST = ("test", "testing", "testset", "val", "valid", "validation", "valset", "validationset", "eval")
#: Folders that systems and programs leave among pictures; hidden ones besides.
_SYSTEM = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}

#: Files, and their class indices, shape ``(N,)``, -1 without labels.
Listed = tuple[list[str], NDArray[np.int64]]


@dataclass
class PictureTree:
    """What a folder holds.

    Attributes:
        train: Files to train on, by class, and their class indices, shape ``(N,)``, -1 without labels.
        test: Held-out files, likewise, or None where the folder has no split for them.
        class_names: Sorted names of the class folders, or None without labels.
        read_as: How the layout was read, in words.
        ignored: Number of files and folders that are not read, by the reason or the ending of their names.
    """

    train: Listed
    test: Listed | None
    class_names: list[str] | None
    read_as: str
    ignored: Counter[str] = field(default_factory=Counter)


def scan_tree(root: str, layout: Layout = "auto") -> PictureTree:
    """List the pictures of a folder.

    Hidden and system folders are left out at every level, and links into the folder itself are not followed,
    so that no picture is read twice. What is left out is counted.

    Args:
        root: The folder.
        layout: ``"splits"``: a folder to train on and one to hold out, each with class folders or with
            pictures alone. ``"classes"``: class folders. ``"flat"``: all pictures at any depth, unlabelled.
            ``"auto"``: splits where there is a folder ``train``, also in capitals or under a similar name;
            else classes where all pictures are in folders; else flat. A folder that holds nothing but one
            other folder with folders in it is taken for a wrapping, and entered.

    Raises:
        DataError: If the folder is missing, holds no picture, or does not have the layout.
    """
    folder = Path(root).expanduser().absolute()
    if folder.is_file():
        raise DataError(f"{folder} is a file; set --data.root to a folder with images")
    if not folder.is_dir():
        raise DataError(f"the image folder {folder} does not exist; set --data.root to a folder with images")
    walk = _Walk(str(folder))
    top = _unwrap(walk, str(folder)) if layout in ("auto", "splits") else str(folder)
    within = "" if top == str(folder) else f" within {os.path.relpath(top, folder)}"
    splits = _split_folders(walk, top) if layout in ("auto", "splits") else {}
    if "train" in splits:
        return _read_splits(walk, top, splits, within)
    if layout == "splits":
        raise DataError(f"layout is 'splits', and {top} has no folder train (or {', '.join(_TRAIN[1:])})")
    if layout == "flat":
        return _flat(walk, top, "all pictures at any depth, unlabelled")
    return _read_classes(walk, top, layout, within)


class _Walk:
    """Lists folders, and remembers what it left out."""

    def __init__(self, root: str) -> None:
        self.real_root = os.path.realpath(root)
        self.ignored: Counter[str] = Counter()
        self._reported: set[str] = set()
        self._links: dict[str, str] = {}  # folders outside by the link that leads to them

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the pictures and of the folders of a folder, sorted."""
        pictures, folders = [], []
        with os.scandir(folder) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name.startswith(".") or entry.name.lower() in _SYSTEM:
                    self._leave_out(entry.path, "hidden or system")
                elif entry.is_dir():
                    if entry.is_symlink() and not self._leads_out(entry.path):
                        self._leave_out(entry.path, "links into the folder itself, or twice to one place")
                    else:
                        folders.append(entry.name)
                elif is_picture(entry.path):
                    pictures.append(entry.name)
                else:
                    self._leave_out(entry.path, os.path.splitext(entry.name)[1].lower() or "no ending")
        return pictures, folders

    def pictures_below(self, folder: str) -> Iterator[str]:
        """Return all pictures of a folder and of those in it, sorted by folder."""
        pictures, folders = self.entries(folder)
        for name in pictures:
            yield os.path.join(folder, name)
        for name in folders:
            yield from self.pictures_below(os.path.join(folder, name))

    def _leads_out(self, link: str) -> bool:
        """Whether a link leads out of the root, to a place where no other link has led."""
        target = os.path.realpath(link)
        inside = (target + os.sep).startswith(self.real_root + os.sep)
        above = (self.real_root + os.sep).startswith(target.rstrip(os.sep) + os.sep)
        return not inside and not above and self._links.setdefault(target, link) == link

    def _leave_out(self, path: str, why: str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            self.ignored[why] += 1


@dataclass
class _Split:
    """Pictures of one folder: by class, or without labels."""

    classes: dict[str, list[str]]
    loose: list[str]

    @property
    def labelled(self) -> bool:
        return bool(self.classes)


def _unwrap(walk: _Walk, folder: str) -> str:
    """Enter folders that hold nothing but one folder with folders in it, and are no split themselves."""
    while True:
        pictures, folders = walk.entries(folder)
        if pictures or len(folders) != 1 or _plain(folders[0]) in (*_TRAIN, *_TEST):
            return folder
        below = os.path.join(folder, folders[0])
        pictures, inner = walk.entries(below)
        if pictures or not inner:
            return folder
        folder = below


def _split_folders(walk: _Walk, folder: str) -> dict[str, list[str]]:
    """Return the folders to train on and to hold out by their names, the usual ones first."""
    _, folders = walk.entries(folder)
    found = {
        use: [name for known in names for name in folders if _plain(name) == known]
        for use, names in (("train", _TRAIN), ("test", _TEST))
    }
    return {use: names for use, names in found.items() if names}


def _read_splits(walk: _Walk, folder: str, splits: dict[str, list[str]], within: str) -> PictureTree:
    """Read a folder that has one to train on."""
    names = splits["train"]
    if len(names) > 1:
        raise DataError(f"{folder} has several folders to train on, {' and '.join(names)}: keep one")
    _, folders = walk.entries(folder)
    others = [name for name in folders if name not in (*names, *splits.get("test", []))]
    beside = {name: found for name in others if (found := _count(walk, os.path.join(folder, name)))}
    if beside and "test" not in splits:
        raise DataError(
            f"{folder} has a folder {names[0]} and, beside it, folders of images ("
            f"{', '.join([*beside][:3])}, ...) but none to hold out (test, val, ...): if {names[0]} is a "
            "class, rename it or set data.layout to classes; if it is the training split, move the others "
            "away"
        )
    walk.ignored.update({f"pictures in {name}, which is no split": found for name, found in beside.items()})
    train = _read_split(walk, os.path.join(folder, names[0]))
    test, chosen = None, ""
    for name in splits.get("test", []):
        found = _count(walk, os.path.join(folder, name))
        if test is not None:  # that one counts
            walk.ignored[f"pictures in {name}, as {chosen} is held out"] += found
        elif found:
            split = _read_split(walk, os.path.join(folder, name))
            if split.labelled >= train.labelled:
                test, chosen = split, name
            else:
                walk.ignored[f"pictures in {name}, which has no class folders"] += found
    read_as = f"{names[0]}{f' and {chosen}' if chosen else ''}{within}"
    if not train.labelled:
        held = None if test is None else _unlabelled(_all_of(test))
        return PictureTree(_unlabelled(train.loose), held, None, f"{read_as}, unlabelled", walk.ignored)
    classes = sorted(train.classes)
    unknown = [] if test is None else sorted(set(test.classes) - set(classes))
    if unknown:
        raise DataError(
            f"{os.path.join(folder, chosen)} has the class folder {unknown[0]!r}, which the training images "
            "do not have"
        )
    held = None if test is None else _by_class(test.classes, classes)
    listed = _by_class(train.classes, classes)
    return PictureTree(listed, held, classes, f"{read_as}, with class folders", walk.ignored)


def _read_classes(walk: _Walk, folder: str, layout: Layout, within: str) -> PictureTree:
    """Read a folder without splits: class folders, or pictures alone."""
    split = _read_split(walk, folder)
    if not split.labelled:
        if layout == "classes":
            raise DataError(f"layout is 'classes', and {folder} has no folders with images")
        read_as = f"pictures alone{within}, unlabelled"
        return PictureTree(_unlabelled(split.loose), None, None, read_as, walk.ignored)
    classes = sorted(split.classes)
    listed = _by_class(split.classes, classes)
    return PictureTree(listed, None, classes, f"class folders{within}", walk.ignored)


def _flat(walk: _Walk, folder: str, read_as: str) -> PictureTree:
    paths = list(walk.pictures_below(folder))
    if not paths:
        raise _nothing(walk, folder)
    return PictureTree(_unlabelled(paths), None, None, read_as, walk.ignored)


def _read_split(walk: _Walk, folder: str) -> _Split:
    """Read class folders, whose pictures lie at any depth, or pictures alone."""
    pictures, folders = walk.entries(folder)
    loose = [os.path.join(folder, name) for name in pictures]
    found = {name: list(walk.pictures_below(os.path.join(folder, name))) for name in folders}
    classes = {name: paths for name, paths in found.items() if paths}
    if loose and classes:
        raise DataError(
            f"{folder} holds both images ({pictures[0]}, ...) and folders of images ({next(iter(classes))}, "
            "...): set data.layout to flat to take all of them without labels, or move the images into a "
            "class folder"
        )
    if not loose and not classes:
        raise _nothing(walk, folder)
    walk.ignored["class folders without a picture"] += len(found) - len(classes) if classes else 0
    return _Split(classes, loose)


def _count(walk: _Walk, folder: str) -> int:
    """Return the number of pictures in a folder, at any depth."""
    return sum(1 for _ in walk.pictures_below(folder))


def _unlabelled(paths: list[str]) -> Listed:
    return paths, np.full(len(paths), -1)


def _by_class(classes: dict[str, list[str]], names: list[str]) -> Listed:
    paths = [path for name in names for path in classes.get(name, [])]
    counts = [len(classes.get(name, [])) for name in names]
    return paths, np.repeat(np.arange(len(names)), counts)


def _all_of(split: _Split) -> list[str]:
    return split.loose or [path for paths in split.classes.values() for path in paths]


def _plain(name: str) -> str:
    """A name of a folder in lower case, without what separates words."""
    return "".join(letter for letter in name.lower() if letter not in " _-.")


def _nothing(walk: _Walk, folder: str) -> DataError:
    others = ", ".join(f"{why}: {count}" for why, count in walk.ignored.most_common(5))
    found = f"; what is there is not read ({others})" if others else ""
    return DataError(f"no image was found in {folder} or below{found}")
