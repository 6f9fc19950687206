"""Items with labels before any transform, such as images, and seeded subsets of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms.images import PixelImage, image_size

__all__ = [
    "ArraySource",
    "ImageSource",
    "JoinedSource",
    "Source",
    "SubsetSource",
    "balanced_subset",
    "first_readable",
    "grouped_subset",
    "take_subset",
    "with_labels",
    "without_labels",
]

IntArray = NDArray[np.int64]


class Source(ABC):
    """A sequence of ``(item, target)``, items of any kind: images, graphs, clips.

    Attributes:
        targets: Class indices, shape ``(N,)``, int64; -1 = unlabelled.
        groups: Numbers of groups that are held out as a whole, such as clips of one scene, shape ``(N,)``; or
            None where each item stands for itself.
    """

    targets: IntArray
    groups: IntArray | None = None

    @abstractmethod
    def item(self, index: int) -> Any:
        """Return item ``index``, as a transform takes it."""

    @abstractmethod
    def digest(self, index: int) -> bytes:
        """Return bytes that tell item ``index`` from any other, such as its pixels."""

    def path(self, index: int) -> str | None:
        """Return the file of item ``index``, or None where items are not files of their own."""
        return None

    def seek(self, epoch: int, index: int) -> None:  # noqa: B027  # most have nothing to do
        """Get ready to return item ``index``, the next one of an epoch; a source that reads ahead does it."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.item(index), int(self.targets[index])

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: IntArray) -> Source:
        """Return a view of the items at ``indices``, shape ``(n,)``; nothing is copied."""
        return SubsetSource(self, indices)


class ImageSource(Source):
    """A sequence of ``(image, target)``, images PIL in mode RGB, or uint8 tensors of other channels."""

    @abstractmethod
    def item(self, index: int) -> PixelImage:
        """Return image ``index``: PIL in mode RGB, or a uint8 tensor ``(C, H, W)``, C other than 3."""

    def digest(self, index: int) -> bytes:
        """Return size and pixels of image ``index``."""
        image = self.item(index)
        return repr(image_size(image)).encode() + np.asarray(image).tobytes()


class ArraySource(ImageSource):
    """Images held in one array, which forked workers share.

    Args:
        images: uint8 of shape ``(N, H, W, 3)``, or ``(N, 3, H, W)`` with ``channels_first``.
        targets: Class indices, shape ``(N,)``, or None for unlabelled images.
        channels_first: Whether the channels come before height and width.
    """

    def __init__(
        self, images: NDArray[np.uint8], targets: object = None, channels_first: bool = False
    ) -> None:
        self.images = images
        self.channels_first = channels_first
        self.targets = np.full(len(images), -1) if targets is None else np.asarray(targets, dtype=np.int64)

    def item(self, index: int) -> Image.Image:
        """Return image ``index`` in mode RGB."""
        pixels = self.images[index]
        return Image.fromarray(
            np.ascontiguousarray(pixels.transpose(1, 2, 0)) if self.channels_first else pixels
        )


class SubsetSource(Source):
    """The items of another source at given positions.

    Args:
        source: The items to choose from.
        indices: Positions in ``source``, shape ``(n,)``.
    """

    def __init__(self, source: Source, indices: IntArray) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        self.targets = source.targets[self.indices]
        self.groups = None if source.groups is None else source.groups[self.indices]

    def item(self, index: int) -> Any:
        """Return item ``index``."""
        return self.source.item(int(self.indices[index]))

    def digest(self, index: int) -> bytes:
        """Return bytes that tell item ``index`` from any other."""
        return self.source.digest(int(self.indices[index]))

    def path(self, index: int) -> str | None:
        """Return the file of item ``index``, or None."""
        return self.source.path(int(self.indices[index]))


