"""The data sets of few-shot evaluations, as one set of labelled images each."""

from __future__ import annotations

import csv
import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.datasets import EuroSAT

from mmcl_lightning.datamodules.image_folder import ImageFolderDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.datamodules.sources import JoinedSource, Source, SubsetSource, with_labels
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.tree import PictureTree, scan_tree
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import ImageTransform, StretchedCrop
from mmcl_lightning.transforms.images import PixelImage, resize_image

__all__ = ["FewShotDataModule"]

_IMAGE_SIZE = 224  # pixels, of the published protocol
_CHEST_SIZE = 256  # pixels, to which the published code brings ChestX first

#: Findings of ChestX that are its classes, in the order of the published code.
_FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumothorax",
)  # fmt: skip
#: Columns of ISIC's file, in the order of its classes.
_LESIONS = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")

#: Rows of a file of labels: the name of an image, and its class, or None for what is left out.
_Rows = Iterator[tuple[str, str | None]]


def _isic_rows(rows: Iterator[dict[str, str]]) -> _Rows:
    for row in rows:
        hot = [name for name in _LESIONS if float(row[name]) > 0.5]
        if len(hot) != 1:
            raise ValueError(f"{row['image']} has {len(hot)} classes, not one")
        yield f"{row['image']}.jpg", hot[0]


def _chestx_rows(rows: Iterator[dict[str, str]]) -> _Rows:
    for row in rows:
        finding = row["Finding Labels"]
        yield row["Image Index"], finding if finding in _FINDINGS else None  # of several "A|B" is in none


@dataclass(frozen=True)
class _Layout:
    """Where a data set keeps its images, below the root, and its labels.

    Attributes:
        images: Folder of the images, or of the folders of the classes.
        labels: File of the labels, or None where folders are classes.
        classes: Names of the classes by index, where a file has the labels.
        rows: Reads the rows of the file.
    """

    images: str
    labels: str | None = None
    classes: tuple[str, ...] = ()
    rows: Callable[[Iterator[dict[str, str]]], _Rows] | None = None


_LAYOUTS = {
    "eurosat": _Layout("eurosat/2750"),
    "cropdiseases": _Layout("CropDiseases/dataset/train"),
    "isic": _Layout(
        "ISIC/ISIC2018_Task3_Training_Input",
        "ISIC/ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv",
        _LESIONS,
        _isic_rows,
    ),
    "chestx": _Layout("ChestX/images", "ChestX/Data_Entry_2017.csv", _FINDINGS, _chestx_rows),
}


