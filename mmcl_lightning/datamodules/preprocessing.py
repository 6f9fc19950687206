"""How images reach a network: what has to be the same wherever its weights are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from mmcl_lightning._options import is_number, is_whole
from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import ImageTransform
from mmcl_lightning.transforms.base import Statistics, described, statistics_of, statistics_text

__all__ = ["Preprocessing"]


@dataclass(frozen=True)
class Preprocessing:
    """What was done to the images that a network was trained and judged on; it travels with its weights.

    Attributes:
        transform: Transform of the images that are judged, or None for one that cannot be stored.
        pixels: Height and width that it gave, or None if unknown.
        view_pixels: Height and width of a training view, or None if unknown.
        channels: Channels of an image.
        statistics: Mean and std that images are normalised with, ``()`` in [0, 1], None if unknown.
        reader: Options of the :class:`~mmcl_lightning.datamodules.pictures.PictureReader` that change what is
            read, by name; empty where images are no files of their own.
        text: All of it in words.
    """

    transform: ImageTransform | None
    pixels: tuple[int, int] | None
    view_pixels: tuple[int, int] | None
    channels: int
    statistics: Statistics | None = None
    reader: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def of(
        cls, transform: Any, pixels: tuple[int, int], view_pixels: tuple[int, int] | None, channels: int
    ) -> Preprocessing:
        """Describe a transform of any kind, and what it gave."""
        known = transform if isinstance(transform, ImageTransform) else None
        text = f"{pixels[0]} x {pixels[1]} pixels by {described(transform)}"
        return cls(known, pixels, view_pixels, channels, statistics_of(transform), text=text)

    def to_plain(self) -> dict[str, Any]:
        """Return it as a dict of numbers and strings, which a checkpoint can hold."""
        return {name: to_spec(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Preprocessing:
        """Build it from what :meth:`to_plain` gave; a transform that cannot be built is left out.

        Raises:
            ConfigError: If it is of another form.
        """
        reader, channels, text = plain.get("reader", {}), plain.get("channels"), plain.get("text", "")
        if not (isinstance(reader, dict) and is_whole(channels) and channels > 0 and isinstance(text, str)):
            raise _damaged(plain)
        try:
            transform = from_spec(plain.get("transform"), ImageTransform, "preprocessing")
        except (
            ConfigError,
            TypeError,
            ValueError,
            AttributeError,
        ):  # of somebody's own class, or tampered with
            transform = None
        return cls(
            transform if isinstance(transform, ImageTransform) else None,
            _pixels(plain, "pixels"), _pixels(plain, "view_pixels"), channels, _statistics(plain),
            {name: tuple(v) if isinstance(v, list) else v for name, v in reader.items()}, text,
        )  # fmt: skip

    def difference(self, statistics: Statistics | None) -> bool:
        """Whether images are known to be normalised by another mean and std."""
        if self.statistics is None or statistics is None:
            return False
        same = [len(one) for one in self.statistics] == [len(one) for one in statistics]
        pairs = zip(self.statistics, statistics, strict=False)
        return not (same and all(torch.tensor(a).allclose(torch.tensor(b)) for a, b in pairs))

    def check(self, channels: int, reader: dict[str, Any], strict: bool, **transforms: Any) -> None:
        """Compare what decides about values with how images are made now.

        Args:
            channels: Channels of an image.
            reader: Options that were given, by name.
            strict: Refuse another mean, std or reading, which is else warned of.
            **transforms: The transforms by the names of their options.

        Raises:
            ConfigError: If they differ.
        """
        if channels != self.channels:
            raise ConfigError(
                f"the weights were trained on images of {self.channels} channels, and those of the data have "
                f"{channels}: set data.channels, or give the weights of such a network"
            )
        theirs = statistics_text(self.statistics)
        for name, transform in transforms.items():
            if self.difference(own := statistics_of(transform)):
                _complain(
                    strict, f"the weights were trained on images {theirs}, and {name} makes images "
                    f"{statistics_text(own)}: leave mean, std and {name} out",
                )  # fmt: skip
        for name, value in reader.items():
            before = self.reader.get(name)
            if None not in (before, value) and to_spec(before) != to_spec(value):
                _complain(
                    strict, f"the weights were trained on images of {name} {before}, and data.{name} is "
                    f"{value}: leave it out",
                )  # fmt: skip

    def compare(self, other: Preprocessing) -> None:
        """Warn where images are judged that were made in another way, such as of another size."""
        if self.text and self.text != other.text:
            rank_zero_warn(f"the weights were judged on images of {self}; these are of {other}")

    def __str__(self) -> str:
        return self.text


def _complain(strict: bool, text: str) -> None:
    if strict:
        raise ConfigError(f"{text}, or, to keep that, set --model.preprocessing data")
    rank_zero_warn(text.partition(": leave")[0])


def _damaged(plain: Any) -> ConfigError:
    return ConfigError(
        f"the checkpoint does not say in a known form how its images were made ({str(plain)[:80]}...): it is "
        "damaged, or not of this package; set --model.preprocessing data and make them the same way"
    )


def _pixels(plain: dict[str, Any], name: str) -> tuple[int, int] | None:
    value = plain.get(name)
    if value is None:
        return None
    if not (
        isinstance(value, list | tuple) and len(value) == 2 and all(is_whole(v) and v > 0 for v in value)
    ):
        raise _damaged(plain)
    return value[0], value[1]


def _statistics(plain: dict[str, Any]) -> Statistics | None:
    value = plain.get("statistics")
    if value is None:
        return None

    def numbers(part: Any) -> bool:
        return isinstance(part, Sequence) and all(is_number(v) and v == v for v in part)

    if not (isinstance(value, list | tuple) and len(value) in (0, 2) and all(map(numbers, value))):
        raise _damaged(plain)
    return tuple(tuple(map(float, part)) for part in value)
