"""The data sets of the published transfer evaluations, split and cut as there."""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_choice, check_flags, check_whole
from mmcl_lightning.batches import split_labels
from mmcl_lightning.datamodules.images import ImageDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.datamodules.sources import IntArray, JoinedSource, SubsetSource, without_labels
from mmcl_lightning.datamodules.splits import Splits, validation_rows
from mmcl_lightning.datamodules.transfer_files import PublishedFiles
from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS, Parts, TransferSet
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import CIFAR_MEAN, CIFAR_STD, EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["NORMALIZE", "TransferDataModule"]

NORMALIZE: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar": (CIFAR_MEAN, CIFAR_STD),
}


class TransferDataModule(ImageDataModule):
    """One of the eleven data sets on which Ericsson et al. (CVPR 2021) judge a pretrained network.

    Images are resized to ``image_size`` pixels on the short side, bicubic, and cut from the centre. Where a
    set has no validation images of its own, ``RandomState(0)`` shuffles the training images, and the first
    fifth takes their place.

    Batch:
        As :class:`ImageDataModule`. Targets of ``voc2007``, whose images may be of several classes, are
        joined by :func:`~mmcl_lightning.batches.join_labels`; only
        :class:`~mmcl_lightning.modules.LogisticEvaluation` takes them, and to pretrain there are none.

    Args:
        dataset: ``"aircraft"``, ``"caltech101"``, ``"cars"``, ``"cifar10"``, ``"cifar100"``, ``"dtd"``,
            ``"flowers"``, ``"food"``, ``"pets"``, ``"sun397"`` or ``"voc2007"``.
        root: Folder that holds (or receives) the folder of the official archive.
        download: Download what can be fetched if it is not there.
        image_size: Height and width of an image in pixels; published is 224.
        normalize: ``"none"`` for images in [0, 1], ``"imagenet"`` or ``"cifar"`` for their mean and std. None
            takes what came with the weights that are judged, and asks where they do not say it.
        part: ``"search"`` trains on the training images and judges on the validation images, to choose
            options. ``"final"`` trains on both, and judges on the test images.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`ImageDataModule`.

    Raises:
        ConfigError: If an option is out of range; when images are made, if nobody says how to normalise them.
        DataError: From ``setup``, if a file is missing or damaged, or names what there is not.
    """

    set_by = "--data.image_size and --data.normalize"

    def __init__(
        self,
        dataset: str | None = None,
        root: str = "data",
        download: bool = False,
        image_size: int = 224,
        normalize: Literal["none", "imagenet", "cifar"] | None = None,
        part: Literal["search", "final"] = "final",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if dataset not in TRANSFER_SETS:
            near = difflib.get_close_matches(str(dataset), TRANSFER_SETS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"dataset must be one of {', '.join(TRANSFER_SETS)}; got {dataset!r}{hint}")
        check_flags(download=download)
        check_whole(1, image_size=image_size)
        check_choice("part", part, ("search", "final"))
        if normalize is not None:
            check_choice("normalize", normalize, NORMALIZE)
        if self.validation_subset is not None:
            raise ConfigError("validation_subset is not for the transfer sets: --data.part search is")
        if self.train_subset is not None and TRANSFER_SETS[dataset].multi_label:
            raise ConfigError(f"train_subset takes equally many of each class, and images of {dataset} have "
                              "several: leave it out")  # fmt: skip
        self.dataset = dataset
        self.root = root
        self.download = download
        self.image_size = int(image_size)
        self.normalize = normalize
        self.part = part

    @property
    def folder(self) -> str:
        """Name of the set, which tells its records from those of the others."""
        return self.dataset

    @property
    def metric(self) -> str:
        """What is published of the set: ``"top1"``, ``"mean_per_class"`` or ``"map_11point"``."""
        return self._set.metric

    @property
    def multi_label(self) -> bool:
        """Whether an image may be of several classes."""
        return self._set.multi_label

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices, read from the files."""
        return self._parts.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes, read from the files."""
        return len(self._parts.class_names)

    @property
    def held_out(self) -> str:
        """Which images are judged."""
        return "validation" if self.part == "search" else "test"

    @property
    def validation_rows(self) -> IntArray | None:
        """Positions of the validation images among the training images; None where they are not there."""
        if self.part == "search":
            return None
        bank = self._opened().bank
        if isinstance(bank, SubsetSource):
            return np.flatnonzero(np.isin(bank.indices, self._held_out))
        return self._held_out

    def prepare_data(self) -> None:
        """Download what can be fetched, if asked to; Lightning calls this in one process only."""
        if not self.download or self._set.download is None:
            return
        try:
            self._set.download(str(Path(self.root).expanduser()))
        except (OSError, RuntimeError, EOFError) as error:
            raise DataError(f"{self._set.title}: the download failed ({error})") from error

    def load_splits(self) -> Splits:
        """Read the official files."""
        parts = self._parts
        rows = self._held_out
        whole = parts.train if parts.validation is None else JoinedSource([parts.train, parts.validation])
        if self.part == "search":
            train, held = whole.subset(np.setdiff1d(np.arange(len(whole)), rows)), whole.subset(rows)
        else:
            train, held = whole, parts.test
        if len(np.unique(train.targets)) < 2:
            raise DataError(
                f"{self._set.title}: all training images are of one class: there is nothing to fit"
            )
        if self.multi_label and self.task == "pretrain":  # readouts take one class of an image
            return Splits(without_labels(train), without_labels(held), None, None)
        return Splits(train, held, train, held)

    def setup(self, stage: str | None = None) -> None:
        """Open the set once, and say what was found."""
        first = self._splits is None
        super().setup(stage)
        if first:
            rank_zero_info(self.description())
            sizes = tuple(None if part is None else len(part) for part in self._three)
            if sizes != self._set.sizes:
                words = ", ".join(str(size) for size in self._set.sizes if size is not None)
                rank_zero_warn(
                    f"{self._set.title} is published with {words} images, so values do not compare with "
                    "published ones"
                )

    def description(self) -> str:
        """Say how many images there are."""
        parts = zip(("training", "validation", "test"), self._three, strict=True)
        counts = ", ".join(f"{len(source)} {name}" for name, source in parts if source is not None)
        rule = "" if self._parts.validation else f", {len(self._held_out)} of the training for validation"
        return f"{self._set.title}: {counts} images, {self.num_classes} classes{rule}"

    def _class_text(self, target: int) -> str:
        if not self.multi_label or target < 0:
            return super()._class_text(target)
        (of,) = split_labels(torch.tensor([target]), self.num_classes).tolist()
        return " + ".join(name for name, has in zip(self.class_names or [], of, strict=True) if has)

    def take_over(self, found: Preprocessing, strict: bool = True) -> None:
        """Normalise as for the weights that are judged; warn where ``normalize`` says otherwise."""
        super().take_over(found, strict=False)

    def train_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the default augmentation, whose normalisation is that of the weights."""
        return self.default_train_transform()

    def eval_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the published transform, whose normalisation is that of the weights."""
        return self.default_eval_transform()

    def default_train_transform(self) -> ImageTransform:
        """Return a random crop, bicubic, and a flip to classify; else the augmentation for ImageNet."""
        mean, std = self._statistics()
        if self.task == "classify":
            return SimCLRTransform(
                self.image_size, interpolation="bicubic", cj_prob=0.0, gray_prob=0.0, blur_prob=0.0,
                mean=mean, std=std,
            )  # fmt: skip
        return SimCLRTransform.imagenet(self.image_size, mean=mean, std=std)

    def default_eval_transform(self) -> ImageTransform:
        """Return the published transform."""
        return EvalTransform(self.image_size, self.image_size, *self._statistics())

    def _statistics(self) -> tuple[Any, Any]:
        """Return mean and std as ``normalize`` says them, or as they came with weights."""
        if self.normalize is not None:
            return NORMALIZE[self.normalize]
        if self._taken is None or self._taken.statistics is None:
            raise ConfigError(
                "nobody says how images are to be normalised, and a wrong way shows nowhere: set "
                "--data.normalize to none (images in [0, 1]: weights of the ImageNet recipes here, of "
                "SimCLR), imagenet (weights of torchvision, MoCo and most others) or cifar"
            )
        mean, std = self._taken.statistics or (None, None)
        return mean, std

    @property
    def _set(self) -> TransferSet:
        return TRANSFER_SETS[self.dataset]

    @functools.cached_property
    def _parts(self) -> Parts:
        """The set as it is published."""
        fetch = "--data.download true fetches it"
        remedies = [] if self._set.download is None else [fetch]
        remedies += [self._set.by_hand] if self._set.by_hand else []
        folder = Path(self.root).expanduser().absolute() / self._set.folder
        return self._set.read(PublishedFiles(self._set.title, folder, "; ".join(remedies)))

    @property
    def _three(self) -> tuple[Any, Any, Any]:
        return self._parts.train, self._parts.validation, self._parts.test

    @functools.cached_property
    def _held_out(self) -> IntArray:
        """Positions of the validation images among the training and validation images."""
        train, validation = self._parts.train, self._parts.validation
        if validation is None:
            return validation_rows(len(train), 0.2)[0]
        return np.arange(len(train), len(train) + len(validation))