class FewShotDataModule(ImageFolderDataModule):
    """All labelled images of a data set, from which few-shot episodes are drawn.

    The four sets of Guo et al., ECCV 2020 (arXiv:1912.07200), in their official layouts, or any folder. There
    are no splits: what a folder has for training and testing is one set, so that images a network was
    pretrained on count; give ``root`` as the folder of the test images to leave them out.

    Images are resized, bilinear and whatever their aspect was, to 1.15 times the size of the network's
    images, 257 x 257 pixels for 224, and cut from the centre.

    Batch:
        ``(image, target)``, float32 ``(B, 3, *image_size)``; targets int64.

    Args:
        dataset: ``"folder"``: labelled images in ``root``, as :class:`ImageFolderDataModule` reads them.
            ``"eurosat"``: ``root/eurosat/2750/CLASS``. ``"cropdiseases"``: ``root/CropDiseases/dataset/train/
            CLASS``. ``"isic"``: ISIC 2018, task 3: ``root/ISIC/ISIC2018_Task3_Training_Input`` and
            ``..._GroundTruth``. ``"chestx"``: ``root/ChestX/Data_Entry_2017.csv`` and ``images``; the images
            with one of seven findings alone, brought to 256 x 256 pixels first.
        root: The folder, or the one that holds the data sets.
        download: Download EuroSAT if it is not there; the others have to be fetched by hand.
        image_size: Height and width of an image for the network; None for that of the weights that are
            judged, or 224.
        **kwargs: How a folder is read, mean, std, batch sizes, workers and subsets: see
            :class:`ImageFolderDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: If a file or folder is missing, damaged, or names an image that is not there.
    """

    _uses = ("all", "held out")

    def __init__(
        self,
        dataset: str = "folder",
        root: str = "data",
        download: bool = False,
        image_size: int | tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        if dataset not in ("folder", *_LAYOUTS):
            known = ["folder", *_LAYOUTS]
            near = difflib.get_close_matches(str(dataset).lower(), known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"dataset must be one of {', '.join(known)}, got {dataset!r}{meant}")
        if download and dataset != "eurosat":
            raise ConfigError(f"download fetches eurosat alone, and dataset is {dataset!r}: fetch it by hand")
        self.dataset = dataset
        self.download = download
        super().__init__(root, image_size, holdout=0.0, **kwargs)
        given = [
            name for name, default in (("layout", "auto"), ("labels", "folder"), ("label_columns", None))
            if getattr(self, name) != default
        ]  # fmt: skip
        if dataset != "folder" and given:
            raise ConfigError(
                f"{given[0]} says how a folder is read, and dataset is {dataset!r}: leave it out"
            )

    @property
    def folder(self) -> str:
        """Name of the data set, by which reports tell them apart."""
        return super().folder if self.dataset == "folder" else self.dataset

    def prepare_data(self) -> None:
        """Download the archive, if asked to; Lightning calls this in one process only."""
        if self.download:
            try:
                EuroSAT(self.root, download=True)
            except (OSError, RuntimeError, EOFError) as error:
                raise DataError(f"EuroSAT: the download failed ({error})") from error

    def load_splits(self) -> Splits:
        """List the files: all of them are one set."""
        found = super().load_splits()
        whole = found.pretrain
        if found.heldout is not None:
            whole = JoinedSource([found.pretrain, found.heldout])
        labelled = with_labels(whole)
        if labelled is None:
            raise DataError(
                f"none of the {len(whole)} images has a label, and episodes are drawn by class: give labels "
                "by class folders or by --data.labels"
            )
        return Splits(labelled, None, labelled, labelled)

    def compare(self, found: Preprocessing) -> None:
        """Warn of another size of images; the way of resizing is that of the protocol on purpose.

        Args:
            found: What came with the weights.
        """
        own = self.preprocessing()
        if found.pixels not in (None, own.pixels):
            super().compare(found)

    def default_eval_transform(self) -> ImageTransform:
        """Return the stretched and cut image."""
        return StretchedCrop(self.image_size or _IMAGE_SIZE, mean=self.mean, std=self.std)

    def eval_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the same, of the size, mean and std that came with weights where none are given.

        Args:
            found: What came with them.
        """
        mean, std = self._statistics(found)
        return StretchedCrop(self.image_size or found.pixels or _IMAGE_SIZE, mean=mean, std=std)

    def _read_later(self, listed: Any) -> Source:
        source = super()._read_later(listed)
        return _ChestImages(source) if self.dataset == "chestx" else source

    def _scan(self) -> PictureTree:
        if self._tree is None and self.dataset != "folder":
            self._tree = _scan_official(self.dataset, Path(self.root).expanduser().absolute())
        return super()._scan()


class _ChestImages(SubsetSource):
    """Images brought to 256 x 256 pixels, bicubic, as the published code reads them."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, np.arange(len(source)))

    def item(self, index: int) -> PixelImage:
        return resize_image(super().item(index), _CHEST_SIZE, _CHEST_SIZE)


def _scan_official(dataset: str, root: Path) -> PictureTree:
    """List the images of a data set in its official layout.

    Raises:
        DataError: If a file or folder is missing, or the file of labels cannot be read, or names an image
            that is not there.
    """
    layout = _LAYOUTS[dataset]
    for path in (root / layout.images, *([root / layout.labels] if layout.labels else [])):
        if not path.exists():
            remedy = (
                "--data.download true fetches it" if dataset == "eurosat" else "it has to be fetched by hand"
            )
            kind = "file" if path.suffix else "folder"
            raise DataError(f"{dataset}: the {kind} {path} is missing; set --data.root, or {remedy}")
    if layout.labels is None:
        return scan_tree(str(root / layout.images), "classes")
    file = root / layout.labels
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = list(layout.rows(csv.DictReader(lines)))  # type: ignore[misc]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        what = f"it has no column {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{dataset}: {file} is not the official file of labels: {what}") from error
    folder = root / layout.images
    there = set(os.listdir(folder))
    kept = [(name, label) for name, label in rows if label is not None]
    if lost := [name for name, _ in kept if name not in there]:
        raise DataError(
            f"{dataset}: {len(lost)} of {len(kept)} images of {file.name} are not in {folder}, the first "
            f"being {lost[0]}"
        )
    targets = np.array([layout.classes.index(str(label)) for _, label in kept], dtype=np.int64)
    ignored = Counter(
        {
            "images of no class of its own": len(rows) - len(kept),
            f"files in {folder.name} that {file.name} does not name": len(there - {name for name, _ in rows}),
        }
    )
    if not kept:
        raise DataError(f"{dataset}: {file} names no image of {', '.join(layout.classes)}")
    paths = [str(folder / name) for name, _ in kept]
    return PictureTree((paths, targets), None, list(layout.classes), f"{dataset}, {file.name}", ignored)
