"""The base of every image transform, and the transform that makes several views."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmcl_lightning._options import arguments_of, check_whole, is_number
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.transforms.images import PixelImage

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ImageTransform",
    "MultiView",
    "Size",
    "Statistics",
    "as_floats",
    "as_pair",
    "as_size",
    "check_statistics",
    "described",
    "disagreement",
    "normalise",
    "statistics_of",
    "statistics_text",
]

#: Height and width in pixels, or one number for both.
Size = int | tuple[int, int]
#: Mean and std by channel; empty where pixels stay in [0, 1].
Statistics = tuple[tuple[float, ...], ...]


class ImageTransform(ABC):
    """A callable from one image to one float32 tensor.

    A plain class, so that a config may name any subclass by ``class_path`` and ``init_args``. Keep every
    argument of the constructor as an attribute of its name: then it can travel with the weights of a network.

    Attributes:
        mean: Per-channel mean that is subtracted, in units of [0, 1], or None.
        std: Per-channel standard deviation that is divided by, or None: the output is in [0, 1].
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    @property
    def statistics(self) -> tuple[Tensor, Tensor] | None:
        """Mean and std that the output is normalised with, each ``(C, 1, 1)``; None where it is in [0, 1]."""
        return check_statistics(self.mean, self.std)

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Height and width of what it gives, or None where that depends on the image."""
        size = getattr(self, "size", None) or getattr(self, "crop", None)
        return None if size is None else as_pair(size)

    @abstractmethod
    def __call__(self, image: PixelImage) -> Tensor:
        """Transform one image.

        Args:
            image: A PIL image in mode ``RGB``, of any size; of images of other than three channels a uint8
                tensor ``(C, H, W)``.

        Returns:
            A float32 tensor of shape ``(C, H, W)``, in [0, 1] unless mean and std move it.
        """

    def options(self) -> dict[str, Any]:
        """Return the arguments that build this transform again, by name.

        Raises:
            ConfigError: If an argument of the constructor is not kept as an attribute of its name.
        """
        return arguments_of(self)

    def replace(self, **changes: Any) -> Self:
        """Return a transform of the same class with other values of some arguments.

        Args:
            **changes: The arguments to change, by name.

        Raises:
            ConfigError: If the class does not keep its arguments, or a value is out of range.
        """
        return type(self)(**{**self.options(), **changes})


class MultiView:
    """Draw several independent views of one image.

    Args:
        transform: The augmentation of one view, from image to tensor.
        views: How many times it is drawn, at least 2 for a contrastive loss.
    """

    def __init__(self, transform: Callable[[Any], Tensor], views: int = 2) -> None:
        check_whole(1, views=views)
        self.transform = transform
        self.views = views

    def __call__(self, image: PixelImage) -> list[Tensor]:
        """Return ``views`` tensors of shape ``(C, H, W)``, drawn one after the other."""
        return [self.transform(image) for _ in range(self.views)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r}, views={self.views})"


def described(transform: Any) -> str:
    """Say in words what a transform does, mean and std included, alike in every run.

    Args:
        transform: An :class:`ImageTransform`, or any other callable.
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(transform).split()))
    if not isinstance(transform, ImageTransform):
        return text
    return f"{text}, {statistics_text(statistics_of(transform)).removeprefix('normalised by ')}"


def statistics_of(transform: Any) -> Statistics | None:
    """Return mean and std that a transform normalises with, ``()`` where it gives [0, 1], None if unknown.

    Args:
        transform: An :class:`ImageTransform`, a :class:`MultiView` of one, or torchvision's ``Normalize``,
            also within ``Compose``.
    """
    transform = transform.transform if isinstance(transform, MultiView) else transform
    if isinstance(transform, ImageTransform):
        statistics = transform.statistics
        return () if statistics is None else tuple(tuple(v.flatten().tolist()) for v in statistics)
    if type(transform).__name__ == "Normalize":  # torchvision's, old and new
        return tuple(tuple(map(float, v)) for v in (transform.mean, transform.std))
    parts = getattr(transform, "transforms", ())
    return next((found for part in reversed(parts) if (found := statistics_of(part)) is not None), None)


