"""What the transforms do to one image, which is a PIL image or a tensor of any number of channels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tvf

__all__ = [
    "PixelImage",
    "any_size",
    "channel_count",
    "cover",
    "crop_image",
    "flip_image",
    "for_the_eye",
    "image_size",
    "image_to_tensor",
    "pixels_of",
    "resize_image",
]

#: An image of three channels in Pillow's mode RGB; of any other number a uint8 tensor ``(C, H, W)``.
PixelImage = Image.Image | Tensor


@contextlib.contextmanager
def any_size() -> Iterator[None]:
    """Let Pillow open and cut pictures of any size: those who read them have limits of their own."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def channel_count(image: PixelImage) -> int:
    """Return the number of channels."""
    return len(image) if isinstance(image, Tensor) else len(image.getbands())


def for_the_eye(images: Tensor) -> Tensor:
    """Return images ``(..., C, H, W)`` with three channels: the first three, or the first one as grey."""
    if images.shape[-3] >= 3:
        return images[..., :3, :, :]
    return images[..., :1, :, :].expand(*images.shape[:-3], 3, -1, -1)


def image_size(image: PixelImage) -> tuple[int, int]:
    """Return width and height in pixels."""
    return (image.shape[2], image.shape[1]) if isinstance(image, Tensor) else image.size


def crop_image(image: PixelImage, left: int, top: int, width: int, height: int) -> PixelImage:
    """Cut a rectangle, given in pixels, out of an image."""
    if isinstance(image, Tensor):
        return image[:, top : top + height, left : left + width]
    with any_size():
        return image.crop((left, top, left + width, top + height))


def flip_image(image: PixelImage, horizontally: bool, vertically: bool) -> PixelImage:
    """Mirror an image left and right, top and bottom, or not at all."""
    if isinstance(image, Tensor):
        dims = [dim for dim, does in ((2, horizontally), (1, vertically)) if does]
        return image.flip(dims) if dims else image
    if horizontally:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if vertically else image


def resize_image(image: PixelImage, height: int, width: int, bilinear: bool = False) -> PixelImage:
    """Resize an image to ``height`` x ``width`` pixels, bicubic or bilinear, antialiased."""
    if isinstance(image, Tensor):
        mode = InterpolationMode.BILINEAR if bilinear else InterpolationMode.BICUBIC
        resized: Tensor = tvf.resize(image, [height, width], mode, antialias=True)
        return resized
    kind = Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC
    return image.resize((width, height), kind)


def cover(image: PixelImage, height: int, width: int) -> PixelImage:
    """Resize an image, keeping its aspect, until it just covers ``height`` x ``width`` pixels.

    The longer side is rounded downwards, as torchvision's Resize does it.
    """
    own = image_size(image)
    if (one := width * own[1]) >= (other := height * own[0]):  # the width decides
        size = (one // own[0], width)
    else:
        size = (height, other // own[1])
    return image if size == own[::-1] else resize_image(image, *size)


def pixels_of(image: PixelImage) -> Tensor:
    """Return the pixels of an image as a uint8 tensor ``(C, H, W)``."""
    return image if isinstance(image, Tensor) else torch.from_numpy(np.array(image)).permute(2, 0, 1)


def image_to_tensor(image: PixelImage) -> Tensor:
    """Turn an image of H x W pixels into a float32 tensor ``(C, H, W)`` in [0, 1]."""
    if isinstance(image, Tensor):
        return image.float().div_(255)
    width, height = image.size
    pixels = np.frombuffer(image.tobytes(), dtype=np.uint8).reshape(height, width, 3).transpose(2, 0, 1)
    return torch.from_numpy(np.divide(pixels, np.float32(255), dtype=np.float32, order="C"))
