"""How images reach a network: what has to be the same wherever its weights are used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.transforms import ImageTransform
from mmcl_lightning.transforms.base import described

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

    def __str__(self) -> str:
        size = "pixels of the file" if self.pixels is None else "{} x {} pixels".format(*self.pixels)
        if self.transform is None:
            return f"{size}, by a transform that cannot be stored"
        return f"{size} by {described(self.transform)}"
