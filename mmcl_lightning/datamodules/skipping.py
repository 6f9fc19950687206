"""Go on past images that cannot be read: remember which, say so, and show others in their place."""

from __future__ import annotations

import warnings

import torch

from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import PixelImage

__all__ = ["SkippedFiles", "read_or_replace"]

_NAMED = 20  # images of a list whose reasons are printed; of a list that is all wrong they would fill the log
_TRIES = 100


class SkippedFiles:
    """Which files of a list could not be read, whichever process of this one's loaders met them.

    Args:
        count: Length of the list.
    """

    def __init__(self, count: int) -> None:
        # Which the workers of loaders have too.
        self._flags = torch.zeros(count, dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]

    def note(self, index: int, error: DataError) -> None:
        """Remember a file, and say at the first time which it is and why.

        Args:
            index: Its place in the list.
            error: Why it cannot be read.
        """
        if self._flags[index]:
            return
        self._flags[index] = True
        found = int(self._flags.sum())
        if found <= _NAMED:
            more = " (from here on they are counted only)" if found == _NAMED else ""
            warnings.warn(f"skipped: {error}{more}", stacklevel=2)

    @property
    def indices(self) -> list[int]:
        """Their places in the list, sorted."""
        found: list[int] = self._flags.nonzero().flatten().tolist()
        return found


def read_or_replace(source: Source, position: int, *seeds: int) -> tuple[PixelImage, int, int]:
    """Return an image, its target and its position: those at ``position``, or of another that can be read.

    Args:
        source: The images.
        position: Which image is wanted.
        seeds: The other image is a function of them, of the position and of which images can be read.

    Raises:
        DataError: If a hundred images in a row cannot be read, as when a disk has gone.
    """
    at, first = position, None
    for attempt in range(_TRIES):
        try:
            return (*source[at], at)
        except DataError as error:
            first = first or error
            at = mix_seed(*seeds, position, attempt) % len(source)
    raise DataError(f"{_TRIES} images in a row cannot be read, the first of them: {first}") from first
