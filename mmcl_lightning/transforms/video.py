"""Clips of a video: which frames, and one draw of an image transform for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from PIL import Image, ImageOps
from torch import Tensor

from mmcl_lightning._options import check_choice, check_number, check_whole
from mmcl_lightning.transforms.base import ImageTransform, MultiView, as_floats, check_statistics, normalise
from mmcl_lightning.transforms.images import crop_image
from mmcl_lightning.transforms.simclr import SimCLRTransform

__all__ = [
    "ClipTransform",
    "ClipViews",
    "EvalClips",
    "FlowTransform",
    "RandomClip",
    "Video",
    "clip_starts",
    "frame_positions",
    "mirror_flow",
]

_STEP = 15  # frames between the clips of an evaluation on all of a video
_CROP = 14 / 15  # of the short side: 224 of 240 pixels


class Video(Protocol):
    """What a data module gives for a video: its length, and frames of it."""

    def __len__(self) -> int:
        """Return the number of frames."""

    def clips(self, positions: Sequence[Sequence[int]]) -> list[list[Image.Image]]:
        """Return the frames at some positions, for each clip, in mode RGB; the file is opened once.

        Args:
            positions: Of each clip the positions of its frames, from 0 to the length.
        """


def frame_positions(length: int, frames: int, stride: int, start: int) -> list[int]:
    """Return the positions of a clip's frames; one that a video is too short for is padded by its frame 0.

    Args:
        length: Frames of the video.
        frames: Frames of the clip.
        stride: From one frame of the clip to the next, in frames of the video.
        start: Position of the first frame; of a short video it does not count.
    """
    start = min(start, length - 1 - (frames - 1) * stride)
    return [max(0, start + index * stride) for index in range(frames)]


def clip_starts(length: int, frames: int, stride: int, count: int | Literal["all"]) -> list[int]:
    """Return where the clips of an evaluation begin.

    Args:
        length: Frames of the video.
        frames: Frames of a clip.
        stride: From one frame of a clip to the next, in frames of the video.
        count: So many, evenly spaced from the first frame to the last, also of a video that has fewer;
            ``"all"``: one every 15 frames, at least one.
    """
    last = max(0, length - 1 - (frames - 1) * stride)
    if count == "all":
        return list(range(0, last + 1, _STEP))
    return [round(index * last / max(1, count - 1)) for index in range(count)] if count > 1 else [last // 2]


def mirror_flow(frame: Image.Image) -> Image.Image:
    """Mirror a picture of optical flow left and right: what flows to the right then flows to the left.

    Args:
        frame: Green has the vertical and blue the horizontal flow; none lies between 127 and 128.
    """
    red, vertical, horizontal = ImageOps.mirror(frame).split()
    return Image.merge("RGB", (red, vertical, ImageOps.invert(horizontal)))


class FlowTransform(ImageTransform):
    """Random crop and flip of one picture of optical flow, whose colours are directions and stay.

    A flip turns the horizontal flow round; CoCLR's code does not, and changes colours besides.

    Args:
        size: Height and width of a view in pixels.
        crop_scale: Smallest and largest area of the crop, as fractions of the picture.
        hflip_prob: Probability of a flip.
        mean: Per-channel mean in units of [0, 1], or None.
        std: Per-channel standard deviation, or None.
    """

    def __init__(
        self,
        size: int = 128,
        crop_scale: tuple[float, float] = (0.2, 1.0),
        hflip_prob: float = 0.5,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        check_number("hflip_prob", hflip_prob, "in [0, 1]")
        self._crop = SimCLRTransform(
            size,
            crop_scale,
            interpolation="bicubic",
            hflip_prob=0.0,
            cj_prob=0.0,
            gray_prob=0.0,
            blur_prob=0.0,
        )
        self.size, self.crop_scale, self.hflip_prob = size, self._crop.crop_scale, hflip_prob
        self.mean, self.std = as_floats(mean), as_floats(std)
        self._statistics = check_statistics(mean, std)

    def __call__(self, image: Any) -> Tensor:
        """Return a float32 tensor ``(3, size, size)``."""
        flip = bool(torch.rand(()) < self.hflip_prob)
        return normalise(self._crop(mirror_flow(image) if flip else image), self._statistics)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, crop_scale={self.crop_scale})"


class ClipTransform:
    """Apply a transform of images to all frames of a clip, with one draw for all.

    torch's generator is set back before every frame, so that any transform which draws from it alone crops,
    flips and colours all frames alike.

    Args:
        transform: From image to tensor ``(C, H, W)``.
    """

    def __init__(self, transform: Callable[[Any], Tensor]) -> None:
        self.transform = transform

    def __call__(self, frames: Sequence[Any]) -> Tensor:
        """Return a clip ``(C, T, H, W)`` of T frames.

        Args:
            frames: The frames.
        """
        generator = torch.default_generator
        state = generator.get_state()
        made = []
        for frame in frames:
            generator.set_state(state)
            made.append(self.transform(frame))
        return torch.stack(made, dim=1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"


class RandomClip:
    """Cut a clip at random out of a video, and transform its frames alike.

    Args:
        transform: Transform of an image.
        frames: Frames of the clip.
        stride: From one frame to the next, in frames of the video.
    """

    def __init__(self, transform: Callable[[Any], Tensor], frames: int = 32, stride: int = 1) -> None:
        check_whole(1, frames=frames, stride=stride)
        self.transform, self.frames, self.stride = ClipTransform(transform), frames, stride

    def positions(self, video: Video) -> list[int]:
        """Draw the positions of the frames of a clip.

        Args:
            video: The video.
        """
        last = max(0, len(video) - 1 - (self.frames - 1) * self.stride)
        start = int(torch.randint(last + 1, ()))
        return frame_positions(len(video), self.frames, self.stride, start)

    def __call__(self, video: Video) -> Tensor:
        """Return a clip ``(C, T, H, W)``."""
        (clip,) = video.clips([self.positions(video)])
        return self.transform(clip)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.transform.transform!r}, frames={self.frames}, stride={self.stride})"
        )


class ClipViews(MultiView):
    """Two views of a video, as in the paper's baseline CoCLR.

    With probability ``two_clips`` two clips of it, each fully augmented with probability ``full`` and else
    cropped and flipped; else one clip twice, once augmented each way. Source: the published code of CoCLR
    (Han et al., NeurIPS 2020). There a crop that does not fit squashes the whole frame, three of ten at 320 x
    240 pixels, and gray is one channel at random; not here.

    Args:
        augment: The full augmentation of an image.
        plain: The other one, such as crop and flip.
        frames: Frames of a clip.
        stride: From one frame to the next, in frames of the video.
        two_clips: Probability of two clips.
        full: Probability of the full augmentation of each of two clips.
    """

    def __init__(
        self,
        augment: Callable[[Any], Tensor],
        plain: Callable[[Any], Tensor],
        frames: int = 32,
        stride: int = 1,
        two_clips: float = 0.5,
        full: float = 0.3,
    ) -> None:
        for name, value in (("two_clips", two_clips), ("full", full)):
            check_number(name, value, "in [0, 1]")
        super().__init__(RandomClip(augment, frames, stride))
        self.augment, self.plain = ClipTransform(augment), ClipTransform(plain)
        self.two_clips, self.full = two_clips, full

    def __call__(self, video: Any) -> list[Tensor]:
        """Return two clips ``(C, T, H, W)`` of a video."""
        one: Any = self.transform
        if torch.rand(()) < self.two_clips:
            clips = video.clips([one.positions(video), one.positions(video)])
            ways = [self.augment if torch.rand(()) < self.full else self.plain for _ in clips]
        else:
            clips = video.clips([one.positions(video)]) * 2
            ways = [self.augment, self.plain] if torch.rand(()) < 0.5 else [self.plain, self.augment]
        return [way(clip) for way, clip in zip(ways, clips, strict=True)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.augment.transform!r}, {self.plain.transform!r})"


class EvalClips:
    """The clips of a video that are judged, each in one or ten crops.

    A crop is 14/15 of the short side, as 224 of 240 pixels, whatever the size of the frames. The published
    code also changes colours here; not kept.

    Args:
        transform: From a crop to a tensor, without randomness.
        frames: Frames of a clip.
        stride: From one frame to the next, in frames of the video.
        clips: As ``count`` of :func:`clip_starts`.
        crops: 1 for the centre; 10 for centre and corners, and the same mirrored.
        mirror: Mirrors a frame.
    """

    def __init__(
        self,
        transform: Callable[[Any], Tensor],
        frames: int = 32,
        stride: int = 1,
        clips: int | Literal["all"] = 3,
        crops: Literal[1, 10] = 1,
        mirror: Callable[[Image.Image], Image.Image] = ImageOps.mirror,
    ) -> None:
        check_whole(1, frames=frames, stride=stride)
        if clips != "all":
            check_whole(1, clips=clips)
        check_choice("crops", crops, (1, 10))
        self.transform, self.frames, self.stride = transform, frames, stride
        self.clips, self.crops, self.mirror = clips, crops, mirror

    def __call__(self, video: Video) -> list[Tensor]:
        """Return clips ``(C, T, H, W)``: of the first clip all crops, then of the next."""
        starts = clip_starts(len(video), self.frames, self.stride, self.clips)
        positions = [frame_positions(len(video), self.frames, self.stride, start) for start in starts]
        return [view for clip in video.clips(positions) for view in self._crops(clip)]

    def _crops(self, clip: list[Image.Image]) -> list[Tensor]:
        width, height = clip[0].size
        side = max(1, round(_CROP * min(width, height)))
        right, bottom = width - side, height - side
        corners = [(right // 2, bottom // 2), (0, 0), (right, 0), (0, bottom), (right, bottom)]
        ways = [clip] if self.crops == 1 else [clip, [self.mirror(frame) for frame in clip]]
        return [
            torch.stack([self.transform(crop_image(f, left, top, side, side)) for f in frames], dim=1)
            for frames in ways
            for left, top in corners[: 1 if self.crops == 1 else 5]
        ]

    def __repr__(self) -> str:
        clips = f"clips={self.clips!r}, crops={self.crops}"
        return (
            f"{type(self).__name__}({self.transform!r}, frames={self.frames}, stride={self.stride}, {clips})"
        )
