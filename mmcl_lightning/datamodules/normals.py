"""Images with the surface normal of every pixel, such as those of NYUv2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.datamodules.normal_files import list_normals, unit_normals
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.whole_images import JudgedItems, TrainingItems, WholeImageDataModule
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import ShortSide

__all__ = ["NormalsDataModule"]

_STRIDE = 8  # pixels from one label to the next, and what sides are padded to


def _padded(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Make a batch of items of any sizes, padded at the right and bottom to one size, a multiple of 8.

    Of the normals every eighth is kept: the pixel nearest to the middle of its 8 x 8 pixels.
    """
    height, width = (-(-max(image.shape[d] for image, _ in items) // _STRIDE) * _STRIDE for d in (1, 2))

    def stacked(tensors: list[Tensor]) -> Tensor:
        return torch.stack([F.pad(t, (0, width - t.shape[2], 0, height - t.shape[1])) for t in tensors])

    images, normals = (stacked(list(part)) for part in zip(*items, strict=True))
    middle = _STRIDE // 2
    return images, normals[:, :, middle::_STRIDE, middle::_STRIDE].contiguous()


class _TrainingPairs(TrainingItems):
    """Images and normals under ``(epoch, position)`` keys, those of a batch with one short side."""

    def __getitems__(self, given: list[Any]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch; torch's loader calls it with all keys at once."""
        keys = [self.key_of(key) for key in given]
        side, _ = self.draw(*keys[0])
        resize = self.transform.replace(side=side, multiple=1)
        return [self._resized(position, resize) for _, position in keys]

    def _resized(self, position: int, resize: ShortSide) -> tuple[Tensor, Tensor]:
        image, normals = self.source.pair(position)
        height, width = resize.size_of(image)
        colours = np.asarray(normals.resize((width, height), Image.Resampling.NEAREST))
        return resize(image), unit_normals(colours)


class _TestPairs(JudgedItems):
    """Images of the evaluation, and the normals of all pixels of their files."""

    def __getitem__(self, key: int) -> tuple[Tensor, Tensor]:
        image, colours = self.source.pair(key if key >= 0 else ~key)
        normals = unit_normals(np.asarray(colours))
        return self.transform(image), normals if key >= 0 else torch.zeros_like(normals)  # a filling


class NormalsDataModule(WholeImageDataModule):
    """Images with a normal for every pixel: ``root/{image,normal}/{train,test}/NAME.{png,jpg}``.

    A normal is a colour, ``2 * pixel / 255 - 1``, and is valid where that has a length of 0.9 to 1.1. Errors
    in degrees do not depend on which of the three channels is which axis (NYUv2's usual files have z, y, x);
    a codebook of somebody else's does.

    Training images have a short side drawn for each batch; what is not of one size is padded by zeros. The
    draw depends on (seed, epoch, first image of the batch) alone.

    Batch:
        To train ``(images, normals)``: float32 ``(B, 3, H, W)``, H and W multiples of 8, and float32 ``(B, 3,
        H/8, W/8)``, unit vectors of the nearest pixels, 0 where there is none. To validate and test ``(1, 3,
        H, W)`` of ``eval_short_side``, and normals of every pixel of the file.

    Args:
        root: The folder with ``image`` and ``normal``.
        batch_size: Images per step and per device, at least 2.
        short_sides: Lengths of the short side in pixels that are drawn from in training.
        eval_short_side: The same of images that are judged.
        longest: Most pixels of the long side.
        mean: Mean of the pixels in [0, 1] by channel; None for that of the weights that are judged, or none.
        std: Standard deviation, likewise.
        num_workers: Worker processes per loader.
        train_subset: Use this many training images, chosen by ``seed``; None for all.
        test_subset: The same of the test images.
        seed: Order, sizes and subsets are functions of it.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: From ``setup``, if a folder or a file is missing; while it runs, if one is damaged, or an
            image and its normals differ in size.
    """

    multiple = _STRIDE
    training_set = _TrainingPairs
    test_set = _TestPairs
    collate_training = staticmethod(_padded)

    def __init__(
        self,
        root: str = "data/NYUv2",
        batch_size: int = 2,
        short_sides: Sequence[int] = (300, 375, 450, 525, 600),
        eval_short_side: int = 450,
        longest: int = 1000,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        num_workers: int = 2,
        train_subset: int | None = None,
        test_subset: int | None = None,
        seed: int = 0,
    ) -> None:
        if batch_size == 1:
            raise ConfigError(
                "data.batch_size must be at least 2, got 1: the decoder averages over the image, and batch "
                "norm has no deviation of a single value"
            )
        super().__init__(
            root, short_sides, eval_short_side, longest, mean, std, batch_size=batch_size,
            num_workers=num_workers, train_subset=train_subset, test_subset=test_subset, seed=seed,
        )  # fmt: skip

    @property
    def class_names(self) -> None:
        """None: pixels have normals, and images no classes."""
        return None

    def load_splits(self) -> Splits:
        """List the files of both splits."""
        root = Path(self.root).expanduser().absolute()
        return Splits(list_normals(root, "train"), list_normals(root, "test"), None, None)

    def training_normals(self, limit: int = 100_000) -> Tensor:
        """Return valid normals ``(N, 3)`` of pixels drawn evenly from all training images, by the seed.

        Args:
            limit: About how many are drawn.

        Raises:
            DataError: If no pixel has a valid normal.
        """
        source: Any = self._opened().pretrain
        share, found = -(-limit // len(source)), []
        for index in range(len(source)):
            normals = unit_normals(np.asarray(source.pair(index)[1])).flatten(1).T
            normals = normals[normals.any(dim=1)]
            generator = torch.Generator().manual_seed(mix_seed(self.seed, index))
            found.append(normals[torch.randperm(len(normals), generator=generator)[:share]])
        drawn = torch.cat(found)
        if not len(drawn):
            raise DataError(
                f"no pixel of the {len(source)} training images in {self.root} has a valid normal, whose "
                "colour, 2 * pixel / 255 - 1, is of length 0.9 to 1.1"
            )
        return drawn
