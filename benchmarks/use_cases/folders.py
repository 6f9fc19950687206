"""Folders of every layout, and which row of a prediction is which picture."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from mmcl_lightning.datamodules.tree import scan_tree
from use_cases.cases import case, command, error_of, folder, picture, tree

GROUP = "Folders"


def read(root: str = ".", **options: Any) -> str:
    """Understand a folder and say how."""
    data = folder(root, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.setup()
    return "; ".join(" ".join(line.split()) for line in data.description().splitlines())


for names, expected in (
    (
        ("train/a", "train/b", "test/a", "test/b"),
        "train and test, with class folders; train 8 images; held out 8",
    ),
    (("Training/a", "Training/b", "Testing/a", "Testing/b"), "Training and Testing, with class folders"),
    (("Train/a", "Train/b", "Val/a", "Val/b"), "Train and Val, with class folders"),
    (("set/train/a", "set/train/b", "set/valid/a", "set/valid/b"), "train and valid within set"),
    (("a", "b"), "class folders; train 6 images; held out 2 images; 2 classes: a, b"),
    (("a", "b", "__MACOSX/a", ".hidden/c"), "2 classes: a, b; not read: hidden or system: 2"),
    (
        ("a", "b", "a/@eaDir"),
        "train 6 images; held out 2 images; 2 classes: a, b; not read: hidden or system: 1",
    ),
    (("train/a", "train/b", "test"), "pictures in test, which has no class folders: 4"),
):

    def _read(_: Path, names: tuple[str, ...] = names) -> str:
        tree(*names)
        return read()

    case(GROUP, ", ".join(f"{name}/*" for name in names), expected)(_read)


@case(GROUP, "pictures alone", "unlabelled")
def _(_: Path) -> str:
    tree(".", each=10)
    return read()


@case(GROUP, "year/month/x.jpg, `layout: flat`", "train 14 images; held out 2 images")
def _(_: Path) -> str:
    tree("2023/01", "2023/02", "2024/01", "2024/02")
    return read(layout="flat")


@case(GROUP, "pictures beside class folders", "set data.layout to flat")
def _(_: Path) -> str:
    tree("a", "b")
    picture("x.png")
    return error_of(read)


@case(GROUP, "labels of a CSV file, `labels: labels.csv`", "2 classes: cat, dog")
def _(_: Path) -> str:
    tree(".", each=10)
    rows = [f"{index}.png,{'cat' if index % 2 else 'dog'}" for index in range(10)]
    Path("labels.csv").write_text("\n".join(["file,label", *rows]))
    return read(labels="labels.csv")


@case(GROUP, "a CSV file with splits, one row too many and one missing", "2 classes: cat, dog")
def _(_: Path) -> str:
    tree(".", each=10)
    rows = [f"{i},{'cat' if i % 2 else 'dog'},{'train' if i < 7 else 'test'}" for i in (*range(9), 99)]
    Path("labels.csv").write_text("\n".join(["id,class,split", *rows]))
    return read(labels="labels.csv")


@case(GROUP, "class folders, `labels: none`", "unlabelled")
def _(_: Path) -> str:
    tree("a", "b")
    return read(labels="none")


@case(GROUP, "a link to the parent folder", "train 6 images; held out 2 images")
def _(_: Path) -> str:
    tree("a", "b")
    os.symlink("..", "a/again")
    return read()


@case(GROUP, "copies of training pictures among the test pictures", "are copies of training images")
def _(_: Path) -> str:
    tree("train/a", "train/b", "test/a", "test/b")
    for index in range(3):
        shutil.copy(f"train/a/{index}.png", f"test/a/copy{index}.png")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        folder().setup("fit")
    return next((str(w.message) for w in said if "copies" in str(w.message)), "nothing is said")


@case(GROUP, "files that are no pictures", ".txt: 1")
def _(_: Path) -> str:
    tree("a", "b")
    Path("a/notes.txt").write_text("x")
    return read()


@case(GROUP, "one picture per class", "2 classes: a, b")
def _(_: Path) -> str:
    tree("a", "b", each=1)
    return read()


@case(GROUP, "`holdout: 0`", "train 8 images; 2 classes: a, b")
def _(_: Path) -> str:
    tree("a", "b")
    return read(holdout=0.0)


@case(GROUP, "train beside folders that are no splits", "if train is a class, rename it or set data.layout")
def _(_: Path) -> str:
    tree("train", "bus", "car")
    return error_of(scan_tree, ".")


ROWS = "Which row is which picture"
NETWORK = ["--checkpoint=random", "--backbone=conv4", "--accelerator=cpu"]
OPTIONS = ["--data.image_size=16", "--data.num_workers=0"]


@case(ROWS, "`embed` of class folders", "8 rows of 8 pictures, names right: True")
def _(_: Path) -> str:
    tree("pics/a", "pics/b")
    command("embed", *NETWORK, *OPTIONS, "--data.root=pics", "--out=out.npz")
    found = np.load("out.npz")
    right = sorted(found["path"]) == sorted(f"{c}/{i}.png" for c in "ab" for i in range(4))
    classes = all(path.startswith(name) for path, name in zip(found["path"], found["class"], strict=True))
    return f"{len(found['h'])} rows of 8 pictures, names right: {right and classes}; arrays {sorted(found)}"


@case(ROWS, "`embed` twice", "representations.npz and representations_2.npz")
def _(_: Path) -> str:
    tree("pics")
    for _ in range(2):
        command("embed", *NETWORK, *OPTIONS, "--data.root=pics")
    return " and ".join(sorted(path.name for path in Path().glob("*.npz")))


@case(ROWS, "`embed` with a damaged picture", "1 of 5 pictures cannot be read")
def _(_: Path) -> str:
    tree("pics")
    Path("pics/broken.jpg").write_bytes(b"x")
    return command("embed", *NETWORK, *OPTIONS, "--data.root=pics", keep="cannot be read|Wrote")


@case(ROWS, "near copies across splits, `neighbours`", "across splits")
def _(_: Path) -> str:
    tree("pics/train/a", "pics/train/b", "pics/test/a", "pics/test/b")
    shutil.copy("pics/train/a/0.png", "pics/test/a/copy.png")
    command("embed", *NETWORK, *OPTIONS, "--data.root=pics", "--out=out.npz")
    return command("neighbours", "out.npz", "--duplicates=0.9999", keep="duplicates|pairs")
