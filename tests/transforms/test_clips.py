"""Clips: which frames, one draw for all of them, and views of a video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import EvalTransform, SimCLRTransform
from mmcl_lightning.transforms.video import (
    ClipTransform,
    ClipViews,
    EvalClips,
    FlowTransform,
    RandomClip,
    clip_starts,
    frame_positions,
    mirror_flow,
)


class Numbered:
    """A video whose frame i has the colour i, in every pixel but the left column."""

    def __init__(self, length: int, width: int = 40, height: int = 30) -> None:
        self.length, self.size, self.opened = length, (height, width, 3), 0

    def __len__(self) -> int:
        return self.length

    def frame(self, index: int) -> Image.Image:
        pixels = np.full(self.size, index, np.uint8)
        pixels[:, 0] = 255
        return Image.fromarray(pixels)

    def clips(self, positions: Sequence[Sequence[int]]) -> list[list[Image.Image]]:
        self.opened += 1
        return [[self.frame(index) for index in clip] for clip in positions]


def test_positions_of_frames() -> None:
    assert frame_positions(100, 4, 2, 10) == [10, 12, 14, 16]
    assert frame_positions(7, 4, 2, 10) == [0, 2, 4, 6]  # the last clip that fits
    assert frame_positions(5, 8, 1, 0) == [0, 0, 0, 0, 1, 2, 3, 4]  # padded in front
    assert frame_positions(6, 4, 2, 0) == [0, 1, 3, 5]


@pytest.mark.parametrize(
    ("length", "starts"), [(29, [0]), (32, [0]), (33, [0]), (47, [0, 15]), (1776, list(range(0, 1745, 15)))]
)
def test_starts_of_all_clips(length: int, starts: list[int]) -> None:
    assert clip_starts(length, 32, 1, "all") == starts
    for start in starts:
        positions = frame_positions(length, 32, 1, start)
        assert len(positions) == 32
        assert (min(positions), max(positions)) == (start, min(length, start + 32) - 1)


def test_starts_of_some_clips() -> None:
    assert clip_starts(100, 10, 1, 3) == [0, 45, 90]
    assert clip_starts(100, 10, 1, 1) == [45]
    assert clip_starts(5, 10, 1, 3) == [0, 0, 0]


def test_one_draw_for_all_frames() -> None:
    frame = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    transform = SimCLRTransform(16, crop_scale=(0.2, 1.0), blur_prob=0.5)
    for seed in range(20):
        torch.manual_seed(seed)
        clip = ClipTransform(transform)([frame] * 8)
        after = torch.rand(())
        assert clip.shape == (3, 8, 16, 16)
        assert all(torch.equal(clip[:, index], clip[:, 0]) for index in range(8))
        torch.manual_seed(seed)
        assert torch.equal(clip[:, 0], transform(frame))  # as one image is made
        assert torch.equal(torch.rand(()), after)


def test_views_are_two_clips_or_one_in_two_ways() -> None:
    def full(frame: Any) -> torch.Tensor:
        torch.rand(5)
        return EvalTransform()(frame) + 1

    views = ClipViews(full, EvalTransform(), frames=4, stride=2)
    same, ways, starts = 0, [], set()
    for seed in range(400):
        torch.manual_seed(seed)
        video = Numbered(20)
        one, other = views(video)
        assert video.opened == 1
        firsts = [round(float(view[0, 0, 0, 5] % 1) * 255) for view in (one, other)]
        steps = (one[0, 1:, 0, 5] - one[0, :-1, 0, 5]) * 255
        torch.testing.assert_close(steps, torch.full((3,), 2.0), atol=1e-3, rtol=0)
        kinds = [bool(view[0, 0, 0, 0] > 1.5) for view in (one, other)]
        starts |= set(firsts)
        if firsts[0] == firsts[1] and kinds[0] != kinds[1]:
            same += 1
        else:
            ways += kinds
    assert starts == set(range(14))
    assert abs(same / 400 - 0.5) < 0.08
    assert abs(np.mean(ways) - 0.3) < 0.08


def test_ten_crops() -> None:
    video = Numbered(6)
    views = EvalClips(EvalTransform(14, 14), frames=2, clips=2, crops=10)(video)
    assert [tuple(view.shape) for view in views] == [(3, 2, 14, 14)] * 20
    bright = [bool(view[0, 0, :, 0].min() > 0.4) for view in views[:10]]
    # The left column is in the two left crops of 28 pixels, and mirrored in the two right ones.
    assert bright == [False, True, False, True, False, False, False, False, False, False]
    right = [bool(view[0, 0, :, -1].min() > 0.4) for view in views[:10]]
    assert right == [False, False, False, False, False, False, False, True, False, True]
    assert float(views[10][0, 0, 7, 7]) == pytest.approx(4 / 255)  # the second clip
    (single,) = EvalClips(EvalTransform(14, 14), frames=2, clips=1)(video)
    torch.testing.assert_close(single[0, :, 7, 7] * 255, torch.tensor([2.0, 3.0]))


def test_flow_is_mirrored_with_its_direction() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = 128, 60, np.arange(6) * 10
    found = np.asarray(mirror_flow(Image.fromarray(pixels)))
    assert found[0, :, 0].tolist() == [128] * 6
    assert found[0, :, 1].tolist() == [60] * 6
    assert found[0, :, 2].tolist() == [255 - 10 * index for index in range(5, -1, -1)]
    same = FlowTransform(4, crop_scale=(1.0, 1.0), hflip_prob=1.0)(Image.fromarray(pixels))
    assert torch.all(same[1] * 255 == 60)
    assert bool((same[2, 0, 0] * 255 < 210).item())
    assert bool((same[2] * 255 > 195).all())


def test_options_out_of_range() -> None:
    for options in ({"frames": 0}, {"stride": 0}):
        with pytest.raises(ConfigError, match="must be an integer >= 1"):
            RandomClip(EvalTransform(), **options)
        with pytest.raises(ConfigError, match="must be an integer >= 1"):
            EvalClips(EvalTransform(), **options)
    with pytest.raises(ConfigError, match="crops must be 1 or 10, got 5"):
        EvalClips(EvalTransform(), crops=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="two_clips must be"):
        ClipViews(EvalTransform(), EvalTransform(), two_clips=2.0)
