"""Understand a folder of pictures: which are trained on, which are held out, and of which class each is."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmcl_lightning._text import plain
from mmcl_lightning.datamodules.class_lists import read_class_list
from mmcl_lightning.datamodules.labelled import ByColumn, ByFile, ByFolder, LabelledPictures, Listed
from mmcl_lightning.datamodules.labels import LabelFile, find_label_file
from mmcl_lightning.datamodules.walking import Walk
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["Layout", "PictureTree", "scan_tree"]

Layout = Literal["auto", "splits", "classes", "flat"]

#: Names of split folders, in lower case and without separators.
_USES = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "eval", "holdout"),
}
_WITH = ("", "set", "images", "imgs", "data")  # as in trainset, train_images and images_train


def _names(use: str) -> tuple[str, ...]:
    """Return the names of a split, the usual ones first."""
    plain = [f"{name}{more}" for more in _WITH for name in _USES[use]]
    return tuple(dict.fromkeys([*plain, *(f"{more}{name}" for more in _WITH for name in _USES[use])]))


_TRAIN, _TEST = _names("train"), _names("test")
_IMAGENET = "ILSVRC2012_val_"  # how the pictures of its archive begin, which lie in one folder


@dataclass
class PictureTree:
    """What a folder holds.

    Attributes:
        train: Files to train on, by class, and their class indices, shape ``(N,)``, -1 without labels; those
            come last.
        test: Held-out files, likewise, or None where the folder has no split for them.
        class_names: Sorted names of the classes, or None without labels.
        read_as: How the layout was read, in words.
        ignored: Number of files and folders that are not read, by the reason or the ending of their names.
    """

    train: Listed
    test: Listed | None
    class_names: list[str] | None
    read_as: str
    ignored: Counter[str] = field(default_factory=Counter)


def scan_tree(
    root: str,
    layout: Layout = "auto",
    labels: str = "folder",
    label_columns: dict[str, str] | None = None,
    class_list: str | None = None,
) -> PictureTree:
    """List the pictures of a folder.

    Hidden and system folders are left out at every level, and links into the folder itself are not followed,
    so that no picture is read twice. What is left out is counted.

    Args:
        root: The folder.
        layout: What its folders mean. ``"splits"``: one is to train on and one to hold out, each with class
            folders or with pictures alone. ``"classes"``: they are classes. ``"flat"``: nothing; all pictures
            at any depth are taken. ``"auto"``: splits where there is a folder ``train``, also in capitals or
            under a similar name; else classes where all pictures are in folders; else flat. A folder that
            holds nothing but one other folder with folders in it is taken for a wrapping, and entered. The
            pictures of a split that holds nothing but a folder ``images`` have their labels in a table beside
            it, ``SPLIT_annotations.txt`` as in Tiny-ImageNet's archive, or none.
        labels: ``"folder"``: the class folders that the layout has. ``"none"``: nothing is labelled, and only
            folders of splits mean something. A CSV file: see
            :class:`~mmcl_lightning.datamodules.labels.LabelFile`; its splits, where it has some, take the
            place of folders, and pictures that have none are not read.
        label_columns: Names of the file's columns by ours, ``path``, ``label`` and ``split``, where they are
            not the usual ones.
        class_list: List of the class folders that are read; see
            :func:`~mmcl_lightning.datamodules.class_lists.read_class_list`. None for all.

    Raises:
        ConfigError: If the options contradict each other.
        DataError: If the folder is missing, holds no picture, or does not have the layout, or the labels
            cannot be read.
    """
    folder = Path(root).expanduser().absolute()
    _check_folder(folder)
    if labels in ("folder", "none") and label_columns:
        raise ConfigError(f"label_columns are of a file, and labels is {labels!r}")
    walk = Walk(str(folder))
    only = None if class_list is None else read_class_list(class_list)
    if labels == "folder":
        return _read(ByFolder(walk, str(folder), only), layout)
    if only is not None:
        raise ConfigError(f"class_list chooses class folders, and labels is {labels!r}")
    if layout == "classes":
        raise ConfigError(
            f"layout is 'classes', which takes the labels from folders, and labels is {labels!r}"
        )
    file = None
    if labels != "none":
        path, pictures = find_label_file(labels, str(folder)), list(walk.pictures_below(str(folder)))
        if not pictures:
            raise walk.nothing(str(folder))
        walk.take(str(path))
        file = LabelFile(path, pictures, str(folder), label_columns or {})
        walk.ignored.update(file.unused)
        if file.splits is not None:
            if layout == "splits":
                raise ConfigError(
                    f"layout is 'splits', and {path.name} has a column of splits: leave one of them out"
                )
            return _read_splits(ByColumn(walk, file, file.splits), "")
    return _read(ByFile(walk, str(folder), file), layout)


def _check_folder(folder: Path) -> None:
    try:
        if folder.stat() and not folder.is_dir():
            raise DataError(f"{folder} is a file; set --data.root to a folder with images")
    except FileNotFoundError as error:
        raise DataError(
            f"the image folder {folder} does not exist; set --data.root to a folder with images"
        ) from error
    except OSError as error:
        raise DataError(f"the image folder {folder} cannot be read ({error.strerror})") from error


def _read(by: ByFolder, layout: Layout) -> PictureTree:
    """Read a folder, whose folders have the meaning of the layout."""
    within = ""
    if layout in ("auto", "splits"):
        folder, by.top = by.top, _unwrap(by.walk, by.top)
        within = "" if by.top == folder else f" within {os.path.relpath(by.top, folder)}"
        if any(_plain(name) in _TRAIN for name in by.names()):
            return _read_splits(by, within)
    if layout == "splits":
        raise DataError(
            f"layout is 'splits', and {by.top} has no folder train (or training, train_images, ...)"
        )
    if layout == "flat" and not isinstance(by, ByFile):
        by = ByFile(by.walk, by.top, None)
    whole = by.read()
    if layout == "classes" and not whole.labelled:
        raise DataError(f"layout is 'classes', and {by.top} has no folders with images")
    return _tree(by, whole, None, by.describe(whole, within))


def _read_splits(by: ByFolder, within: str) -> PictureTree:
    """Read splits, of which one is to train on and one to hold out."""
    names, ignored = by.names(), by.walk.ignored
    trains = [name for name in names if _plain(name) in _TRAIN]
    if not trains:
        raise DataError(f"{by.top} has no split train (or training, ...), but {', '.join(names)}")
    if len(trains) > 1:
        raise DataError(f"{by.top} has several splits to train on, {' and '.join(trains)}: keep one")
    tests = [name for known in _TEST for name in names if _plain(name) == known]
    others = [name for name in names if name not in (*trains, *tests)]
    beside = {name: found for name in others if (found := by.count(name))}
    if beside and not tests:
        by.refuse(trains[0], [*beside])
    ignored.update({f"pictures in {name}, which is no split": found for name, found in beside.items()})
    train, test, chosen = by.read(trains[0]), None, ""
    for name in tests:
        found = by.count(name)
        if test is not None:  # that one counts
            ignored[f"pictures in {name}, as {chosen} is held out"] += found
        elif found:
            split = by.read(name)
            if split.labelled >= train.labelled:
                test, chosen = split, name
            elif os.path.basename(split.loose[0]).startswith(_IMAGENET):
                raise DataError(
                    f"{by.place(name)} has {found} pictures of ImageNet's validation and no class folders: "
                    "move each into the folder of its class; torchvision.datasets.ImageNet does it as it "
                    "unpacks the official archives"
                )
            else:
                ignored[f"pictures in {name}, {by.lacking(name)}"] += found
    unknown = sorted(test.classes.keys() - train.classes.keys()) if test and train.labelled else []
    if unknown:
        raise DataError(
            f"{by.place(chosen)} has the {by.kind} {unknown[0]!r}, which the training images do not have"
        )
    return _tree(
        by, train, test, f"{trains[0]}{f' and {chosen}' if chosen else ''}{within}, {by.source(train)}"
    )


def _tree(by: ByFolder, train: LabelledPictures, test: LabelledPictures | None, read_as: str) -> PictureTree:
    """Number the classes of the training images."""
    names = by.sorted_names(train.classes)
    if test is not None and test.labelled and not names:
        lost = len(test.paths) - len(test.loose)
        by.walk.ignored["labels of held-out pictures, as none to train on has one"] += lost
        test = LabelledPictures({}, test.paths)
    held = None if test is None else test.numbered(names)
    shown = [plain(name) for name in names] or None  # a name that is no UTF-8 could not be written anywhere
    return PictureTree(train.numbered(names), held, shown, read_as, by.walk.ignored)


def _unwrap(walk: Walk, folder: str) -> str:
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


def _plain(name: str) -> str:
    """A name of a folder in lower case, without what separates words."""
    return "".join(letter for letter in name.lower() if letter not in " _-.")
