"""Any folder of images, with or without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.datamodules.duplicates import shared_files
from mmcl_lightning.datamodules.image_files import FileSource, cache_images, hold_out
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.sources import ImageSource
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.tree import Layout, PictureTree, scan_tree
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["ImageFolderDataModule"]

_IMAGE_SIZE = 224  # pixels, of ImageNet
_SMALL_IMAGE = 96  # pixels; up to here the recipe for small images (A2) is used


class ImageFolderDataModule(SSLDataModule):
    """Images from a folder of your own.

    ``root`` holds one of

    * ``train/CLASS/...`` and ``test/CLASS/...`` (or ``val``, ``Training``, ``Testing`` and the like), images
      at any depth; where the test images have no labels, as ``CLASS/...`` alone;
    * ``CLASS/...`` alone: the seeded fraction ``holdout`` of each class becomes the test images;
    * images alone, directly in ``root`` or in ``root/train``: they are unlabelled, targets are -1,
      ``num_classes`` is None and ``knn_dataloaders()`` returns None, which switches the readout off. The
      fraction ``holdout`` gives the validation loss and is not trained on.

    How it was read, and what was not, is said when a run begins. Every format that Pillow opens is read, as
    :class:`~mmcl_lightning.datamodules.pictures.PictureReader` says.

    The default augmentation is recipe A2 up to an ``image_size`` of 96 pixels and A1 above, the default
    evaluation a centre crop of ``image_size`` pixels out of the image with ``eval_resize`` as short side.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, image_size, image_size)``, in [0, 1]
        unless mean and std are set; targets int64.

    Args:
        root: The folder.
        image_size: Height and width of a view and of an evaluation image, in pixels.
        eval_resize: Short side before the evaluation crop in pixels (256 for ImageNet at 224), None for
            ``image_size``.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None.
        holdout: Fraction held out where the folder has no test images, 0 <= holdout < 1.
        layout: ``"splits"``, ``"classes"`` or ``"flat"`` (all images at any depth, unlabelled) where
            ``"auto"`` reads it otherwise; see :func:`~mmcl_lightning.datamodules.tree.scan_tree`.
        value_range: Values of images of 16 bits, integers or floats that are black and white, beyond which
            all is black or white too; None for the range of 16 bits and for 0 to 1 of floats.
        background: Grey level, or red, green and blue, behind transparent pixels.
        max_pixels: Most pixels of an image.
        cache: Decode the images in use once and keep them in memory (at most 4 GiB, uint8), shared with the
            workers. Worth it for many epochs over small images.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range, or the cache would grow too large.
        DataError: If the folder is missing or holds no image; on reading, if an image is damaged.
    """

    def __init__(
        self,
        root: str = "data",
        image_size: int = _IMAGE_SIZE,
        eval_resize: int | None = None,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        holdout: float = 0.1,
        cache: bool = False,
        layout: Layout = "auto",
        value_range: tuple[float, float] | None = None,
        background: int | tuple[int, int, int] = 255,
        max_pixels: int = 250_000_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_whole(1, image_size=image_size)
        for name, given in (
            ("train_transform", self.train_transform),
            ("eval_transform", self.eval_transform),
        ):
            size = getattr(given, "size", image_size)
            if image_size not in (size, _IMAGE_SIZE):  # given, and in vain
                raise ConfigError(
                    f"image_size is {image_size}, and {name} makes images of {size} pixels: set its size, "
                    f"as in --data.{name}.size {image_size}"
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
        check_whole(1, max_pixels=max_pixels)
        self.layout = layout
        self.reader = PictureReader(value_range, background, max_pixels)
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
            self._warn_of_depth()
            self._warn_of_shared_files()

    def description(self) -> str:
        """Say how the folder was read: images and classes of each split, and what was left out."""
        tree, names = self._scan(), self.class_names
        rows = [("train", len(self.splits.pretrain))]
        if self.splits.heldout is not None:
            rows.append(("held out", len(self.splits.heldout)))
        lines = [tree.read_as, *(f"  {use:<9}{count:>8} images" for use, count in rows)]
        if names is not None:
            first = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            lines.append(f"  {len(names)} class{'es' * (len(names) != 1)}: {first}")
        if left := [f"{why}: {count}" for why, count in tree.ignored.most_common() if count]:
            lines.append(f"  not read: {', '.join(left)}")
        return "\n".join(lines)

    def _warn_of_depth(self) -> None:
        """Say so where images are nearly black because they use few of their bits; looks at up to 16."""
        source = self.splits.pretrain
        chosen = range(0, len(source), max(1, len(source) // 16))[:16]
        paths = [path for i in chosen if (path := source.path(i)) is not None]
        if dark := [path for path in paths if self.reader.is_dark_by_depth(path)]:
            rank_zero_warn(
                f"{len(dark)} of {len(paths)} images looked at, such as {dark[0]}, have 16 bits and values "
                "below 4096 alone, and are nearly black: set data.value_range, as in "
                "--data.value_range '[0, 4095]'"
            )

    def _warn_of_shared_files(self) -> None:
        """Say so where held-out images are trained on under another name."""
        splits = self.splits
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
        """Names of the class folders, sorted, or None without labels; looks into the folder."""
        return self._scan().class_names

    def load_splits(self) -> Splits:
        """List the files."""
        tree = self._scan()
        train: ImageSource = FileSource(*tree.train, self.reader)
        test: ImageSource | None = None if tree.test is None else FileSource(*tree.test, self.reader)
        if test is None:
            train, test = hold_out(train, self.holdout, self.seed)
        labelled = tree.class_names is not None
        return Splits(
            pretrain=train,
            heldout=test,
            bank=train if labelled else None,
            query=test if labelled else None,
        )

    def prepare_source(self, source: ImageSource) -> ImageSource:
        """Decode the images, if they are to be cached."""
        return cache_images(source) if self.cache else source

    def default_train_transform(self) -> ImageTransform:
        """Return recipe A2 up to 96 pixels and A1 above, with the mean and std of the options."""
        small = self.image_size <= _SMALL_IMAGE
        preset = SimCLRTransform.cifar if small else SimCLRTransform.imagenet
        return preset(self.image_size, mean=self.mean, std=self.std)

    def default_eval_transform(self) -> ImageTransform:
        """Return the centre crop of ``image_size`` pixels."""
        return EvalTransform.imagenet(self.image_size, self.eval_resize, self.mean, self.std)

    def _scan(self) -> PictureTree:
        if self._tree is None:
            self._tree = scan_tree(self.root, self.layout)
        return self._tree
