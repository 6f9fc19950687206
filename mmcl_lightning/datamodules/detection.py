"""Images with boxes around their objects, such as those of PASCAL VOC."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from PIL import Image
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.datamodules.detection_files import Objects, labelled, list_objects
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.transfer_names import VOC_CLASSES
from mmcl_lightning.datamodules.whole_images import JudgedItems, TrainingItems, WholeImageDataModule
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["VOCDetectionDataModule"]

_SHORT_SIDES = tuple(range(480, 801, 32))


def _listed(items: list[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    """Make a batch of items whose parts are of any sizes: a list of each part."""
    return tuple(list(part) for part in zip(*items, strict=True))


def _resized(objects: Objects, image: Image.Image, pixels: Tensor) -> Tensor:
    """Return the boxes of an image ``(n, 4)`` after it was resized."""
    scale = torch.tensor([pixels.shape[2] / image.width, pixels.shape[1] / image.height])
    return torch.from_numpy(objects.boxes) * scale.repeat(2)


class _TrainingImages(TrainingItems):
    """Images and objects under ``(epoch, position)`` keys."""

    def __getitem__(self, given: tuple[int, int] | int) -> tuple[Tensor, dict[str, Tensor]]:
        key = self.key_of(given)
        image, objects = self.source.pair(key[1])
        side, generator = self.draw(*key)
        flipped = bool(torch.rand((), generator=generator) < 0.5)
        pixels = self.transform.replace(side=side)(image)
        boxes = _resized(objects, image, pixels)
        if flipped:
            width = pixels.shape[2]
            pixels = pixels.flip(2)
            boxes = torch.stack((width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]), dim=1)
        return pixels, {"boxes": boxes, "labels": torch.from_numpy(objects.labels)}


class _TestImages(JudgedItems):
    """Images of the evaluation, and the objects of their files."""

    def __getitem__(self, key: int) -> tuple[Tensor, dict[str, Tensor]]:
        image, objects = self.source.pair(key if key >= 0 else ~key)
        return self.transform(image), {
            "boxes": torch.from_numpy(objects.boxes),
            "labels": torch.from_numpy(objects.labels),
            "difficult": torch.from_numpy(objects.difficult),
            "size": torch.tensor([image.height, image.width]),
            "position": torch.tensor(key),
        }


class VOCDetectionDataModule(WholeImageDataModule):
    """Images with boxes: ``root/VOCdevkit/VOC2007/{Annotations,JPEGImages,ImageSets/Main}``.

    Trained on are the lists ``train_split`` of all years, those of boxes marked difficult included; judged is
    ``test_split`` of the first year. Images without objects are trained on as background. What an annotation
    says of files is not read.

    A training image has its short side and a horizontal flip drawn; both depend on (seed, epoch, position of
    the image) alone.

    Batch:
        ``(images, objects)``, a list of each. An image is float32 ``(3, H, W)``, of any size. Its objects are
        a dict: ``boxes`` float32 ``(n, 4)``, left, top, right and bottom edges in pixels, to train of the
        image that is given, to test of its file; ``labels`` int64 ``(n,)``, the classes from 1. To test also
        ``difficult`` bool ``(n,)``, ``size``, height and width of the file, and ``position``, int64, below 0
        where the image fills up a batch and does not count.

    Args:
        root: The folder with ``VOCdevkit``.
        years: Numbers of the folders that are trained on; test images are of the first.
        class_names: Names of the classes from label 1 on, in the order of the labels; None for VOC's 20.
        train_split: List of ``ImageSets/Main`` that is trained on.
        test_split: List that is judged.
        batch_size: Images per step and per device.
        short_sides: Lengths of the short side in pixels that are drawn from in training.
        eval_short_side: The same of images that are judged.
        longest: Most pixels of the long side.
        mean: Mean of the pixels in [0, 1] by channel; None for that of the weights that are judged, or none.
        std: Standard deviation, likewise.
        num_workers: Worker processes per loader.
        train_subset: Use this many training images, chosen by ``seed``; None for all.
        test_subset: The same of the test images.
        seed: Order, sizes, flips and subsets are functions of it.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: From ``setup``, if a folder or file is missing, an annotation is none, or an object is of
            another class; while it runs, if an image is damaged, or not the one of its annotation.
    """

    contrasts = False
    training_set = _TrainingImages
    test_set = _TestImages
    collate_training = collate_test = staticmethod(_listed)

    def __init__(
        self,
        root: str = "data",
        years: Sequence[int] = (2007, 2012),
        class_names: Sequence[str] | None = None,
        train_split: str = "trainval",
        test_split: str = "test",
        batch_size: int = 2,
        short_sides: Sequence[int] = _SHORT_SIDES,
        eval_short_side: int = 800,
        longest: int = 1333,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        num_workers: int = 2,
        train_subset: int | None = None,
        test_subset: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            root, short_sides, eval_short_side, longest, mean, std, batch_size=batch_size,
            num_workers=num_workers, train_subset=train_subset, test_subset=test_subset, seed=seed,
        )  # fmt: skip
        for year in years:
            check_whole(0, years=year)
        if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names or ()):
            raise ConfigError(
                f"data.class_names must be a list of names, such as '[dog,cat]', got {class_names!r}"
            )
        classes = list(VOC_CLASSES if class_names is None else class_names)
        for name, values in (("years", list(years)), ("class_names", classes)):
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"data.{name} must name each once, and at least one, got {values}")
        self.years = tuple(int(year) for year in years)
        self.train_split, self.test_split = train_split, test_split
        self._classes = classes

    @property
    def class_names(self) -> list[str]:
        """Names of the classes from label 1 on; 0 is the background."""
        return list(self._classes)

    def load_splits(self) -> Splits:
        """List the images of both splits, with their objects."""
        root = Path(self.root).expanduser().absolute()
        train = [own for year in self.years for own in list_objects(root, year, self.train_split)]
        test = list_objects(root, self.years[0], self.test_split)
        for part, which in ((train, "training"), (test, "test")):
            if not any(own.names for own in part):
                raise DataError(f"none of the {len(part)} {which} images below {root} has an object")
        empty = [sum(not own.names for own in part) for part in (train, test)]
        if any(empty):
            rank_zero_info(
                f"{empty[0]} of {len(train)} training images and {empty[1]} of {len(test)} test images have "
                "no object: they are background"
            )
        if shared := {own.image for own in train} & {own.image for own in test}:
            rank_zero_warn(f"{len(shared)} of the {len(test)} test images are trained on too")
        pretrain, heldout = labelled((train, test), self._classes)
        return Splits(pretrain, heldout, None, None)
