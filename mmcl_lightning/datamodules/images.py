"""What data modules of images share: where they are augmented, and how images reach a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn

from mmcl_lightning._options import check_choice
from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.datamodules.datasets import CutViewDataset, ViewDataset
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.datamodules.sources import Source, first_readable
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import ImageTransform, MultiView, SimCLRTransform
from mmcl_lightning.transforms.base import disagreement
from mmcl_lightning.transforms.images import PixelImage, channel_count

__all__ = ["ImageDataModule"]


class ImageDataModule(SSLDataModule):
    """Loaders of images, for every use of :class:`SSLDataModule`.

    Size, crop, mean and std travel with the weights of a network: :meth:`preprocessing` says what they are,
    and :meth:`take_over` makes images as those that weights were trained on.

    Batch:
        As :class:`SSLDataModule`, a view being float32 ``(B, 3, H, W)``, in [0, 1] or normalised as the
        transform says.

    Args:
        augment: ``"worker"``: the loader's worker makes the views, as Pillow does it. ``"device"``: it reads,
            cuts and resizes, and the device of the network changes colours and blurs, a batch at once, with
            the same draws: several times the images per worker. The pictures are the same but for Pillow's
            rounding to 8 bits after every step, which leaves the worker's about one grey level darker. It
            needs a :class:`~mmcl_lightning.transforms.SimCLRTransform`, and is for pretraining. A loader then
            gives :class:`~mmcl_lightning.transforms.batched.DrawnViews`, which are views once they are moved.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
    """

    set_by = "--data.image_size, --data.mean and --data.std"
    """Options that say how images are made, for messages."""

    def __init__(self, augment: Literal["worker", "device"] = "worker", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("augment", augment, ("worker", "device"))
        self.augment = augment
        self._taken: Preprocessing | None = None  # what came with the weights that are judged

    @abstractmethod
    def default_train_transform(self) -> ImageTransform:
        """Return the augmentation of one view."""

    @abstractmethod
    def default_eval_transform(self) -> ImageTransform:
        """Return the transform of readout and prediction."""

    def check_options(self) -> None:
        """Warn of options that do not go together; called before images are trained on."""
        differing = disagreement(*self._transforms())
        if differing is not None:  # as where a recipe's transform meets another data set's own
            rank_zero_warn(f"{differing}: set train_transform and eval_transform alike")

    def preprocessing(self) -> Preprocessing:
        """Say how images reach a network; reads the first training image."""
        train, evaluation = self._transforms()
        train = train.transform if isinstance(train, MultiView) else train
        image = self._first_image()
        height, width = torch.as_tensor(evaluation(image)).shape[-2:]
        views = train.pixels if isinstance(train, ImageTransform) else None
        return Preprocessing.of(evaluation, (height, width), views, channel_count(image))

    def take_over(self, found: Preprocessing, strict: bool = True) -> None:
        """Treat images as those that a network was trained on, where the options leave that open.

        It is warned of images that are judged in another way, such as of another size.

        Args:
            found: What came with the weights of the network.
            strict: Refuse another mean and std, which are else warned of.

        Raises:
            ConfigError: If the options say otherwise of mean and std, or the number of channels differs.
        """
        self._taken = found
        train, evaluation = self._transforms()
        channels = channel_count(self._first_image())
        found.check(channels, self.given(), strict, train_transform=train, eval_transform=evaluation)
        self.compare(found)

    def compare(self, found: Preprocessing) -> None:
        """Warn of images that are judged in another way than those that came with weights.

        Args:
            found: What came with them.
        """
        found.compare(self.preprocessing())

    def given(self) -> dict[str, Any]:
        """Return the options that decide what is read, where they are given; by default none."""
        return {}

    def train_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the default augmentation, with the size, mean and std of what came with weights.

        Args:
            found: What came with them.
        """
        default = self.default_train_transform()
        if found.statistics is None or not isinstance(default, SimCLRTransform):
            return default
        mean, std = found.statistics or (None, None)
        size = {} if found.view_pixels is None else {"size": found.view_pixels}
        return default.replace(mean=mean, std=std, **size)

    def eval_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the transform of readout and prediction that came with weights, or else the default.

        Args:
            found: What came with them.
        """
        return self.default_eval_transform() if found.transform is None else found.transform

    def _first_image(self) -> PixelImage:
        """Return the first training image; where bad ones are skipped, the first that can be read."""
        source = self._opened().pretrain
        image: PixelImage = first_readable(source) if self._skips else source.item(0)
        return image

    def _view_dataset(self, source: Source) -> ViewDataset:
        if self.augment == "worker":
            return super()._view_dataset(source)
        if self.task != "pretrain":
            raise ConfigError("augment is 'device', which makes views to pretrain: set --data.augment worker")
        return CutViewDataset(source, self._transforms()[0], self.seed, self._skips)

    def _collate(self, dataset: ViewDataset) -> Callable[[list[Any]], Any]:
        return dataset.collate if isinstance(dataset, CutViewDataset) else super()._collate(dataset)

    def _transforms(self) -> tuple[Any, Any]:
        """Return those of training and evaluation: given, of weights, or the data set's own."""
        train, evaluation, found = self.train_transform, self.eval_transform, self._taken
        if train is None:
            train = self.default_train_transform() if found is None else self.train_transform_like(found)
        if evaluation is None:
            evaluation = self.default_eval_transform() if found is None else self.eval_transform_like(found)
        return train, evaluation
