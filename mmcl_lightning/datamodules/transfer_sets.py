"""The eleven data sets of the published many-shot transfer, and how each is read from its official files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import numpy as np
import torch
import torchvision.datasets as tv

from mmcl_lightning.batches import join_labels
from mmcl_lightning.datamodules.cifar import CIFAR10DataModule, CIFAR100DataModule
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.datamodules.transfer_files import PublishedFiles, Row, ascending, draw_thirty
from mmcl_lightning.datamodules.transfer_names import VOC_CLASSES

__all__ = ["TRANSFER_SETS", "Parts", "TransferSet"]

Metric = Literal["top1", "mean_per_class", "map_11point"]


@dataclass(frozen=True)
class Parts:
    """A data set as it is published.

    Attributes:
        class_names: Names of the classes in the order of their indices.
        train: Training images.
        validation: Validation images, or None where a fifth of the training images takes their place.
        test: Test images.
    """

    class_names: list[str]
    train: Source
    validation: Source | None
    test: Source


@dataclass(frozen=True)
class TransferSet:
    """One data set.

    Attributes:
        title: Its name in messages.
        classes: Number of classes.
        metric: What is published of it: ``"top1"``, ``"mean_per_class"``, the mean of the accuracies within
            the classes, or ``"map_11point"``, the mean of the classes' average precisions, of a set whose
            images may be of several classes.
        sizes: Training, validation and test images as published; of one without validation images, None.
        folder: Folder below the data root, to which its files are relative.
        read: Reads the files.
        download: Fetches what can be fetched, into a root; None where nothing can.
        by_hand: What :attr:`download` does not bring.
    """

    title: str
    classes: int
    metric: Metric
    sizes: tuple[int, int | None, int]
    folder: str
    read: Callable[[PublishedFiles], Parts]
    download: Callable[[str], object] | None
    by_hand: str = ""

    @property
    def multi_label(self) -> bool:
        """Whether an image may be of several classes."""
        return self.metric == "map_11point"


def _aircraft(files: PublishedFiles) -> Parts:
    names = [name for _, name in files.lines("data/variants.txt")]

    def part(split: str) -> Source:
        table = f"data/images_variant_{split}.txt"
        rows = ((where, *line.partition(" ")[::2]) for where, line in files.lines(table))
        return files.pictures(table, ((w, f"data/images/{image}.jpg", n) for w, image, n in rows), names)

    return Parts(names, part("train"), part("val"), part("test"))


def _caltech101(files: PublishedFiles) -> Parts:
    text = resources.files(__package__).joinpath("caltech101.txt").read_text(encoding="utf-8")
    counts = {name: int(count) for name, count in (line.split() for line in text.splitlines()[1:])}
    listed = {}
    for name, count in counts.items():
        if not (files.folder / name).is_dir():
            raise files.missing(name)
        listed[name] = sorted(path.name for path in (files.folder / name).glob("*.jpg"))
        if len(listed[name]) != count:
            raise files.damaged(name, f"{len(listed[name])} files that end in .jpg, published are {count}")
    drawn = {
        name: {listed[name][position] for position in positions.tolist()}
        for name, positions in zip(counts, draw_thirty(list(counts.values())), strict=True)
    }

    def part(train: bool) -> Source:
        chosen = [(name, file) for name in counts for file in listed[name] if (file in drawn[name]) == train]
        return files.pictures(".", (("", f"{name}/{file}", name) for name, file in chosen), list(counts))

    return Parts(list(counts), part(True), None, part(False))


def _cars(files: PublishedFiles) -> Parts:
    (names,) = files.mat("devkit/cars_meta.mat", "class_names")
    classes = [str(name) for name in np.atleast_1d(names)]

    def part(split: str, table: str) -> Source:
        (notes,) = files.mat(table, "annotations")
        rows = ascending([(str(n["fname"]), int(n["class"]) - 1) for n in np.atleast_1d(notes)])
        return files.pictures(table, ((w, f"cars_{split}/{file}", k) for w, (file, k) in rows), classes)

    train, test = part("train", "devkit/cars_train_annos.mat"), "cars_test_annos_withlabels.mat"
    return Parts(classes, train, None, part("test", test))


def _cifar(kind: type[CIFAR10DataModule]) -> Callable[[PublishedFiles], Parts]:
    def read(files: PublishedFiles) -> Parts:
        module = kind(root=str(files.folder))
        splits = module.load_splits()
        assert splits.query is not None
        return Parts(module.class_names or [], splits.pretrain, None, splits.query)

    return read


def _dtd(files: PublishedFiles) -> Parts:
    tables = {split: f"labels/{split}1.txt" for split in ("train", "val", "test")}
    lines = {split: files.lines(table) for split, table in tables.items()}
    # Of all parts: one that lacks a class would number those after it differently.
    names = sorted({line.partition("/")[0] for part in lines.values() for _, line in part})
    train, val, test = (
        files.pictures(tables[split], ((w, f"images/{ln}", ln.partition("/")[0]) for w, ln in part), names)
        for split, part in lines.items()
    )
    return Parts(names, train, val, test)


def _flowers(files: PublishedFiles) -> Parts:
    names, table = list(tv.Flowers102.classes), "setid.mat"
    (labels,) = files.mat("imagelabels.mat", "labels")
    parts = files.mat(table, "trnid", "valid", "tstid")

    def rows(numbers: Any) -> Iterator[Row]:
        for where, number in ascending(np.atleast_1d(numbers).tolist()):
            label = int(labels[number - 1]) - 1 if 1 <= number <= len(labels) else f"of image {number}"
            yield where, f"jpg/image_{number:05d}.jpg", label

    train, val, test = (files.pictures(table, rows(numbers), names) for numbers in parts)
    return Parts(names, train, val, test)


def _food(files: PublishedFiles) -> Parts:
    tables = {split: f"meta/{split}.json" for split in ("train", "test")}
    listed = {split: files.json(table) for split, table in tables.items()}
    names = sorted({name for part in listed.values() for name in part})

    def rows(part: dict[str, list[str]]) -> Iterator[Row]:
        for name, images in part.items():
            for image in images:
                yield image, f"images/{image}.jpg", name

    train, test = (files.pictures(tables[split], rows(part), names) for split, part in listed.items())
    return Parts(names, train, None, test)


def _pets(files: PublishedFiles) -> Parts:
    tables = ("annotations/trainval.txt", "annotations/test.txt")
    found: dict[int, str] = {}
    parts = []
    for table in tables:
        rows: list[Row] = []
        for where, line in files.lines(table):
            image, label = (*line.split(), "")[:2]
            if not label.isdigit():
                raise files.damaged(table, f"{where} is {line!r}")
            found.setdefault(int(label) - 1, image.rpartition("_")[0].replace("_", " ").title())
            rows.append((where, f"images/{image}.jpg", int(label) - 1))
        parts.append(rows)
    names = [found.get(index, f"class {index + 1}") for index in range(max(found, default=-1) + 1)]
    train, test = (files.pictures(*part, names) for part in zip(tables, parts, strict=True))
    return Parts(names, train, None, test)


def _sun397(files: PublishedFiles) -> Parts:
    names = [line[3:] for _, line in files.lines("ClassName.txt")]  # "/a/apse/indoor" is "apse/indoor"

    def part(table: str) -> Source:
        lines = files.lines(table)
        return files.pictures(table, ((w, ln[1:], ln[3:].rpartition("/")[0]) for w, ln in lines), names)

    return Parts(names, part("Training_01.txt"), None, part("Testing_01.txt"))


def _voc2007(files: PublishedFiles) -> Parts:
    def part(split: str) -> Source:
        table = f"ImageSets/Main/{split}.txt"
        images = files.lines(table)
        position = {image: row for row, (_, image) in enumerate(images)}
        labels = torch.zeros(len(images), len(VOC_CLASSES), dtype=torch.bool)
        for index, name in enumerate(VOC_CLASSES):
            of_class = f"ImageSets/Main/{name}_{split}.txt"
            for where, line in files.lines(of_class):
                image, value = (*line.split(), "")[:2]
                if image not in position or value not in ("1", "0", "-1"):
                    raise files.damaged(of_class, f"{where} is {line!r}")
                labels[position[image], index] = value == "1"  # 0, difficult, counts as negative
        rows = ((where, f"JPEGImages/{image}.jpg") for where, image in images)
        return files.joined(table, rows, join_labels(labels).numpy())

    return Parts(list(VOC_CLASSES), part("train"), part("val"), part("test"))


def _download_voc(root: str) -> None:
    for split in ("trainval", "test"):
        tv.VOCDetection(root, year="2007", image_set=split, download=True)


#: By name; the sizes and metrics of Ericsson et al., CVPR 2021, arXiv:2011.13377.
TRANSFER_SETS: dict[str, TransferSet] = {
    "aircraft": TransferSet(
        "FGVC Aircraft", 100, "mean_per_class", (3334, 3333, 3333), "fgvc-aircraft-2013b", _aircraft,
        lambda root: tv.FGVCAircraft(root, download=True),
    ),
    "caltech101": TransferSet(
        "Caltech-101", 102, "mean_per_class", (2416, None, 6728), "caltech101/101_ObjectCategories",
        _caltech101, lambda root: tv.Caltech101(root, download=True),
    ),
    "cars": TransferSet(
        "Stanford Cars", 196, "top1", (8144, None, 8041), "stanford_cars", _cars, None,
        "its source is gone: bring devkit, cars_train, cars_test and cars_test_annos_withlabels.mat",
    ),
    "cifar10": TransferSet(
        "CIFAR-10", 10, "top1", (50000, None, 10000), "", _cifar(CIFAR10DataModule),
        lambda root: CIFAR10DataModule(root, download=True).prepare_data(),
    ),
    "cifar100": TransferSet(
        "CIFAR-100", 100, "top1", (50000, None, 10000), "", _cifar(CIFAR100DataModule),
        lambda root: CIFAR100DataModule(root, download=True).prepare_data(),
    ),
    "dtd": TransferSet(
        "DTD", 47, "top1", (1880, 1880, 1880), "dtd/dtd", _dtd, lambda root: tv.DTD(root, download=True)
    ),
    "flowers": TransferSet(
        "Oxford Flowers 102", 102, "mean_per_class", (1020, 1020, 6149), "flowers-102", _flowers,
        lambda root: tv.Flowers102(root, download=True),
    ),
    "food": TransferSet(
        "Food-101", 101, "top1", (75750, None, 25250), "food-101", _food,
        lambda root: tv.Food101(root, download=True),
    ),
    "pets": TransferSet(
        "Oxford-IIIT Pets", 37, "mean_per_class", (3680, None, 3669), "oxford-iiit-pet", _pets,
        lambda root: tv.OxfordIIITPet(root, download=True),
    ),
    "sun397": TransferSet(
        "SUN397", 397, "top1", (19850, None, 19850), "SUN397", _sun397,
        lambda root: tv.SUN397(root, download=True),
        "Training_01.txt and Testing_01.txt are a second archive, Partitions.zip of the same page",
    ),
    "voc2007": TransferSet(
        "PASCAL VOC 2007", 20, "map_11point", (2501, 2510, 4952), "VOCdevkit/VOC2007", _voc2007,
        _download_voc,
    ),
}  # fmt: skip
