"""Picture files as a source of images: read every time, or decoded once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.skipping import SkippedFiles
from mmcl_lightning.datamodules.sources import ImageSource, Source, first_readable
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms.images import PixelImage

__all__ = ["FileSource", "cache_images", "hold_out"]

_CACHE_LIMIT = 4 * 2**30  # bytes


class FileSource(ImageSource):
    """Images that are read from their files every time.

    Args:
        paths: The files.
        targets: Class indices, shape ``(N,)``, or None for unlabelled images.
        read: How a file is read.
        skipped: Is told of files that cannot be read.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        targets: object = None,
        read: PictureReader | None = None,
        skipped: SkippedFiles | None = None,
    ) -> None:
        # An array of bytes, not a list of objects: forked workers would copy the latter page by page.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self._read = PictureReader() if read is None else read
        self._skipped = skipped
        self.targets = np.full(len(paths), -1) if targets is None else np.asarray(targets, dtype=np.int64)

    def item(self, index: int) -> PixelImage:
        """Read image ``index``."""
        try:
            return self._read(self.path(index))
        except DataError as error:
            if self._skipped is None:
                raise DataError(f"{error}; --data.on_bad_image skip goes on without it") from error
            self._skipped.note(index, error)
            raise

    def path(self, index: int) -> str:
        """Return the file of image ``index``."""
        return os.fsdecode(bytes(self._paths[index]))


class _CachedFiles(ImageSource):
    """Decoded images, which remember their files.

    Args:
        images: The pixels of each, of equal or differing sizes, as arrays.
        tensors: Whether they are tensors ``(C, H, W)`` and not in mode RGB.
        source: Where they come from.
        bad: Why the others cannot be read, by position; what stands for their pixels does not count.
    """

    def __init__(
        self, images: list[np.ndarray], tensors: bool, source: Source, bad: dict[int, DataError]
    ) -> None:
        equal = len({image.shape for image in images}) == 1
        self._images: np.ndarray | list[np.ndarray] = np.stack(images) if equal else images
        self._tensors = tensors
        self._source = source
        self._bad = {position: str(error) for position, error in bad.items()}
        self.targets = source.targets

    def item(self, index: int) -> PixelImage:
        if index in self._bad:
            raise DataError(self._bad[index])
        pixels = self._images[index]
        return torch.from_numpy(pixels) if self._tensors else Image.fromarray(pixels)

    def path(self, index: int) -> str | None:
        return self._source.path(index)


def cache_images(source: Source, skip: bool = False) -> ImageSource:
    """Decode every image once.

    Args:
        source: The images.
        skip: Let images be that cannot be read: the result raises for them as ``source`` does.

    Raises:
        ConfigError: If the decoded images need more than 4 GiB.
        DataError: If an image cannot be read, without ``skip``; or none can.
    """
    images: list[np.ndarray] = []
    size, tensors, bad = 0, False, {}
    blank = np.array(first_readable(source)) if skip else None
    for index in range(len(source)):
        try:
            image = source.item(index)
        except DataError as error:
            if blank is None:
                raise
            bad[index] = error
            images.append(blank)
            continue
        tensors = isinstance(image, Tensor)
        images.append(image.numpy() if isinstance(image, Tensor) else np.array(image))
        size += images[-1].nbytes
        if size > _CACHE_LIMIT:
            raise ConfigError(
                f"cache needs more than {_CACHE_LIMIT >> 30} GiB ({index + 1} of {len(source)} images"
                " decoded); set cache to false, or make the images smaller"
            )
    return _CachedFiles(images, tensors, source, bad)


def hold_out(source: Source, holdout: float, seed: int) -> tuple[Source, Source | None]:
    """Hold out a fraction of each class, rounded; classes of one image stay in training.

    Args:
        source: The images.
        holdout: Fraction to hold out, 0 for none.
        seed: The held-out images are a function of it.

    Returns:
        The images that are left, and those that are held out, or None where there are none.
    """
    generator = np.random.default_rng(seed)
    held = np.zeros(len(source), dtype=bool)
    by_class = np.argsort(source.targets, kind="stable")
    starts = np.flatnonzero(np.diff(source.targets[by_class])) + 1
    for members in np.split(by_class, starts):
        members = generator.permutation(members)
        count = max(1, round(holdout * len(members))) if holdout > 0 and len(members) > 1 else 0
        held[members[: min(count, len(members) - 1)]] = True
    if not held.any():
        return source, None
    return source.subset(np.flatnonzero(~held)), source.subset(np.flatnonzero(held))
