"""Whole images at lengths that are drawn in training, for evaluations of every place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning._options import check_whole
from mmcl_lightning.datamodules.images import ImageDataModule
from mmcl_lightning.datamodules.loading import EpochSampler, EvenSampler, ResumableDataLoader, mix_seed
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import ImageTransform, ShortSide
from mmcl_lightning.transforms.base import check_statistics

__all__ = ["JudgedItems", "TrainingItems", "WholeImageDataModule"]


class JudgedItems(Dataset[Any]):
    """Items of a source under their positions; those of fillings, ``~position``, do not count.

    Args:
        source: Has the items by ``pair(position)``.
        transform: Resizes an image.
    """

    def __init__(self, source: Any, transform: ShortSide) -> None:
        self.source = source
        self.transform = transform

    def __len__(self) -> int:
        return len(self.source)


class TrainingItems(JudgedItems):
    """Items under the keys ``(epoch, position)``, at lengths that are drawn.

    Args:
        source: As of :class:`JudgedItems`.
        transform: As there.
        short_sides: Lengths of the short side in pixels that are drawn from.
        seed: What is drawn is a function of it and the key.
    """

    def __init__(self, source: Any, transform: ShortSide, short_sides: Sequence[int], seed: int) -> None:
        super().__init__(source, transform)
        self.short_sides = short_sides
        self.seed = seed

    def draw(self, *key: int) -> tuple[int, torch.Generator]:
        """Return the length of the short side for a key, and a generator for what else is drawn."""
        generator = torch.Generator().manual_seed(mix_seed(self.seed, *key))
        drawn = int(torch.randint(len(self.short_sides), (), generator=generator))
        return self.short_sides[drawn], generator

    @staticmethod
    def key_of(given: Any) -> tuple[int, int]:
        """Return the key of an item; a plain position is one of a foreign sampler, as of overfit_batches."""
        return given if isinstance(given, tuple) else (0, given)


class WholeImageDataModule(ImageDataModule):
    """Images that are resized as a whole, beside what is to be told of their places.

    Args:
        root: The folder.
        short_sides: Lengths of the short side in pixels that are drawn from in training.
        eval_short_side: The same of images that are judged.
        longest: Most pixels of the long side.
        mean: Mean of the pixels in [0, 1] by channel; None for that of the weights that are judged, or none.
        std: Standard deviation, likewise.
        **kwargs: Batch size, workers, subsets and seed: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
    """

    set_by = "--data.mean and --data.std"
    multiple = 1
    """Sides of an image become multiples of it, and are no shorter."""
    training_set: type[TrainingItems]
    """What is trained on."""
    test_set: type[JudgedItems]
    """What is judged."""
    collate_training: Callable[[list[Any]], Any]
    """Makes a batch of items of :meth:`training_set`."""
    collate_test: Callable[[list[Any]], Any] | None = None
    """The same of :meth:`test_set`; None for torch's."""

    def __init__(
        self,
        root: str,
        short_sides: Sequence[int],
        eval_short_side: int,
        longest: int,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(eval_batch_size=1, predict_split="test", **kwargs)
        check_whole(self.multiple, eval_short_side=eval_short_side, longest=longest)
        if not short_sides:
            raise ConfigError("data.short_sides must name one length in pixels or more, got none")
        for side in short_sides:
            check_whole(self.multiple, short_sides=side)
        check_statistics(mean, std)
        self.root = root
        self.short_sides = tuple(int(side) for side in short_sides)
        self.eval_short_side, self.longest = int(eval_short_side), int(longest)
        self.mean, self.std = mean, std

    @property
    def folder(self) -> str:
        """Name of the folder, by which reports tell data sets apart."""
        return Path(self.root).expanduser().resolve().name

    def train_dataloader(self) -> ResumableDataLoader:
        """Training images in a new order every epoch, without the last partial batch.

        Raises:
            ConfigError: If one batch over all devices needs more images than there are.
        """
        source: Any = self.splits.pretrain
        if self.batch_size * self._world_size > len(source):
            raise ConfigError(
                f"data.batch_size is {self.batch_size} on each of {self._world_size} devices, and there are "
                f"only {len(source)} training images"
            )
        dataset = self.training_set(source, self._transforms()[0], self.short_sides, self.seed)
        return ResumableDataLoader(
            dataset=dataset,
            batch_size=self.batch_size,
            sampler=EpochSampler(dataset, self._world_size, self._rank, seed=self.seed),
            drop_last=True,
            collate_fn=self.collate_training,
            **self._loader_options(),
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """What :meth:`test_dataloader` gives."""
        return self.test_dataloader()

    def test_dataloader(self) -> DataLoader[Any]:
        """Test images one by one, shared between processes."""
        dataset = self.test_set(self.splits.heldout, self._transforms()[1])
        sampler = EvenSampler(dataset, self._world_size, self._rank)
        return DataLoader(
            dataset=dataset, batch_size=1, shuffle=False, sampler=sampler,
            collate_fn=self.collate_test, **self._loader_options(),
        )  # fmt: skip

    def default_train_transform(self) -> ImageTransform:
        """Return the resizing, whose length is drawn anew."""
        return self.default_eval_transform()

    def default_eval_transform(self) -> ImageTransform:
        """Return the resizing of the images that are judged."""
        return ShortSide(self.eval_short_side, self.longest, self.multiple, self.mean, self.std)

    def eval_transform_like(self, found: Preprocessing) -> ImageTransform:
        """Return the same, with the mean and std that came with weights where none are given.

        Args:
            found: What came with them.
        """
        mean, std = found.statistics or (None, None)
        mean, std = (mean, std) if self.mean is None else (self.mean, self.std)
        return ShortSide(self.eval_short_side, self.longest, self.multiple, mean, std)

    train_transform_like = eval_transform_like

    def compare(self, found: Preprocessing) -> None:
        """Compare nothing: size and resizing are the protocol's, whatever the weights were trained on."""
