"""Images of a source as data sets: views to train on, drawn by seed, epoch and position, and clean images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.datamodules.sources import ImageSource, first_readable
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import MultiView, SimCLRTransform
from mmcl_lightning.transforms.images import PixelImage, image_size

__all__ = ["BatchedViews", "EvalDataset", "RawViewDataset", "ViewDataset", "view_dataset"]


class ViewDataset(Dataset[Any]):
    """Augmented images under ``(epoch, position)`` keys: ``(list of (C, H, W) float32, target)``.

    Args:
        source: The images.
        transform: From image to a list of views, or to a single one. It may draw from torch's generator,
            and only there: numbers from ``random`` or NumPy are not reproduced.
        seed: The augmentations are a function of the seed, the epoch and the position.
    """

    def __init__(
        self, source: ImageSource, transform: Callable[[PixelImage], list[Tensor]], seed: int
    ) -> None:
        self.source = source
        self.transform = transform
        self.seed = seed

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, int] | int) -> tuple[list[Tensor], int]:
        # A plain position comes from a foreign sampler, such as the one of Trainer(overfit_batches=...).
        epoch, position = key if isinstance(key, tuple) else (0, key)
        image, target = self.source[position]
        # Only the CPU generator: torch.manual_seed would also reset the GPU's in the main process.
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(mix_seed(self.seed, epoch, position))
        try:
            return self.transform(image), target
        finally:
            generator.set_state(state)


class RawViewDataset(ViewDataset):
    """Images with what is drawn for their views, for :class:`BatchedViews` to collate.

    Under ``(epoch, position)`` keys: ``((C, H, W) uint8, a list of parameters, target)``. The parameters are
    those that :class:`ViewDataset` draws for the same key.

    Args:
        source: The images.
        transform: The augmentation of one view, and how many.
        seed: As in :class:`ViewDataset`.
    """

    def __init__(self, source: ImageSource, transform: MultiView, seed: int) -> None:
        super().__init__(source, _Draw(transform), seed)
        self._view: Any = transform.transform

    def collate(self) -> BatchedViews:
        """Return what makes a batch of the items."""
        return BatchedViews(self._view)


class _Draw:
    """In place of making views: the pixels and what is drawn for each view."""

    def __init__(self, views: MultiView) -> None:
        self.views = views

    def __call__(self, image: PixelImage) -> Any:
        transform: Any = self.views.transform
        drawn = [transform.draw(*image_size(image)) for _ in range(self.views.views)]
        if isinstance(image, Tensor):
            return image, drawn
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), drawn


class BatchedViews:
    """Collate the items of a :class:`RawViewDataset` into ``(list of (B, C, *size), targets)``.

    Args:
        transform: The augmentation of one view: a transform with ``apply_batch``.
    """

    def __init__(self, transform: SimCLRTransform) -> None:
        self.transform = transform

    def __call__(self, items: list[Any]) -> tuple[list[Tensor], Tensor]:
        """Make the views of a batch.

        Raises:
            ConfigError: If the images are not all of one size.
        """
        images = [image for (image, _), _ in items]
        sizes = {tuple(image.shape[1:]) for image in images}
        if len(sizes) > 1:
            (h, w), (other_h, other_w), *_ = sorted(sizes)
            raise ConfigError(
                f"augment is 'batch', which needs images of one size, and there are {w} x {h} and "
                f"{other_w} x {other_h} pixels: set augment to 'image'"
            )
        pixels, targets = torch.stack(images), torch.tensor([target for _, target in items])
        views = [
            self.transform.apply_batch(pixels, parameters)
            for parameters in zip(*(drawn for (_, drawn), _ in items), strict=True)
        ]
        return views, targets


def view_dataset(
    source: ImageSource, transform: Any, seed: int, augment: Literal["image", "batch"]
) -> ViewDataset:
    """Return a data set of two views of every image.

    Args:
        source: The images.
        transform: Augmentation of one view, or a MultiView.
        seed: What is drawn is a function of it, the epoch and the position.
        augment: Whether views are made image by image, or a batch at once.

    Raises:
        ConfigError: If the transform cannot make a batch at once.
    """
    views = transform if isinstance(transform, MultiView) else MultiView(transform)
    if augment == "image":
        return ViewDataset(source, views, seed)
    kind = type(views.transform)
    changed = [
        name for name in ("__call__", "apply")
        if getattr(kind, name, None) is not getattr(SimCLRTransform, name)
    ]  # fmt: skip
    if changed and getattr(kind, "apply_batch", None) in (None, SimCLRTransform.apply_batch):
        raise ConfigError(
            f"augment is 'batch', which works with SimCLRTransform, and train_transform is "
            f"{kind.__name__}, which has {changed[0]} of its own: set augment to 'image'"
        )
    if type(views) is not MultiView:
        raise ConfigError(
            f"augment is 'batch', which works with MultiView, and train_transform is a "
            f"{type(views).__name__}: set augment to 'image'"
        )
    return RawViewDataset(source, views, seed)


class EvalDataset(Dataset[Any]):
    """Images under the evaluation transform: ``((C, H, W) float32, target)``.

    At ``~position`` lies the same image as at ``position``, with the target -1: see :class:`EvenSampler`.

    Args:
        source: The images.
        transform: From image to tensor, without randomness.
        numbered: Give the position of the image as a third part.
        skip_damaged: Let another image stand in for one that cannot be read, under ``~position``.
    """

    def __init__(
        self,
        source: ImageSource,
        transform: Callable[[PixelImage], Tensor],
        numbered: bool = False,
        skip_damaged: bool = False,
    ) -> None:
        self.source = source
        self.transform = transform
        self.numbered = numbered
        self.skip_damaged = skip_damaged
        self._last: PixelImage | None = None  # that could be read, which stands in for those that cannot

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | tuple[Tensor, int, int]:
        try:
            image, target = self.source[index if index >= 0 else ~index]
        except DataError:
            if not self.skip_damaged:
                raise
            image = first_readable(self.source) if self._last is None else self._last
            index = min(index, ~index)
        if self.skip_damaged:
            self._last = image
        item = self.transform(image), target if index >= 0 else -1
        return (*item, index) if self.numbered else item
