"""The deterministic transforms that readouts, evaluations and predictions use."""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.transforms.base import ImageTransform, check_statistics, image_to_tensor
from mmcl_lightning.transforms.simclr import CIFAR_MEAN, CIFAR_STD

__all__ = ["CentralCrop", "EvalTransform"]


class EvalTransform(ImageTransform):
    """Resize the short side, cut the centre, turn into a tensor, normalise: each step is optional.

    Args:
        resize: Length of the short side in pixels after resizing (bicubic, antialiased), or None to
            keep the size. A short side of that length already is left alone.
        crop: Height and width of the centre crop in pixels, or None for no crop. An image that is
            smaller is resized up until the crop fits.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        resize: int | None = None,
        crop: int | None = None,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
    ) -> None:
        for name, value in (("resize", resize), ("crop", crop)):
            if value is not None:
                check_whole(1, **{name: value})
        self.resize = resize
        self.crop = crop
        self._statistics = check_statistics(mean, std)

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
        size: int = 224,
        resize: int | None = 256,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
    ) -> EvalTransform:
        """Resize the short side, then cut a square out of the centre; in [0, 1] unless told otherwise.

        Args:
            size: Height and width of the crop in pixels.
            resize: Length of the short side in pixels, None for ``size``.
            mean: Per-channel mean, or None.
            std: Per-channel standard deviation, or None.
        """
        return cls(resize=size if resize is None else resize, crop=size, mean=mean, std=std)

    def __call__(self, image: Image.Image) -> Tensor:
        """Return a float32 tensor of shape ``(3, H, W)``; both are ``crop`` where one is set."""
        short = min(image.size)
        target = self.resize or short
        if self.crop is not None:
            target = max(target, self.crop)
        if target != short:
            size = tuple(max(target, round(side * target / short)) for side in image.size)
            image = image.resize((size[0], size[1]), Image.Resampling.BICUBIC)
        if self.crop is not None and image.size != (self.crop, self.crop):
            left, top = (image.size[0] - self.crop) // 2, (image.size[1] - self.crop) // 2
            image = image.crop((left, top, left + self.crop, top + self.crop))
        pixels = image_to_tensor(image)
        if self._statistics is not None:
            pixels.sub_(self._statistics[0]).div_(self._statistics[1])
        return pixels

    def __repr__(self) -> str:
        return f"{type(self).__name__}(resize={self.resize}, crop={self.crop})"


class CentralCrop(ImageTransform):
    """Cut the centre, a fraction of each side, and resize it to a square, whatever its aspect was.

    The evaluation of SimCLR and of the paper's ImageNet code; :class:`EvalTransform` keeps the aspect.

    Args:
        size: Height and width of the result in pixels.
        fraction: Share of each side that is kept, in (0, 1].
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None. With both None, images stay in [0, 1].
    """

    def __init__(
        self,
        size: int = 224,
        fraction: float = 0.875,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
    ) -> None:
        check_whole(1, size=size)
        check_number("fraction", fraction, "in (0, 1]", "it is a share of each side")
        self.size = size
        self.fraction = fraction
        self._statistics = check_statistics(mean, std)

    def __call__(self, image: Image.Image) -> Tensor:
        """Return a float32 tensor of shape ``(3, size, size)``."""
        width, height = (max(1, int(self.fraction * side)) for side in image.size)
        left, top = (image.size[0] - width) // 2, (image.size[1] - height) // 2
        image = image.crop((left, top, left + width, top + height))
        pixels = image_to_tensor(image.resize((self.size, self.size), Image.Resampling.BICUBIC))
        if self._statistics is not None:
            pixels.sub_(self._statistics[0]).div_(self._statistics[1])
        return pixels

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, fraction={self.fraction})"