class JoinedSource(Source):
    """The items of several sources, one after the other.

    Args:
        sources: At least one.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.targets = np.concatenate([source.targets for source in sources])
        self._ends = np.cumsum([len(source) for source in sources])

    def item(self, index: int) -> Any:
        """Return item ``index``."""
        which, position = self.place(index)
        return self.sources[which].item(position)

    def digest(self, index: int) -> bytes:
        """Return bytes that tell item ``index`` from any other."""
        which, position = self.place(index)
        return self.sources[which].digest(position)

    def path(self, index: int) -> str | None:
        """Return the file of item ``index``, or None."""
        which, position = self.place(index)
        return self.sources[which].path(position)

    def place(self, index: int) -> tuple[int, int]:
        """Return which source item ``index`` is of, and its position there."""
        which = int(np.searchsorted(self._ends, index, side="right"))
        return which, index - (int(self._ends[which - 1]) if which else 0)


def grouped_subset(targets: IntArray, groups: IntArray | None, size: int, seed: int) -> IntArray:
    """Choose items as :func:`balanced_subset` does, but groups as a whole, until they have ``size`` items.

    Args:
        targets: Class indices, shape ``(N,)``; those of a group's first item count for the group.
        groups: Number of each item's group, shape ``(N,)``, or None where each item is one.
        size: How many to choose, at least; at most N.
        seed: The choice is a function of this alone.

    Returns:
        Sorted positions, of as many items as the last group needs.
    """
    if groups is None:
        return balanced_subset(targets, size, seed)
    _, first, of_item, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    for number in range(1, len(first) + 1):
        chosen = balanced_subset(targets[first], number, seed)
        if counts[chosen].sum() >= size:
            break
    return np.flatnonzero(np.isin(of_item, chosen))


def balanced_subset(targets: IntArray, size: int, seed: int) -> IntArray:
    """Choose items at random, equally many of each class as far as the classes reach.

    Where an image is unlabelled (-1), labels do not describe the set, and the choice ignores them.

    Args:
        targets: Class indices, shape ``(N,)``.
        size: How many to choose, at most N.
        seed: The choice is a function of this alone.

    Returns:
        Sorted positions, shape ``(size,)``. Class counts differ by at most one, unless a class has
        fewer images than its share.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(targets))
    if len(targets) and targets.min() < 0:
        return np.sort(order[:size])
    # Rank the images within their class in random order; taking the lowest ranks deals the classes out.
    rank = np.empty(len(targets), dtype=np.int64)
    by_class = order[np.argsort(targets[order], kind="stable")]
    for members in np.split(by_class, np.flatnonzero(np.diff(targets[by_class])) + 1):
        rank[members] = np.arange(len(members))
    tie_break = generator.random(len(targets))
    return np.sort(np.lexsort((tie_break, rank))[:size])


def take_subset(source: Source, size: int | None, seed: int, option: str) -> Source:
    """Reduce ``source`` to ``size`` images, or leave it where ``size`` is None.

    Raises:
        ConfigError: If ``size`` exceeds the number of images; the message names ``option``.
    """
    if size is None or size == len(source):
        return source
    if size > len(source):
        raise ConfigError(f"{option} is {size}, but the split has only {len(source)} images")
    return source.subset(balanced_subset(source.targets, size, seed))


def without_labels(source: Source) -> Source:
    """Return a view of all items with target -1."""
    view = source.subset(np.arange(len(source)))
    view.targets = np.full(len(source), -1)
    return view


def first_readable(source: Source) -> Any:
    """Return the first item that can be read.

    Raises:
        DataError: If none can; the message is that of the first.
    """
    first: DataError | None = None
    for index in range(len(source)):
        try:
            return source.item(index)
        except DataError as error:
            first = first or error
    raise DataError(f"none of {len(source)} images can be read: {first}") from first


def with_labels(source: Source) -> Source | None:
    """Return the items that have a label: ``source`` itself where all have, None where none has."""
    known = source.targets >= 0
    return source if known.all() else source.subset(np.flatnonzero(known)) if known.any() else None
