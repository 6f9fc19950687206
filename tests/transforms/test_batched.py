"""Views of a batch at once against those of one image at a time, from the same parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from mmcl_lightning.transforms import SimCLRTransform
from mmcl_lightning.transforms.batched import adjust_colors, blend_with_gray, resample, resampling_weights
from mmcl_lightning.transforms.simclr import _ADJUST, SimCLRParameters


def photos(count: int, width: int = 40, height: int = 32) -> list[Image.Image]:
    """Smooth colourful pictures: noise would be all rounding."""
    draws = np.random.default_rng(0).integers(0, 256, (count, 6, 7, 3), dtype=np.uint8)
    return [Image.fromarray(draw).resize((width, height), Image.Resampling.BICUBIC) for draw in draws]


def stacked(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.array(image) for image in images])).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "transform",
    [
        SimCLRTransform.cifar(),
        SimCLRTransform.cifar(48, mean=None, std=None),
        SimCLRTransform.imagenet(24),
        SimCLRTransform(16, vflip_prob=0.5, jitter=(0.8, 0.0, 0.8, 0.2), crop_scale=(0.5, 1.0)),
    ],
    ids=["A2", "A2 larger", "A1 smaller", "own"],
)
def test_a_batch_shows_the_same_pictures(transform: SimCLRTransform) -> None:
    images = photos(64)
    torch.manual_seed(1)
    drawn = [transform.draw(*image.size) for image in images]
    one_by_one = torch.stack([transform.apply(*pair) for pair in zip(images, drawn, strict=True)])
    together = transform.apply_batch(stacked(images), drawn)
    assert together.dtype == torch.float32
    assert together.shape == one_by_one.shape
    scale = 255 if transform.statistics is None else 255 * transform.statistics[1].mean().item()
    difference = (together - one_by_one).abs().mean((1, 2, 3)) * scale
    assert difference.mean() < 1.5  # of 255; Pillow rounds to 8 bits after every step
    assert difference.max() < 4


def test_the_draws_are_those_of_a_call() -> None:
    transform, image = SimCLRTransform.cifar(), photos(1)[0]
    for seed in range(20):
        torch.manual_seed(seed)
        called = transform(image)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        drawn = transform.draw(*image.size)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(transform.apply(image, drawn), called)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [5, 20, 64])
def test_resampling_is_pillows(interpolation: str, size: int) -> None:
    image = photos(1)[0]
    box = (3, 5, 31, 30)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    expected = stacked([image.crop(box).resize((size, size), filters[interpolation])])
    no = torch.tensor([False])
    rows = resampling_weights(torch.tensor([5]), torch.tensor([30]), no, 32, size, interpolation)
    columns = resampling_weights(torch.tensor([3]), torch.tensor([31]), no, 40, size, interpolation)
    torch.testing.assert_close(rows.sum(2), torch.ones(1, size))
    found = 255 * resample(stacked([image]).float() / 255, rows, columns)
    assert (found - expected.float()).abs().max() < 1.5  # two passes, each rounded


def test_flips_mirror_the_crop() -> None:
    transform, image = SimCLRTransform(8, jitter=(0, 0, 0, 0), blur_prob=0), photos(1)[0]
    plain = SimCLRParameters((2, 3, 20, 21), False, False, (), False, 0.0)
    for flips, axes in (((True, False), [3]), ((False, True), [2]), ((True, True), [2, 3])):
        flipped = SimCLRParameters(plain.box, *flips, (), False, 0.0)
        pair = transform.apply_batch(stacked([image, image]), [plain, flipped])
        torch.testing.assert_close(pair[1:], pair[:1].flip(axes))


@pytest.mark.parametrize("which", range(4))
def test_one_adjustment_is_that_of_one_image(which: int) -> None:
    images = photos(6, 16, 16)
    values = [-0.3, -0.1, 0.0, 0.1, 0.2, 0.4] if which == 3 else [0.2, 0.6, 1.0, 1.2, 1.5, 1.8]
    expected = stacked([_ADJUST[which](i, v) for i, v in zip(images, values, strict=True)]).float()
    found = adjust_colors(stacked(images).float() / 255, [[(which, value)] for value in values]) * 255
    difference = (found - expected).abs()
    assert difference.mean() < 1.5
    assert difference.amax((1, 2, 3)).median() < 9


def test_gray_has_equal_channels() -> None:
    images = stacked(photos(3)).float() / 255
    gray = blend_with_gray(images, 0.0)
    expected = torch.stack([torch.from_numpy(np.array(image.convert("L"))) for image in photos(3)])
    assert torch.equal(gray[:, 0], gray[:, 2])
    assert (255 * gray[:, 1] - expected).abs().max() < 1


def test_black_white_and_gray_keep_their_hue() -> None:
    images = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1).expand(3, 3, 4, 4).clone()
    turned = adjust_colors(images.clone(), [[(3, 0.3)]] * 3)
    torch.testing.assert_close(turned, images)
