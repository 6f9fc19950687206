"""The operations of the SimCLR augmentation on a whole batch, each image with parameters of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["adjust_colors", "blend_with_gray", "resample", "resampling_weights"]

_LUMA = (0.299, 0.587, 0.114)  # of R, G, B, as in Pillow's mode L
_HUE = 3  # among the adjustments


def resampling_weights(
    low: Tensor, high: Tensor, flip: Tensor, source: int, size: int, interpolation: str
) -> Tensor:
    """Weights of source pixels along one axis for a crop, an antialiased resize and a flip.

    As Pillow resamples a crop: pixels outside of it have no weight, and where the crop shrinks, the filter
    widens with it.

    Args:
        low: First pixel of each crop, shape ``(B,)``.
        high: One past its last pixel, shape ``(B,)``.
        flip: Whether to mirror the result, shape ``(B,)``, bool.
        source: Pixels of the source along the axis.
        size: Pixels of the result.
        interpolation: ``"bilinear"`` or ``"bicubic"``.

    Returns:
        Shape ``(B, size, source)``, float32; each row sums to 1.
    """
    low, high = low.float()[:, None, None], high.float()[:, None, None]
    target, pixel = torch.arange(size, device=low.device), torch.arange(source, device=low.device)
    scale = (high - low) / size
    at = torch.where(flip[:, None], size - 1 - target, target)[:, :, None]
    distance = (pixel + 0.5 - (low + (at + 0.5) * scale)) / scale.clamp_min(1)
    weights = _FILTERS[interpolation](distance.abs())
    weights = weights * ((pixel >= low) & (pixel < high))
    return weights / weights.sum(2, keepdim=True)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply weights along both axes, and keep the range after each, as Pillow does.

    Args:
        images: Shape ``(B, C, H, W)``, float32 in [0, 1].
        rows: Weights of the rows, shape ``(B, h, H)``.
        columns: Weights of the columns, shape ``(B, w, W)``.

    Returns:
        Shape ``(B, C, h, w)``.
    """
    across = (images @ columns[:, None].transpose(2, 3)).clamp_(0, 1)
    return (rows[:, None] @ across).clamp_(0, 1)


def adjust_colors(images: Tensor, jitter: Sequence[Sequence[tuple[int, float]]]) -> Tensor:
    """Adjust brightness, contrast, saturation and hue of every image, in an order of its own.

    Gray is the mean of all channels where there are not three, and the hue is then left as it is.

    Args:
        images: Shape ``(B, C, H, W)``, float32 in [0, 1]; changed in place.
        jitter: For each image its adjustments in order: 0 brightness, 1 contrast, 2 saturation, each with a
            factor; 3 hue with a shift in turns.

    Returns:
        ``images``.
    """
    for place in range(4):
        chosen: list[list[int]] = [[], [], [], []]
        for index, steps in enumerate(jitter):
            if place < len(steps):
                chosen[steps[place][0]].append(index)
        for which, members in enumerate(chosen):
            if members and (which != _HUE or images.shape[1] == 3):
                rows = torch.tensor(members, device=images.device)
                values = torch.tensor([jitter[i][place][1] for i in members], device=images.device)
                images[rows] = _ADJUST[which](images[rows], values[:, None, None, None])
    return images


def blend_with_gray(images: Tensor, factor: Tensor | float) -> Tensor:
    """Move images ``(B, C, H, W)`` towards gray: all the way with the factor 0, not at all with 1."""
    return _blend(images, _gray(images), factor)


def _gray(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.tensor(_LUMA, device=images.device)[:, None, None]
    return (images * weights).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor | float, factor: Tensor | float) -> Tensor:
    return (images * factor + other * (1 - factor)).clamp_(0, 1)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, 0.0, factor)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _gray(images).mean((2, 3), keepdim=True), factor)


def _hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue in HSV."""
    value, least = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - least
    r, g, b = images[:, :1], images[:, 1:2], images[:, 2:]
    scaled = 1 / torch.where(chroma > 0, chroma, 1.0)
    sixth = torch.where(
        value == r,
        (g - b) * scaled,
        torch.where(value == g, (b - r) * scaled + 2, (r - g) * scaled + 4),
    )
    steps = torch.tensor([5.0, 3.0, 1.0], device=images.device)[:, None, None]  # red, green, blue
    k = sixth + (6 * turns + steps)
    k = k - 6 * (k / 6).floor()  # half the time of torch's remainder
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


_ADJUST: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_brightness, _contrast, blend_with_gray, _hue)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.5, Pillow's bicubic filter."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


_FILTERS: dict[str, Callable[[Tensor], Tensor]] = {"bilinear": _triangle, "bicubic": _cubic}
