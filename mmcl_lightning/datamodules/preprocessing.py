"""How images reach a network: what has to be the same wherever its weights are used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import ImageTransform
from mmcl_lightning.transforms.base import described, statistics_text

__all__ = ["Preprocessing"]


@dataclass(frozen=True)
class Preprocessing:
    """What was done to the images that a network was trained and judged on; it travels with its weights.

    Attributes:
        transform: Transform of the images that are judged, or None for one that cannot be stored.
        pixels: Height and width that it gave, or None if unknown.
        view_pixels: Height and width of a training view, or None if unknown.
        channels: Channels of an image.
        reader: Options of the :class:`~mmcl_lightning.datamodules.pictures.PictureReader` that change what is
            read, by name; empty where images are no files of their own.
    """

    transform: ImageTransform | None
    pixels: tuple[int, int] | None
    view_pixels: tuple[int, int] | None
    channels: int
    reader: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return it as a dict of numbers and strings, which a checkpoint can hold."""
        plain = {name: to_spec(getattr(self, name)) for name in self.__dataclass_fields__}
        return {**plain, "text": str(self)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Preprocessing:
        """Build it from what :meth:`to_plain` gave.

        Raises:
            ConfigError: If the class of the transform is not found.
        """
        spec = plain.get("transform")
        stored = isinstance(spec, dict) and "class_path" in spec
        pixels, view_pixels = (
            None if plain.get(name) is None else (int(plain[name][0]), int(plain[name][1]))
            for name in ("pixels", "view_pixels")
        )
        return cls(
            from_spec(spec, ImageTransform, "preprocessing") if stored else None,
            pixels, view_pixels, int(plain["channels"]), dict(plain.get("reader") or {}),
        )  # fmt: skip

    def normalised_as(self, transform: Any) -> bool:
        """Whether a transform normalises by the same mean and std; True where either is not known."""
        if self.transform is None or not isinstance(transform, ImageTransform):
            return True
        own, other = self.transform.statistics, transform.statistics
        if own is None or other is None:
            return own is other
        return len(own[0]) == len(other[0]) and all(map(torch.allclose, own, other))

    def check_channels(self, channels: int) -> None:
        """Raise :class:`ConfigError` unless images have as many channels as those of the training."""
        if channels != self.channels:
            raise ConfigError(
                f"the weights were trained on images of {self.channels} channels, and those of the data have "
                f"{channels}: set data.channels, or give the weights of such a network"
            )

    def check_statistics(self, **transforms: Any) -> None:
        """Raise :class:`ConfigError` if a transform, given by its option, normalises in another way."""
        for name, transform in transforms.items():
            if self.transform is not None and not self.normalised_as(transform):
                raise ConfigError(
                    f"the weights were trained on images {_normalised(self.transform)}, and {name} makes "
                    f"images {_normalised(transform)}: leave mean, std and {name} out, or, to keep them, set "
                    "--model.preprocessing data"
                )

    def compare_size(self, pixels: tuple[int, int] | None) -> None:
        """Warn where images of another height and width are to be judged."""
        if None not in (pixels, self.pixels) and pixels != self.pixels:
            sizes = ("{} x {}".format(*(size or ())) for size in (self.pixels, pixels))
            rank_zero_warn("the weights were judged on images of {} pixels, these have {}".format(*sizes))

    def __str__(self) -> str:
        size = "pixels of the file" if self.pixels is None else "{} x {} pixels".format(*self.pixels)
        if self.transform is None:
            return f"{size}, by a transform that cannot be stored"
        return f"{size} by {described(self.transform)}"


def _normalised(transform: ImageTransform) -> str:
    text = statistics_text(transform)
    return text if transform.mean is None else f"normalised by {text}"
