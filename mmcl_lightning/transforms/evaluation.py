"""The deterministic transforms that readouts, evaluations and predictions use."""

from __future__ import annotations

from torch import Tensor

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.transforms.base import (
    ImageTransform,
    Size,
    as_floats,
    as_pair,
    as_size,
    check_statistics,
    normalise,
)
from mmcl_lightning.transforms.images import (
    PixelImage,
    cover,
    crop_image,
    image_size,
    image_to_tensor,
    resize_image,
)
from mmcl_lightning.transforms.simclr import CIFAR_MEAN, CIFAR_STD

__all__ = ["CentralCrop", "EvalTransform", "ShortSide", "StretchedCrop"]

_LONGEST = 8


class EvalTransform(ImageTransform):
    """Resize with the aspect kept, cut the centre, turn into a tensor, normalise: each step is optional.

    Of PIL images it equals torchvision's Resize (bicubic) and CenterCrop bit for bit, but for images that are
    smaller than the crop, which torchvision pads, or more than 8 times as long as the crop, whose ends are
    cut off first.

    Args:
        resize: Length of the short side in pixels after resizing (bicubic, antialiased); a height and a width
            resize until the image just covers them; None keeps the size.
        crop: Height and width of the centre crop in pixels, one number for a square, or None for no crop. An
            image that is smaller is resized up until the crop fits.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        resize: Size | None = None,
        crop: Size | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        self._resize = None if resize is None else as_pair(resize, "resize")
        self._crop = None if crop is None else as_pair(crop, "crop")
        self._statistics = check_statistics(mean, std)
        self.resize = None if resize is None else as_size(resize)
        self.crop = None if crop is None else as_size(crop)
        self.mean, self.std = as_floats(mean), as_floats(std)

    @classmethod
    def cifar(cls) -> EvalTransform:
        """CIFAR at its native 32 pixels: to tensor and normalise, nothing else."""
        return cls(mean=CIFAR_MEAN, std=CIFAR_STD)

    @classmethod
    def stl10(cls) -> EvalTransform:
        """STL-10 at its native 96 pixels, with CIFAR's mean and std as the published code has it."""
        return cls(mean=CIFAR_MEAN, std=CIFAR_STD)

    @classmethod
    def imagenet(
        cls,
        size: Size = 224,
        resize: Size | None = 256,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> EvalTransform:
        """Resize, then cut ``size`` out of the centre; in [0, 1] unless told otherwise.

        Args:
            size: Height and width of the crop in pixels.
            resize: Length of the short side in pixels, None for ``size``.
            mean: Per-channel mean, or None.
            std: Per-channel standard deviation, or None.
        """
        return cls(resize=size if resize is None else resize, crop=size, mean=mean, std=std)

    def __call__(self, image: PixelImage) -> Tensor:
        """Return a float32 tensor of shape ``(C, H, W)``; of ``crop`` pixels where it is set."""
        width, height = image_size(image)
        fits = self._crop is None or (height >= self._crop[0] and width >= self._crop[1])
        if self._resize is not None or not fits:
            image = image if self._crop is None else _without_ends(image, *self._crop)
            sizes = [size for size in (self._resize, self._crop) if size is not None]
            image = cover(image, max(h for h, _ in sizes), max(w for _, w in sizes))
        if self._crop is not None:
            image = _centre(image, *self._crop)
        return normalise(image_to_tensor(image), self._statistics)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(resize={self.resize}, crop={self.crop})"


class CentralCrop(ImageTransform):
    """Cut the centre, a fraction of each side, and resize it to one size, whatever its aspect was.

    The evaluation of SimCLR and of the paper's ImageNet code; :class:`EvalTransform` keeps the aspect.

    Args:
        size: Height and width of the result in pixels, one number for a square.
        fraction: Share of each side that is kept, in (0, 1].
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        size: Size = 224,
        fraction: float = 0.875,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        self._size = as_pair(size)
        check_number("fraction", fraction, "in (0, 1]", "it is a share of each side")
        self._statistics = check_statistics(mean, std)
        self.size = as_size(size)
        self.fraction = fraction
        self.mean, self.std = as_floats(mean), as_floats(std)

    def __call__(self, image: PixelImage) -> Tensor:
        """Return a float32 tensor of shape ``(C, *size)``."""
        width, height = (max(1, int(self.fraction * side)) for side in image_size(image))
        image = resize_image(_centre(image, height, width), *self._size)
        return normalise(image_to_tensor(image), self._statistics)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, fraction={self.fraction})"


class StretchedCrop(ImageTransform):
    """Resize to a square a little larger than asked for, whatever the aspect was, and cut its centre.

    The images of the few-shot evaluations (Guo et al., ECCV 2020): bilinear to 257 x 257 pixels, and 224 x
    224 of them. Bit for bit what torchvision's ``Resize``, ``CenterCrop``, ``ToTensor`` and ``Normalize``
    give.

    Args:
        size: Height and width of the result in pixels, one number for a square.
        enlarge: Sides before the crop over those after it, >= 1; they are rounded down.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        size: Size = 224,
        enlarge: float = 1.15,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        self._size = as_pair(size)
        height, width = self._size
        check_number("enlarge", enlarge, ">= 1", "it is what the crop takes away")
        self._statistics = check_statistics(mean, std)
        self.size = height if height == width else self._size  # named alike however it was given
        self.enlarge = float(enlarge)
        self.mean, self.std = as_floats(mean), as_floats(std)

    def __call__(self, image: PixelImage) -> Tensor:
        """Return a float32 tensor of shape ``(C, *size)``."""
        height, width = self._size
        high, wide = (int(side * self.enlarge) for side in self._size)
        image = resize_image(image, high, wide, bilinear=True)
        top, left = round((high - height) / 2), round((wide - width) / 2)  # torchvision's; halves to even
        return normalise(image_to_tensor(crop_image(image, left, top, width, height)), self._statistics)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, enlarge={self.enlarge})"


