"""Images of a source as data sets: views to train on, drawn by seed, epoch and position, and clean images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.datamodules.skipping import read_or_replace
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.transforms import MultiView, SimCLRTransform
from mmcl_lightning.transforms.images import PixelImage, image_size

__all__ = [
    "BatchedViews",
    "EvalDataset",
    "RawViewDataset",
    "ViewDataset",
    "collate_items",
    "raw_view_dataset",
]


class _SourceDataset(Dataset[Any]):
    """Images of a source under a transform; with ``skip`` others stand in for those that cannot be read."""

    def __init__(self, source: Source, transform: Callable[[PixelImage], Any], skip: bool) -> None:
        self.source = source
        self.transform = transform
        self.skip = skip

    def __len__(self) -> int:
        return len(self.source)

    def shows(self, position: int) -> bool:
        """Whether it is the image at a position that is shown there, and no other in its place."""
        return not self.skip or read_or_replace(self.source, position)[2] == position


class ViewDataset(_SourceDataset):
    """Augmented images under ``(epoch, position)`` keys: ``(list of (C, H, W) float32, target)``.

    Args:
        source: The images.
        transform: From image to a list of views, or to a single one. It may draw from torch's generator,
            and only there: numbers from ``random`` or NumPy are not reproduced.
        seed: The augmentations are a function of the seed, the epoch and the position.
        skip: Let another image, drawn by the same three, stand in for one that cannot be read.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[PixelImage], list[Tensor]],
        seed: int,
        skip: bool = False,
    ) -> None:
        super().__init__(source, transform, skip)
        self.seed = seed

    def __getitem__(self, key: tuple[int, int] | int) -> tuple[list[Tensor], int]:
        # A plain position comes from a foreign sampler, such as the one of Trainer(overfit_batches=...).
        epoch, position = key if isinstance(key, tuple) else (0, key)
        if self.skip:
            image, target, _ = read_or_replace(self.source, position, self.seed, epoch)
        else:
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
        skip: As in :class:`ViewDataset`.
    """

    def __init__(self, source: Source, transform: MultiView, seed: int, skip: bool = False) -> None:
        super().__init__(source, _Draw(transform), seed, skip)
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


def raw_view_dataset(source: Source, transform: Any, seed: int, skip: bool = False) -> RawViewDataset:
    """Return a data set for views that are made a batch at once.

    Args:
        source: The images.
        transform: Augmentation of one view, or a MultiView.
        seed: What is drawn is a function of it, the epoch and the position.
        skip: Let other images stand in for those that cannot be read.

    Raises:
        ConfigError: If the transform cannot make a batch at once.
    """
    views = transform if isinstance(transform, MultiView) else MultiView(transform)
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
    return RawViewDataset(source, views, seed, skip)


def collate_items(items: list[Any]) -> Any:
    """Make a batch of items, as torch does, where each has as many views.

    Args:
        items: Tuples that begin with a view or a list of views.

    Raises:
        ShapeError: If some items have more views than others.
    """
    counts = {len(item[0]) for item in items if isinstance(item[0], list)}
    if len(counts) > 1:
        raise ShapeError(
            f"the items of one batch have {min(counts)} to {max(counts)} views: set data.eval_batch_size to 1"
        )
    return default_collate(items)


class EvalDataset(_SourceDataset):
    """Images under the evaluation transform: ``((C, H, W) float32, target)``.

    At ``~position`` lies the same image as at ``position``, with the target -1: see :class:`EvenSampler`.

    Args:
        source: The images.
        transform: From image to tensor, without randomness.
        numbered: Give the position of the image as a third part.
        skip: Let another image stand in for one that cannot be read, as at ``~position`` without a target.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[PixelImage], Tensor],
        numbered: bool = False,
        skip: bool = False,
    ) -> None:
        super().__init__(source, transform, skip)
        self.numbered = numbered

    def __getitem__(self, index: int) -> tuple[Tensor, int] | tuple[Tensor, int, int]:
        position = max(index, ~index)
        if self.skip:
            image, target, shown = read_or_replace(self.source, position)
            index = index if shown == position else ~position
        else:
            image, target = self.source[position]
        item = self.transform(image), target if index >= 0 else -1
        return (*item, index) if self.numbered else item
