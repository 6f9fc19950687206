"""Any folder of images, with or without labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_choice
from mmcl_lightning._text import plain
from mmcl_lightning.datamodules.duplicates import shared_files
from mmcl_lightning.datamodules.image_files import FileSource, cache_images, hold_out
from mmcl_lightning.datamodules.images import ImageDataModule
from mmcl_lightning.datamodules.labelled import Listed
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.datamodules.skipping import SkippedFiles
from mmcl_lightning.datamodules.sources import Source, with_labels
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.tree import Layout, PictureTree, scan_tree
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform
from mmcl_lightning.transforms.base import Size, as_pair

__all__ = ["ImageFolderDataModule"]

_IMAGE_SIZE = 224  # pixels, of ImageNet
_SMALL_IMAGE = 96  # pixels; up to here the recipe for small images (A2) is used


class ImageFolderDataModule(ImageDataModule):
    """Images from a folder of your own.

    ``root`` holds one of

    * ``train/CLASS/...`` and ``test/CLASS/...`` (or ``val``, ``Training``, ``Testing`` and the like), images
      at any depth; where the test images have no labels, as ``CLASS/...`` alone; also Tiny-ImageNet's
      archive, whose ``val/images`` have theirs in ``val/val_annotations.txt``;
    * ``CLASS/...`` alone: the seeded fraction ``holdout`` of each class becomes the test images;
    * images alone, directly in ``root`` or in ``root/train``: they are unlabelled, targets are -1,
      ``num_classes`` is None and ``knn_dataloaders()`` returns None, which switches the readout off. The
      fraction ``holdout`` gives the validation loss and is not trained on.

    This is what the folders mean, and ``layout`` fixes it where that is not what they mean. Labels are the
    class folders, unless ``labels`` is ``"none"`` or a CSV file with a row per picture. Then pictures lie at
    any depth, such as year and month or a folder per video, and folders matter only as splits. Pictures that
    the file gives no label are trained on without one. Where the file has a column of splits, that takes the
    place of folders, and pictures without a split are not read.

    How it was read, and what was not, is said when a run begins. Every format that Pillow opens is read, as
    :class:`~mmcl_lightning.datamodules.pictures.PictureReader` says.

    The default augmentation is recipe A2 up to an ``image_size`` of 96 pixels and A1 above, with the task
    ``"classify"`` crops and flips alone; the default evaluation is a centre crop of ``image_size`` pixels out
    of the image with ``eval_resize`` as short side. An evaluation of weights that say how their images were
    made takes that over where the options leave it open.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, channels, *image_size)``, in [0, 1] unless mean
        and std are set; targets int64.

    Args:
        root: The folder.
        image_size: Height and width of a view and of an evaluation image, in pixels, one number for a square;
            None for that of the weights that are judged, or 224.
        eval_resize: Short side before the evaluation crop in pixels (256 for ImageNet at 224), None for
            ``image_size``.
        mean: Per-channel mean in units of [0, 1], or None for that of the weights that are judged, or 0.
        std: Per-channel standard deviation, or None for that of the weights that are judged, or 1.
        holdout: Fraction held out where the folder has no test images, 0 <= holdout < 1.
        layout: ``"splits"``, ``"classes"`` or ``"flat"`` (all images at any depth, unlabelled) where
            ``"auto"`` reads it otherwise; see :func:`~mmcl_lightning.datamodules.tree.scan_tree`.
        labels: ``"folder"``: the class folders. ``"none"``: no labels, whatever the folders are; splits stay.
            Or a CSV file, in the current folder or in ``root``, whose first line names its columns: the path
            (``path``, ``file``, ``filename``, ``image``, ``image_id``, ``id``), the label (``label``,
            ``class``, ``target``, ``category``), and perhaps the split (``split``, ``set``, ``subset``) with
            train, test, val and the like. A path is relative to ``root``, or absolute, or the end of one
            picture's path, such as its name; the ending of the name may be missing.
        label_columns: Names of the file's columns by ours, where they are others, as in ``{label: dx}``.
        class_list: A file with the name of a class folder on each line, or ``"imagenet100"``: these alone are
            read; their labels are in sorted order. None for all.
        channels: Channels of an image: 3, colour; 1, grey; others for all bands of a TIFF. None for 3, or the
            number of ``bands``. The network needs as many: ``--model.backbone '{name: resnet18, in_channels:
            4}'``.
        bands: Which bands of a file become the channels, counted from 0, such as ``[3, 2, 1]``.
        value_range: Values of images of 16 bits, integers or floats that are black and white, beyond which
            all is black or white too; None for the range of 16 bits and for 0 to 1 of floats.
        background: Grey level, or red, green and blue, behind transparent pixels; None for white.
        max_pixels: Most pixels of an image.
        on_bad_image: What is done about an image that cannot be read. ``"error"`` ends with file and reason.
            ``"skip"`` says them and goes on: in training another image takes its place, drawn by seed, epoch
            and position, so that all others come when they would; readouts and evaluations do not count it,
            and predictions have no row of it. How many were skipped is said, and logged as
            ``data/skipped_images``.
        cache: Decode the images in use once and keep them in memory (at most 4 GiB, uint8), shared with the
            workers. Worth it for many epochs over small images.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`ImageDataModule`.

    Raises:
        ConfigError: If an option is out of its range, or the cache would grow too large.
        DataError: If the folder is missing or holds no image; on reading, if an image is damaged.
    """

    _uses = ("train", "held out")  # what the description calls its images

    def __init__(
        self,
        root: str = "data",
        image_size: int | tuple[int, int] | None = None,
        eval_resize: int | tuple[int, int] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        holdout: float = 0.1,
        cache: bool = False,
        layout: Layout = "auto",
        labels: str = "folder",
        label_columns: dict[str, str] | None = None,
        class_list: str | None = None,
        channels: int | None = None,
        bands: tuple[int, ...] | None = None,
        value_range: tuple[float, float] | None = None,
        background: int | tuple[int, int, int] | None = None,
        max_pixels: int = 250_000_000,
        on_bad_image: Literal["error", "skip"] = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        pixels = None if image_size is None else as_pair(image_size, "image_size")
        for name, given in (
            ("train_transform", self.train_transform),
            ("eval_transform", self.eval_transform),
        ):
            own = getattr(given, "pixels", None)
            if pixels is not None and own not in (None, pixels):  # image_size is given in vain
                raise ConfigError(
                    f"image_size is {image_size}, and {name} makes images of {own[0]} x {own[1]} pixels: set "
                    f"its size, as in --data.{name}.size {image_size}"
                )
        if mean is not None and None not in (self.train_transform, self.eval_transform):
            raise ConfigError(
                "mean and std are for the transforms of this data module, and train_transform and "
                "eval_transform are given: set theirs, as in --data.train_transform.mean"
            )
        if not 0.0 <= holdout < 1.0:
            raise ConfigError(f"holdout is a fraction, 0 <= holdout < 1, got {holdout}")
        self.root = root
        self.image_size = image_size
        self.eval_resize = eval_resize
        self.mean = mean
        self.std = std
        self.holdout = holdout
        self.cache = cache
        check_choice("layout", layout, ("auto", "splits", "classes", "flat"))
        check_choice("on_bad_image", on_bad_image, ("error", "skip"))
        self.on_bad_image = on_bad_image
        self._files: list[tuple[Listed, SkippedFiles]] = []
        self.layout = layout
        self.labels = labels
        self.label_columns = label_columns
        self.class_list = class_list
        self.reader = self._reader = PictureReader(channels, bands, value_range, background, max_pixels)
        numbers = 0 if mean is None else len(mean)
        if numbers not in (0, self.reader.depth):
            raise ConfigError(
                f"mean and std have {numbers} numbers, and images {self.reader.depth} channels: set "
                "data.channels"
            )
        self._tree: PictureTree | None = None
        self.default_train_transform()  # a wrong mean, std or size shows before the folder is read
        self.default_eval_transform()

    def setup(self, stage: str | None = None) -> None:
        """Open the folder once, and say what was found; before a fit, compare the files of the splits."""
        first = self._splits is None
        super().setup(stage)
        if first:
            rank_zero_info(f"{self.root}: {self.description()}")
        if first and stage == "fit" and self._rank == 0:
            self._warn_of_shared_files()

    def check_options(self) -> None:
        """Warn of options that do not go together, and of images that are nearly black."""
        super().check_options()
        if self._rank == 0:
            self._warn_of_depth()

    def description(self) -> str:
        """Say how the folder was read: images and classes of each split, and what was left out."""
        tree, names = self._scan(), self.class_names
        lines = [tree.read_as]
        splits = self._opened()
        for use, source in zip(self._uses, (splits.pretrain, splits.heldout), strict=True):
            if source is not None:
                known = int((source.targets >= 0).sum())
                some = f", {known} with a label" if names is not None and known < len(source) else ""
                lines.append(f"  {use:<9}{len(source):>8} images{some}")
        if names is not None:
            first = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            lines.append(f"  {len(names)} class{'es' * (len(names) != 1)}: {first}")
        if left := [f"{why}: {count}" for why, count in tree.ignored.most_common() if count]:
            lines.append(f"  not read: {', '.join(left)}")
        return "\n".join(map(plain, lines))

    def _warn_of_depth(self) -> None:
        """Say so where images are nearly black because they use few of their bits; looks at up to 16."""
        source = self._opened().pretrain
        chosen = range(0, len(source), max(1, len(source) // 16))[:16]
        paths = [path for i in chosen if (path := source.path(i)) is not None]
        if dark := [path for path in paths if self._reader.is_dark_by_depth(path)]:
            rank_zero_warn(
                f"{len(dark)} of {len(paths)} images looked at, such as {dark[0]}, have 16 bits and values "
                "below 4096 alone, and are nearly black: set data.value_range, as in "
                "--data.value_range '[0, 4095]'"
            )

    def _warn_of_shared_files(self) -> None:
        """Say so where held-out images are trained on under another name."""
        splits = self._opened()
        if splits.heldout is None:
            return
        sides = [
            [path for i in range(len(source)) if (path := source.path(i)) is not None]
            for source in (splits.pretrain, splits.heldout)
        ]
        found = shared_files(sides[0], sides[1])
        if found is None:
            rank_zero_info("  too many files of equal size to look for copies among the held-out images")
        elif found:
            rank_zero_warn(
                f"{len(found)} of {len(sides[1])} held-out images are copies of training images, such as "
                f"{found[0][1]} of {found[0][0]}: their accuracy says nothing; remove the copies"
            )

    @property
    def folder(self) -> str:
        """Name of the folder, by which reports tell data sets apart."""
        return Path(self.root).expanduser().resolve().name

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, sorted, or None without labels; looks into the folder."""
        return self._scan().class_names

    def load_splits(self) -> Splits:
        """List the files."""
        tree = self._scan()
        self._files.clear()
        train = self._read_later(tree.train)
        test = None if tree.test is None else self._read_later(tree.test)
        if test is None:
            train, test = hold_out(train, self.holdout, self.seed)
        return Splits(train, test, bank=with_labels(train), query=None if test is None else with_labels(test))

    def _read_later(self, listed: Listed) -> Source:
        skipped = SkippedFiles(len(listed[0])) if self._skips else None
        if skipped is not None:
            self._files.append((listed, skipped))
        return FileSource(*listed, self._reader, skipped)

    def skipped_images(self) -> list[str]:
        """Return the files that were skipped so far as they cannot be read, by this process's loaders."""
        return [paths[index] for (paths, _), skipped in self._files for index in skipped.indices]

    def unread_classes(self, bad: Collection[str]) -> list[str]:
        """Return the classes of which no training image can be read.

        Args:
            bad: The files that cannot be read.
        """
        if not self._files or self.class_names is None:
            return []
        (paths, targets), _ = self._files[0]  # those of the training come first
        read = {int(target) for path, target in zip(paths, targets, strict=True) if path not in bad}
        return [self.class_names[index] for index in sorted({*targets.tolist()} - read - {-1})]

    def prepare_source(self, source: Source) -> Source:
        """Decode the images, if they are to be cached."""
        return cache_images(source, self._skips) if self.cache else source

    def preprocessing(self) -> Preprocessing:
        """Say how images reach a network; reads the first training image."""
        return dataclasses.replace(super().preprocessing(), reader=_options(self._reader))

    def take_over(self, found: Preprocessing, strict: bool = True) -> None:
        """Treat images as those that a network was trained on, where the options leave that open.

        Args:
            found: What came with the weights of the network.
            strict: Refuse another mean, std or reading of the files, which is else warned of.

        Raises:
            ConfigError: If the options say otherwise of mean, std, bands or range, or the number of channels
                differs.
        """
        own = _options(self.reader)
        if own["bands"] is not None:  # which say how many channels there are
            own["channels"] = len(own["bands"])
        taken = {name: value for name, value in found.reader.items() if name in own and own[name] is None}
        reader = dataclasses.replace(self.reader, **taken)
        if reader != self._reader:  # which the images of the splits know
            self._reader, self._splits, self._prepared = reader, None, None
        super().take_over(found, strict)

    def given(self) -> dict[str, Any]:
        """Return the options that decide what is read, where they are given."""
        return {name: value for name, value in _options(self.reader).items() if name != "channels"}

    def train_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the default augmentation, of the size, mean and std that are not given."""
        size = self.image_size or found.view_pixels or found.pixels or _IMAGE_SIZE
        return self._augmentation(size, *self._statistics(found))

    def eval_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the transform that came with weights, of the size, mean and std that are given."""
        transform, (mean, std) = found.transform, self._statistics(found)
        size = self.image_size or found.pixels or _IMAGE_SIZE
        as_theirs = as_pair(size) == found.pixels and self.eval_resize is None
        if transform is None or transform.pixels is None or not as_theirs:  # files are of many sizes
            return EvalTransform.imagenet(size, self.eval_resize, mean, std)
        return transform if self.mean is None else transform.replace(mean=mean, std=std)

    def default_train_transform(self) -> ImageTransform:
        """Return recipe A2 up to 96 pixels and A1 above, to classify crops and flips alone."""
        return self._augmentation(self.image_size or _IMAGE_SIZE, self.mean, self.std)

    def default_eval_transform(self) -> ImageTransform:
        """Return the centre crop of ``image_size`` pixels."""
        return EvalTransform.imagenet(self.image_size or _IMAGE_SIZE, self.eval_resize, self.mean, self.std)

    def _statistics(self, found: Preprocessing) -> tuple[Any, Any]:
        """Return mean and std as given, or as they came with weights."""
        if self.mean is not None:
            return self.mean, self.std
        mean, std = found.statistics or (None, None)
        return mean, std

    def _augmentation(self, size: Size, mean: Any, std: Any) -> ImageTransform:
        if self.task == "classify":
            return SimCLRTransform(
                size, interpolation="bicubic", cj_prob=0.0, gray_prob=0.0, blur_prob=0.0, mean=mean, std=std
            )
        small = max(as_pair(size)) <= _SMALL_IMAGE
        preset = SimCLRTransform.cifar if small else SimCLRTransform.imagenet
        return preset(size, mean=mean, std=std)

    def _scan(self) -> PictureTree:
        if self._tree is None:
            self._tree = scan_tree(self.root, self.layout, self.labels, self.label_columns, self.class_list)
        return self._tree


def _options(reader: PictureReader) -> dict[str, Any]:
    """Return the options of a reader that change what is read, by name."""
    return {name: getattr(reader, name) for name in ("channels", "bands", "value_range", "background")}