class ShortSide(ImageTransform):
    """Resize a whole image, bilinear, to a length of its short side: for a value at every place.

    As the published code of surface normals does it (Ericsson et al., CVPR 2021): sides are rounded down, and
    then up to a multiple, by which the aspect changes a little and no pixel is made up.

    Args:
        side: Length of the short side in pixels.
        longest: Most pixels of the long side; the short one is then shorter.
        multiple: Both sides become multiples of it.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        side: int = 450,
        longest: int = 1000,
        multiple: int = 8,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        check_whole(1, side=side, longest=longest, multiple=multiple)
        self._statistics = check_statistics(mean, std)
        self.side, self.longest, self.multiple = int(side), int(longest), int(multiple)
        self.mean, self.std = as_floats(mean), as_floats(std)

    def __call__(self, image: PixelImage) -> Tensor:
        """Return a float32 tensor of shape ``(C, H, W)``, H and W multiples of ``multiple``."""
        height, width = self.size_of(image)
        return normalise(image_to_tensor(resize_image(image, height, width, bilinear=True)), self._statistics)

    def size_of(self, image: PixelImage) -> tuple[int, int]:
        """Return the height and width that an image gets."""
        width, height = image_size(image)
        scale = min(self.side / min(height, width), self.longest / max(height, width))
        sizes = [
            -(-max(1, int(length * scale)) // self.multiple) * self.multiple for length in (height, width)
        ]
        return sizes[0], sizes[1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(side={self.side}, longest={self.longest}, multiple={self.multiple})"


def _without_ends(image: PixelImage, height: int, width: int) -> PixelImage:
    """Cut off the ends of an image more than 8 times as long as what is cut out of its centre.

    Resized whole, one of 1 x 60,000 pixels would fill the memory, for a centre that does not show it.
    """
    own_width, own_height = image_size(image)
    longest = max(own_width * height, own_height * width)
    if longest <= _LONGEST * min(own_width * height, own_height * width):
        return image
    if own_width * height == longest:
        wide = -(-_LONGEST * own_height * width // height)
        return _centre(image, own_height, wide + (own_width - wide) % 2)  # the centre stays where it is
    high = -(-_LONGEST * own_width * height // width)
    return _centre(image, high + (own_height - high) % 2, own_width)


def _centre(image: PixelImage, height: int, width: int) -> PixelImage:
    """Cut ``height`` x ``width`` pixels out of the centre, rounded as torchvision rounds it."""
    own = image_size(image)
    left, top = round((own[0] - width) / 2), round((own[1] - height) / 2)
    return crop_image(image, left, top, width, height)
