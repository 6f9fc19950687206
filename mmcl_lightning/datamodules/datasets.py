"""Images of a source as data sets: views to train on, drawn by seed, epoch and position, and clean images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.datamodules.skipping import read_or_replace
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.transforms import MultiView, SimCLRTransform
from mmcl_lightning.transforms.batched import ColourPlan, DrawnViews
from mmcl_lightning.transforms.images import PixelImage, image_size, pixels_of

__all__ = [
    "CutViewDataset",
    "EvalDataset",
    "ViewDataset",
    "collate_items",
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
        self.source.seek(epoch, position)
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


class CutViewDataset(ViewDataset):
    """Images cut and resized for their views, with what is drawn for the rest, for :meth:`collate`.

    Under ``(epoch, position)`` keys: ``((V, C, H, W) uint8, V parameters)`` and the target. The parameters
    are those that :class:`ViewDataset` draws for the same key.

    Args:
        source: The images.
        transform: Augmentation of one view, or a MultiView.
        seed: As in :class:`ViewDataset`.
        skip: As in :class:`ViewDataset`.

    Raises:
        ConfigError: If the transform is not made of such parts.
    """

    def __init__(self, source: Source, transform: Any, seed: int, skip: bool = False) -> None:
        views = transform if isinstance(transform, MultiView) else MultiView(transform)
        _check_parts(views)
        self.view: Any = views.transform
        self.views = views.views
        super().__init__(source, self._cut, seed, skip)

    def _cut(self, image: PixelImage) -> Any:
        drawn = [self.view.draw(*image_size(image)) for _ in range(self.views)]
        return torch.stack([pixels_of(self.view.cut(image, parameters)) for parameters in drawn]), drawn

    def collate(self, items: list[Any]) -> tuple[DrawnViews, Tensor]:
        """Make a batch of items: views that are still to be made, and targets ``(B,)``."""
        parameters = [drawn[view] for view in range(self.views) for (_, drawn), _ in items]
        pixels = torch.stack([pixels for (pixels, _), _ in items], dim=1)
        targets = torch.tensor([target for _, target in items])
        return DrawnViews(pixels, ColourPlan.of(parameters), self.view.finish), targets


def _check_parts(views: MultiView) -> None:
    """Raise :class:`ConfigError` where views would not be made as the transform makes them."""
    kind = type(views.transform)
    parts = ("__call__", "apply", "cut", "finish")
    changed = [part for part in parts if getattr(kind, part, None) is not getattr(SimCLRTransform, part)]
    if changed:
        raise ConfigError(
            f"augment is 'device', which works with SimCLRTransform, and train_transform is "
            f"{kind.__name__}, which has {changed[0]} of its own: set augment to 'worker'"
        )
    if type(views) is not MultiView:
        raise ConfigError(
            f"augment is 'device', which works with MultiView, and train_transform is a "
            f"{type(views).__name__}: set augment to 'worker'"
        )


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
