"""The SimCLR augmentation of one view, with the two published sets of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf

from mmcl_lightning._options import check_choice, check_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms.base import (
    ImageTransform,
    Size,
    as_floats,
    as_pair,
    as_size,
    check_statistics,
    normalise,
)
from mmcl_lightning.transforms.batched import ColourPlan, Finish
from mmcl_lightning.transforms.blur import BlurPadding, GaussianBlur
from mmcl_lightning.transforms.images import (
    PixelImage,
    crop_image,
    flip_image,
    image_size,
    image_to_tensor,
    resize_image,
)

__all__ = ["CIFAR_MEAN", "CIFAR_STD", "SimCLRParameters", "SimCLRTransform"]

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)

_CROP_ATTEMPTS = 10  # as torchvision's RandomResizedCrop


@dataclass(frozen=True)
class SimCLRParameters:
    """What is drawn for one view.

    Args:
        box: Left, top, right and bottom of the crop in pixels of the image.
        hflip: Whether to mirror left and right.
        vflip: Whether to mirror top and bottom.
        jitter: Adjustments in their order: 0 brightness, 1 contrast, 2 saturation, each with a factor; 3 hue
            with a shift in turns.
        gray: Whether to make it gray.
        sigma: Standard deviation of the blur in pixels, 0 for none.
    """

    box: tuple[int, int, int, int]
    hflip: bool
    vflip: bool
    jitter: tuple[tuple[int, float], ...]
    gray: bool
    sigma: float


class SimCLRTransform(ImageTransform):
    """Random crop, flip, colour jitter, grayscale and blur of one image.

    In this order: RandomResizedCrop, flips, colour jitter (four adjustments in random order), grayscale,
    to float in [0, 1], Gaussian blur, clamp, normalisation. The distributions are those of torchvision's
    v2 transforms of the same names; here one call draws its random numbers from torch's generator at
    once and applies the same pixel operations without the per-transform dispatch, which dominates the
    cost at 32 x 32 pixels.

    It is also there in two parts, for many views at once: :meth:`cut` gives the pixels of a view, and
    :attr:`finish` does the rest to a batch, on any device. Views of a call are about one grey level darker,
    by Pillow's rounding to 8 bits after every step: its blends round down. Images of other than three
    channels, uint8 tensors, are always made in parts: gray is the mean of their channels, and the hue stays.

    The defaults are :meth:`cifar` without normalisation.

    Args:
        size: Height and width of a view in pixels, one number for a square.
        crop_scale: Smallest and largest area of the crop, as fractions of the image.
        crop_ratio: Smallest and largest width / height of the crop.
        interpolation: ``"bilinear"`` or ``"bicubic"``, antialiased.
        hflip_prob: Probability of a horizontal flip.
        vflip_prob: Probability of a vertical flip.
        cj_prob: Probability of the colour jitter.
        jitter: Brightness, contrast, saturation and hue, as in torchvision's ColorJitter: the first
            three draw a factor from [max(0, 1 - v), 1 + v], hue a shift from [-v, v] turns.
        cj_strength: Multiplies all four numbers of ``jitter``.
        gray_prob: Probability of grayscale (three equal channels).
        blur_prob: Probability of the Gaussian blur.
        blur_kernel: Width of the blur in pixels, odd.
        blur_sigma: Smallest and largest standard deviation of the blur in pixels, drawn uniformly.
        blur_padding: ``"reflect"`` or ``"zeros"`` beyond the border.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, views stay in [0, 1].

    Raises:
        ConfigError: If an option is out of its range.
    """

    def __init__(
        self,
        size: Size = 32,
        crop_scale: tuple[float, float] = (0.08, 1.0),
        crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        hflip_prob: float = 0.5,
        vflip_prob: float = 0.0,
        cj_prob: float = 0.8,
        jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
        cj_strength: float = 1.0,
        gray_prob: float = 0.2,
        blur_prob: float = 0.5,
        blur_kernel: int = 3,
        blur_sigma: tuple[float, float] = (0.1, 2.0),
        blur_padding: BlurPadding = "reflect",
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        self._size = as_pair(size)
        check_choice("interpolation", interpolation, ("bicubic", "bilinear"))
        self.size = as_size(size)
        self.crop_scale = _interval("crop_scale", crop_scale, high=1.0)
        self.crop_ratio = _interval("crop_ratio", crop_ratio)
        self.interpolation = interpolation
        self.hflip_prob = _probability("hflip_prob", hflip_prob)
        self.vflip_prob = _probability("vflip_prob", vflip_prob)
        self.cj_prob = _probability("cj_prob", cj_prob)
        self._strengths = _jitter(jitter, cj_strength)
        self.jitter = jitter
        self.cj_strength = cj_strength
        self.gray_prob = _probability("gray_prob", gray_prob)
        self.blur_prob = _probability("blur_prob", blur_prob)
        self.blur_kernel = blur_kernel
        self.blur_sigma = _interval("blur_sigma", blur_sigma)
        self.blur_padding = blur_padding
        self.mean, self.std = as_floats(mean), as_floats(std)
        self._statistics = check_statistics(mean, std)
        self._blur = GaussianBlur(self._size, blur_kernel, blur_padding) if blur_prob > 0 else None

    @classmethod
    def cifar(
        cls,
        size: Size = 32,
        mean: tuple[float, ...] | None = CIFAR_MEAN,
        std: tuple[float, ...] | None = CIFAR_STD,
    ) -> SimCLRTransform:
        """Recipe A2 of CIFAR and STL-10 (HCL's code, which the paper's CIFAR code keeps).

        The published code blurs 8-bit images with OpenCV; here the blur is not rounded to 8 bits.

        Args:
            size: Height and width of a view in pixels.
            mean: Per-channel mean, or None.
            std: Per-channel standard deviation, or None.
        """
        return cls(size=size, mean=mean, std=std)

    @classmethod
    def imagenet(
        cls,
        size: Size = 224,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> SimCLRTransform:
        """Recipe A1 of ImageNet (the paper's ImageNet code): bicubic, jitter 0.8, no normalisation.

        Args:
            size: Height and width of a view in pixels. The blur keeps its share of the width: 23 of 224.
            mean: Per-channel mean, or None to stay in [0, 1] as published.
            std: Per-channel standard deviation, or None.
        """
        kernel = 2 * round(11 * min(as_pair(size)) / 224) + 1
        return cls(
            size=size, interpolation="bicubic", jitter=(0.8, 0.8, 0.8, 0.2),
            blur_kernel=kernel, blur_sigma=(0.2, 2.0), blur_padding="zeros", mean=mean, std=std,
        )  # fmt: skip

    def __call__(self, image: PixelImage) -> Tensor:
        """Draw one view, a float32 tensor of shape ``(C, *size)``."""
        return self.apply(image, self.draw(*image_size(image)))

    def draw(self, width: int, height: int) -> SimCLRParameters:
        """Draw the parameters of one view of an image of this size, from torch's generator."""
        draws = torch.rand(6).tolist()
        box = self.crop_box(width, height)
        jitter = self._draw_jitter() if draws[2] < self.cj_prob else ()
        low, high = self.blur_sigma
        return SimCLRParameters(
            box=box,
            hflip=draws[0] < self.hflip_prob,
            vflip=draws[1] < self.vflip_prob,
            jitter=jitter,
            gray=draws[3] < self.gray_prob,
            sigma=low + draws[5] * (high - low) if draws[4] < self.blur_prob else 0.0,
        )

    def apply(self, image: PixelImage, parameters: SimCLRParameters) -> Tensor:
        """Make the view of one image that the parameters describe, shape ``(C, *size)``."""
        image = self.cut(image, parameters)
        if isinstance(image, Tensor):
            return self.finish(image[None], ColourPlan.of([parameters]))[0]
        for which, value in parameters.jitter:
            image = _ADJUST[which](image, value)
        if parameters.gray:
            image = image.convert("L").convert("RGB")
        view = image_to_tensor(image)
        if self._blur is not None and parameters.sigma > 0:
            view = self._blur(view, parameters.sigma).clamp_(0.0, 1.0)
        return normalise(view, self._statistics)

    def cut(self, image: PixelImage, parameters: SimCLRParameters) -> PixelImage:
        """Crop, resize and flip an image, as the parameters say: its pixels before colours and blur."""
        left, top, right, bottom = parameters.box
        image = crop_image(image, left, top, right - left, bottom - top)
        image = resize_image(image, *self._size, bilinear=self.interpolation == "bilinear")
        return flip_image(image, parameters.hflip, parameters.vflip)

    @property
    def finish(self) -> Finish:
        """What is done to the pixels of many views at once, after :meth:`cut`."""
        kernel = None if self._blur is None else self.blur_kernel
        mean, std = as_floats(self.mean), as_floats(self.std)
        return Finish(self._size, kernel, self.blur_padding, mean, std)

    def crop_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Draw a crop as torchvision's RandomResizedCrop does.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.

        Returns:
            Left, top, right and bottom in pixels.
        """
        log_low, log_high = math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1])
        for _ in range(_CROP_ATTEMPTS):
            scale, ratio, x, y = torch.rand(4).tolist()
            area = width * height * (self.crop_scale[0] + scale * (self.crop_scale[1] - self.crop_scale[0]))
            aspect = math.exp(log_low + ratio * (log_high - log_low))
            crop_w, crop_h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < crop_w <= width and 0 < crop_h <= height:
                left, top = int(x * (width - crop_w + 1)), int(y * (height - crop_h + 1))
                return left, top, left + crop_w, top + crop_h
        # The image is too long or too thin for the ratios: the largest centred crop within them.
        crop_w = min(width, max(1, round(height * self.crop_ratio[1])))
        crop_h = min(height, max(1, round(width / self.crop_ratio[0])))
        left, top = (width - crop_w) // 2, (height - crop_h) // 2
        return left, top, left + crop_w, top + crop_h

    def _draw_jitter(self) -> tuple[tuple[int, float], ...]:
        draws = torch.rand(8).tolist()
        order = sorted(range(4), key=draws[4:].__getitem__)  # sorting four uniforms is a fair shuffle
        steps = []
        for which in order:
            strength = self._strengths[which]
            if strength == 0:
                continue
            low = -strength if which == 3 else max(0.0, 1.0 - strength)
            high = strength if which == 3 else 1.0 + strength
            steps.append((which, low + draws[which] * (high - low)))
        return tuple(steps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, jitter={self.jitter}, crop_scale={self.crop_scale})"


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the mean gray; equals torchvision's adjust_contrast at a third of its cost."""
    gray = np.frombuffer(image.convert("L").tobytes(), dtype=np.uint8)
    mean = int(gray.mean() + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, factor)


def _hue(image: Image.Image, turns: float) -> Image.Image:
    """Rotate the hue in place; equals torchvision's adjust_hue at two thirds of its cost."""
    pixels = np.frombuffer(bytearray(image.convert("HSV").tobytes()), dtype=np.uint8)
    pixels[0::3] += np.uint8(int(turns * 255) % 256)  # wraps around at 256, as a hue should
    return Image.frombytes("HSV", image.size, pixels.tobytes()).convert("RGB")


_ADJUST = (tvf.adjust_brightness, _contrast, tvf.adjust_saturation, _hue)


def _probability(name: str, value: float) -> float:
    check_number(name, value, "in [0, 1]", "it is a probability")
    return value


def _interval(name: str, value: tuple[float, float], high: float = math.inf) -> tuple[float, float]:
    if len(value) != 2 or not 0.0 < value[0] <= value[1] <= high:
        raise ConfigError(f"{name} must be two numbers with 0 < low <= high <= {high}, got {value}")
    return (value[0], value[1])


def _jitter(values: tuple[float, float, float, float], strength: float) -> tuple[float, ...]:
    if len(values) != 4 or min(values) < 0 or strength < 0:
        raise ConfigError(f"jitter needs four numbers >= 0 and cj_strength >= 0, got {values} and {strength}")
    scaled = tuple(value * strength for value in values)
    if scaled[3] > 0.5:
        raise ConfigError(f"the hue jitter is at most 0.5 of a turn, got {scaled[3]}")
    return scaled
