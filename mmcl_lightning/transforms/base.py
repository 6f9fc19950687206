"""The base of every image transform, and the transform that makes several views."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import ConfigError

__all__ = ["ImageTransform", "MultiView", "check_statistics", "described", "disagreement", "image_to_tensor"]


class ImageTransform(ABC):
    """A callable from one PIL image to one float32 tensor.

    A plain class, so that a config may name any subclass by ``class_path`` and ``init_args``.
    """

    @property
    def statistics(self) -> tuple[Tensor, Tensor] | None:
        """Mean and std that the output is normalised with, each ``(3, 1, 1)``; None where it is in [0, 1]."""
        return getattr(self, "_statistics", None)

    @property
    def pixels(self) -> int | None:
        """Height and width of what it gives, or None where that depends on the image."""
        size: int | None = getattr(self, "size", None) or getattr(self, "crop", None)
        return size

    @abstractmethod
    def __call__(self, image: Image.Image) -> Tensor:
        """Transform one image.

        Args:
            image: A PIL image in mode ``RGB``, of any size.

        Returns:
            A float32 tensor of shape ``(3, H, W)``, in [0, 1] unless mean and std move it.
        """


class MultiView:
    """Draw several independent views of one image.

    Args:
        transform: The augmentation of one view, from PIL image to tensor.
        views: How many times it is drawn, at least 2 for a contrastive loss.
    """

    def __init__(self, transform: Callable[[Any], Tensor], views: int = 2) -> None:
        check_whole(1, views=views)
        self.transform = transform
        self.views = views

    def __call__(self, image: Image.Image) -> list[Tensor]:
        """Return ``views`` tensors of shape ``(3, H, W)``, drawn one after the other."""
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
    if transform.statistics is None:
        return f"{text}, in [0, 1]"
    mean, std = (
        ", ".join(f"{value:g}" for value in part.flatten().tolist()) for part in transform.statistics
    )
    return f"{text}, mean {mean}, std {std}"


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
        return f"training images have {train.pixels} pixels, those of the evaluation {evaluation.pixels}"
    one, other = train.statistics, evaluation.statistics
    if one is None and other is None:
        return None
    if one is None or other is None or not all(map(torch.equal, one, other)):
        return "training images and those of the evaluation are not normalised by the same mean and std"
    return None


def image_to_tensor(image: Image.Image) -> Tensor:
    """Turn an RGB image of H x W pixels into a float32 tensor ``(3, H, W)`` in [0, 1]."""
    width, height = image.size
    pixels = np.frombuffer(image.tobytes(), dtype=np.uint8).reshape(height, width, 3).transpose(2, 0, 1)
    return torch.from_numpy(np.divide(pixels, np.float32(255), dtype=np.float32, order="C"))


def check_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, Tensor] | None:
    """Check a per-channel mean and std, and shape them for ``(3, H, W)`` tensors.

    Args:
        mean: Three means in units of [0, 1], or None.
        std: Three positive standard deviations in the same unit, or None.

    Returns:
        Two float32 tensors of shape ``(3, 1, 1)``, or None where both are None (stay in [0, 1]).

    Raises:
        ConfigError: If only one is given, or they are not three numbers, or a std is not positive.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ConfigError(f"mean and std go together, got mean={mean} and std={std}")
    if len(mean) != 3 or len(std) != 3:
        raise ConfigError(f"mean and std need three numbers each (R, G, B), got mean={mean}, std={std}")
    if min(std) <= 0:
        raise ConfigError(f"every std must be positive, got std={std}")
    return torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
