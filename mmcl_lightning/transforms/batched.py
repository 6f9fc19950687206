"""What is drawn for many views at once, applied to all of them as tensors, on whatever device they lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmcl_lightning.transforms.base import check_statistics, normalise
from mmcl_lightning.transforms.blur import BlurPadding, GaussianBlur

__all__ = ["ColourPlan", "DrawnViews", "Finish"]

_HUE, _GRAY, _BLUR = 3, 4, 5  # after brightness, contrast and saturation


@dataclass(frozen=True, eq=False)
class ColourPlan:
    """Which images of a batch are changed how, each in an order of its own.

    Args:
        steps: One after the other: what is changed, and in how many images.
        rows: The images of all steps, int64, one after the other.
        values: Factor, shift or standard deviation for each of them, float32.
    """

    steps: tuple[tuple[int, int], ...]
    rows: Tensor
    values: Tensor

    @classmethod
    def of(cls, parameters: Sequence[Any]) -> ColourPlan:
        """Put together what is drawn for images.

        Args:
            parameters: Of each image, as :class:`~mmcl_lightning.transforms.simclr.SimCLRParameters`.
        """
        changes: dict[tuple[int, int], list[tuple[int, float]]] = {}  # by place and kind
        for row, drawn in enumerate(parameters):
            for place, (which, value) in enumerate(drawn.jitter):
                changes.setdefault((place, which), []).append((row, value))
            if drawn.gray:
                changes.setdefault((4, _GRAY), []).append((row, 0.0))
            if drawn.sigma > 0:
                changes.setdefault((5, _BLUR), []).append((row, drawn.sigma))
        ordered = sorted(changes.items())
        pairs = [pair for _, members in ordered for pair in members]
        return cls(
            tuple((which, len(members)) for (_, which), members in ordered),
            torch.tensor([row for row, _ in pairs], dtype=torch.int64),
            torch.tensor([value for _, value in pairs], dtype=torch.float32),
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> ColourPlan:
        """Return the same with other tensors, such as on another device."""
        return replace(self, rows=function(self.rows), values=function(self.values))


@dataclass(frozen=True)
class Finish:
    """The last part of an augmentation: from pixels of the size of a view to a view.

    Gray is the mean of all channels where there are not three, and the hue is then left as it is.

    Args:
        size: Height and width in pixels.
        blur_kernel: Width of the blur in pixels; None without one.
        blur_padding: Beyond the border.
        mean: Per-channel mean, or None.
        std: Per-channel standard deviation, or None.
    """

    size: tuple[int, int]
    blur_kernel: int | None
    blur_padding: BlurPadding
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __call__(self, pixels: Tensor, plan: ColourPlan) -> Tensor:
        """Make views.

        Args:
            pixels: Shape ``(B, C, *size)``, uint8.
            plan: What is drawn for them, on their device.

        Returns:
            Float32, of the same shape.
        """
        blur, statistics = _constants(self, pixels.device)
        views = pixels.float().div_(255)
        start = 0
        for which, count in plan.steps:
            rows, values = (part[start : start + count] for part in (plan.rows, plan.values))
            start += count
            if which == _HUE and views.shape[1] != 3:
                continue
            if which == _BLUR:
                assert blur is not None
                changed = blur.each(views[rows], values).clamp_(0, 1)
            else:
                changed = _CHANGES[which](views[rows], values[:, None, None, None])
            views[rows] = changed
        return normalise(views, statistics)


class DrawnViews:
    """Views that are still to be made: their pixels, cut and resized, and what is drawn for their colours.

    They become a list of views where they are moved to, by :meth:`to`, so that a loader's workers only read,
    cut and resize, and the device does the rest. Without a move they can be read as the list that they stand
    for, which is then made anew each time.

    Args:
        pixels: Shape ``(V, B, C, H, W)``, uint8: V views of B images.
        plan: What is drawn for the V * B images.
        finish: The rest of the augmentation.
    """

    def __init__(self, pixels: Tensor, plan: ColourPlan, finish: Finish) -> None:
        self.pixels, self.plan, self.finish = pixels, plan, finish

    def __len__(self) -> int:
        return len(self.pixels)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.make())

    def __getitem__(self, index: int) -> Tensor:
        return self.make()[index]

    def make(self) -> list[Tensor]:
        """Return the views where the pixels lie, each float32 ``(B, C, H, W)``."""
        return list(self.finish(self.pixels.flatten(0, 1), self.plan).view(self.pixels.shape).unbind(0))

    def to(self, device: Any, **options: Any) -> list[Tensor]:
        """Return the views on a device, made there; Lightning calls it with the batch.

        Args:
            device: The device.
            **options: As of torch's ``Tensor.to``.
        """
        return self._mapped(lambda tensor: tensor.to(device, **options)).make()

    def pin_memory(self, *args: Any) -> DrawnViews:
        """Return the same in pinned memory; a loader of torch calls it."""
        return self._mapped(lambda tensor: tensor.pin_memory(*args))

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> DrawnViews:
        return DrawnViews(function(self.pixels), self.plan.map(function), self.finish)


@functools.lru_cache(maxsize=16)
def _constants(finish: Finish, device: torch.device) -> tuple[GaussianBlur | None, Any]:
    """Return blur, and mean and std, on a device: the way there would be a wait in every step."""
    blur = None
    if finish.blur_kernel is not None:
        blur = GaussianBlur(finish.size, finish.blur_kernel, finish.blur_padding, device)
    statistics = check_statistics(finish.mean, finish.std)
    return blur, None if statistics is None else tuple(part.to(device) for part in statistics)


def _gray(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)  # weighed as in Pillow's mode L
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def _blend(images: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    return (images * factor + other * (1 - factor)).clamp_(0, 1)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp_(0, 1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _gray(images).mean((2, 3), keepdim=True), factor)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _gray(images), factor)


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
    steps = torch.arange(5, 0, -2, device=images.device)[:, None, None]  # red, green, blue
    k = sixth + (6 * turns + steps)
    k = k - 6 * (k / 6).floor()  # half the time of torch's remainder
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


_CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _brightness, _contrast, _saturation, _hue, _saturation
)  # fmt: skip