def statistics_text(statistics: Statistics | None) -> str:
    """Say in words how images are normalised."""
    if statistics is None:
        return "normalised in an unknown way"
    if not statistics:
        return "in [0, 1]"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in statistics)
    return f"normalised by mean {mean}, std {std}"


def disagreement(train: Any, evaluation: Any) -> str | None:
    """Say in what the images of two transforms differ that should not, or return None.

    Args:
        train: Transform of training images, or a :class:`MultiView` of one.
        evaluation: Transform of the images that are judged.
    """
    train = train.transform if isinstance(train, MultiView) else train
    if not (isinstance(train, ImageTransform) and isinstance(evaluation, ImageTransform)):
        return None
    if None not in (train.pixels, evaluation.pixels) and train.pixels != evaluation.pixels:
        sizes = [" x ".join(map(str, pixels)) for pixels in (train.pixels, evaluation.pixels) if pixels]
        return f"training images have {sizes[0]} pixels, those of the evaluation {sizes[1]}"
    one, other = train.statistics, evaluation.statistics
    if one is None and other is None:
        return None
    if one is None or other is None or not all(map(torch.equal, one, other)):
        return "training images and those of the evaluation are not normalised by the same mean and std"
    return None


def as_pair(size: Size, name: str = "size") -> tuple[int, int]:
    """Return height and width.

    Args:
        size: Both, or one number for both.
        name: Name of the option, for the message.

    Raises:
        ConfigError: If they are not positive integers.
    """
    pair = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(pair) != 2:
        raise ConfigError(f"{name} must be one number of pixels, or height and width, got {size!r}")
    for side in pair:
        check_whole(1, **{name: side})
    return pair[0], pair[1]


def check_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, Tensor] | None:
    """Check a per-channel mean and std, and shape them for ``(C, H, W)`` tensors.

    Args:
        mean: One mean per channel in units of [0, 1], or None.
        std: As many positive standard deviations in the same unit, or None.

    Returns:
        Two float32 tensors of shape ``(C, 1, 1)``, or None where both are None (stay in [0, 1]).

    Raises:
        ConfigError: If only one is given, they differ in length, or a std is not positive.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ConfigError(f"mean and std go together, got mean={mean} and std={std}")
    if len(mean) != len(std) or not len(mean) or not all(map(is_number, (*mean, *std))):
        raise ConfigError(f"mean and std need one number per channel each, got mean={mean}, std={std}")
    if min(std) <= 0:
        raise ConfigError(f"every std must be positive, got std={std}")
    mean, std = as_floats(mean), as_floats(std)
    return torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)


def as_size(size: Size) -> Size:
    """Return one number, or a tuple of two, which prints alike however it was given."""
    return (size[0], size[1]) if isinstance(size, tuple | list) else size


def as_floats(values: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return numbers of any kind as Python's own, which a checkpoint can hold."""
    return None if values is None else tuple(float(value) for value in values)


def normalise(pixels: Tensor, statistics: tuple[Tensor, Tensor] | None) -> Tensor:
    """Subtract the mean and divide by the std, in place.

    Args:
        pixels: Shape ``(C, H, W)`` or ``(B, C, H, W)``, float32.
        statistics: From :func:`check_statistics`; None leaves the pixels as they are.

    Raises:
        ShapeError: If mean and std are not of C channels.
    """
    if statistics is None:
        return pixels
    mean, std = statistics
    if len(mean) != pixels.shape[-3]:
        raise ShapeError(
            f"mean and std have {len(mean)} numbers, and the images {pixels.shape[-3]} channels: give one "
            "number per channel"
        )
    return pixels.sub_(mean).div_(std)
