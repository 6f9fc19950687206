"""Rendered silhouettes: a synthetic data set that needs no download."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._options import check_whole
from mmcl_lightning.datamodules.images import ImageDataModule
from mmcl_lightning.datamodules.rendering import SHAPES, render_shapes
from mmcl_lightning.datamodules.sources import ArraySource
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["ShapesDataModule"]


class ShapesDataModule(ImageDataModule):
    """Ten silhouettes rendered on the spot: SYNTHETIC data for demos and tests, not a benchmark.

    Every image shows one silhouette in random colours, position, size and rotation on a gradient with
    blobs and noise. Numbers on it say that a method and its wiring work; they say nothing about photos.
    Test images come from another seed than training images.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, image_size, image_size)`` in [0, 1];
        targets int64.

    Args:
        train_size: Number of training images.
        test_size: Number of test images.
        image_size: Height and width in pixels.
        root: Nothing is read, which is said where it is given. Present so that a config can switch data sets.
        download: Ignored as well.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`ImageDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
    """

    def __init__(
        self,
        train_size: int = 5000,
        test_size: int = 1000,
        image_size: int = 32,
        root: str | None = None,
        download: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_whole(2, train_size=train_size)
        check_whole(1, test_size=test_size)
        check_whole(8, image_size=image_size)  # pixels: fewer do not show a shape
        self.train_size = train_size
        self.test_size = test_size
        self.image_size = image_size
        if root is not None:
            rank_zero_info(
                f"ShapesDataModule makes its images: nothing is read from {root!r}. For images of your own, "
                "mmcl fit --config folder_mmcl_log"
            )
        self.root = root
        self.download = download

    @property
    def class_names(self) -> list[str] | None:
        """Names of the silhouettes in the order of their indices."""
        return list(SHAPES)

    def load_splits(self) -> Splits:
        """Render the images, a few seconds for the default numbers."""
        train = ArraySource(*render_shapes(self.train_size, self.image_size, seed=2 * self.seed))
        test = ArraySource(*render_shapes(self.test_size, self.image_size, seed=2 * self.seed + 1))
        return Splits(pretrain=train, heldout=test, bank=train, query=test)

    def default_train_transform(self) -> ImageTransform:
        """Return crops that keep most of the shape, with any hue and often none.

        Colours tell images apart but not classes, so the jitter keeps them from being what two views
        share. Brightness and contrast change less: shapes that fade out teach nothing.
        """
        return SimCLRTransform(
            self.image_size, crop_scale=(0.5, 1.0), jitter=(0.4, 0.4, 0.8, 0.5), cj_prob=1.0, gray_prob=0.3,
            blur_prob=0.0,
        )  # fmt: skip

    def default_eval_transform(self) -> ImageTransform:
        """Return the images as they were rendered, in [0, 1]."""
        return EvalTransform()
