"""Colours and blur of a batch at once against those of one image at a time, from the same parameters."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmcl_lightning.transforms import SimCLRTransform
from mmcl_lightning.transforms.batched import ColourPlan, DrawnViews
from mmcl_lightning.transforms.images import pixels_of
from mmcl_lightning.transforms.simclr import _ADJUST, SimCLRParameters


def photos(count: int, width: int = 40, height: int = 32) -> list[Image.Image]:
    """Smooth colourful pictures: noise would be all rounding."""
    draws = np.random.default_rng(0).integers(0, 256, (count, 6, 7, 3), dtype=np.uint8)
    return [Image.fromarray(draw).resize((width, height), Image.Resampling.BICUBIC) for draw in draws]


def stacked(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.array(image) for image in images])).permute(0, 3, 1, 2)


def at_once(transform: SimCLRTransform, images: list[Image.Image], drawn: list[Any]) -> torch.Tensor:
    """The views of images, cut one by one and finished together."""
    pixels = torch.stack([pixels_of(transform.cut(*pair)) for pair in zip(images, drawn, strict=True)])
    return transform.finish(pixels, ColourPlan.of(drawn))


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
    together = at_once(transform, images, drawn)
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


def test_images_of_any_size_are_finished_together() -> None:
    transform = SimCLRTransform.cifar(24)
    images = [*photos(2, 40, 32), *photos(2, 99, 60)]
    torch.manual_seed(0)
    drawn = [transform.draw(*image.size) for image in images]
    together = at_once(transform, images, drawn)
    for image, parameters, view in zip(images, drawn, together, strict=True):
        torch.testing.assert_close(at_once(transform, [image], [parameters])[0], view)


def changed(images: torch.Tensor, *changes: tuple[int, float], gray: bool = False, sigma: float = 0.0) -> Any:
    """Images ``(B, C, H, W)`` in [0, 1], changed alike."""
    transform = SimCLRTransform(tuple(images.shape[2:]), blur_kernel=3)
    drawn = SimCLRParameters((0, 0, 1, 1), False, False, changes, gray, sigma)
    return transform.finish((images * 255).round().byte(), ColourPlan.of([drawn] * len(images)))


@pytest.mark.parametrize("which", range(4))
def test_one_adjustment_is_that_of_one_image(which: int) -> None:
    images = photos(6, 16, 16)
    values = [-0.3, -0.1, 0.0, 0.1, 0.2, 0.4] if which == 3 else [0.2, 0.6, 1.0, 1.2, 1.5, 1.8]
    expected = stacked([_ADJUST[which](i, v) for i, v in zip(images, values, strict=True)]).float()
    pixels = stacked(images).float() / 255
    found = torch.cat([changed(pixels[i : i + 1], (which, value)) for i, value in enumerate(values)]) * 255
    difference = (found - expected).abs()
    assert difference.mean() < 1.5
    assert difference.amax((1, 2, 3)).median() < 9


def test_each_image_has_an_order_of_its_own() -> None:
    image = photos(1, 16, 16)[0]
    steps = ((0, 1.8), (1, 0.3), (3, 0.2))
    orders = [steps, steps[::-1], steps[1:], ()]
    drawn = [SimCLRParameters((0, 0, 16, 16), False, False, order, False, 0.0) for order in orders]
    transform = SimCLRTransform(16)
    together = at_once(transform, [image] * 4, drawn)
    for order, view in zip(orders, together, strict=True):
        alone = stacked([image]).float() / 255
        for step in order:
            alone = _unrounded(alone, step)
        torch.testing.assert_close(view, alone[0], atol=2e-4, rtol=0)  # its weights of R, G, B are rounded


def _unrounded(pixels: torch.Tensor, step: tuple[int, float]) -> torch.Tensor:
    """One change by torchvision, in floating point."""
    from torchvision.transforms.v2 import functional as tvf

    which, value = step
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    return getattr(tvf, names[which])(pixels, value)


def test_gray_has_equal_channels() -> None:
    gray = changed(stacked(photos(3)).float() / 255, gray=True)
    expected = torch.stack([torch.from_numpy(np.array(image.convert("L"))) for image in photos(3)])
    assert torch.equal(gray[:, 0], gray[:, 2])
    assert (255 * gray[:, 1] - expected).abs().max() < 1


def test_black_white_and_gray_keep_their_hue() -> None:
    images = torch.tensor([0.0, 0.4, 1.0]).view(3, 1, 1, 1).expand(3, 3, 4, 4)
    torch.testing.assert_close(changed(images, (3, 0.3)), images)


def drawn_views() -> DrawnViews:
    transform, images = SimCLRTransform.cifar(16), photos(4)
    torch.manual_seed(0)
    drawn = [transform.draw(*image.size) for image in images for _ in range(2)]
    pixels = [pixels_of(transform.cut(images[i // 2], p)) for i, p in enumerate(drawn)]
    return DrawnViews(torch.stack(pixels).view(2, 4, 3, 16, 16), ColourPlan.of(drawn), transform.finish)


def test_drawn_views_are_made_where_they_are_moved_to() -> None:
    drawn = drawn_views()
    views = drawn.to(torch.device("cpu"), non_blocking=True)
    assert [(view.shape, view.dtype) for view in views] == [((4, 3, 16, 16), torch.float32)] * 2
    assert torch.equal(torch.cat(views), drawn.finish(drawn.pixels.flatten(0, 1), drawn.plan))
    assert all(map(torch.equal, pickle.loads(pickle.dumps(drawn)).make(), views))
    first, second = drawn
    assert len(drawn) == 2
    assert torch.equal(first, views[0])
    assert torch.equal(drawn[1], second)
    meta = drawn.to("meta")
    assert [view.device.type for view in meta] == ["meta"] * 2


def test_a_finish_waits_for_nothing() -> None:
    """No number leaves the device: on the meta device there are none."""
    for transform in (SimCLRTransform.cifar(16), SimCLRTransform.imagenet(16)):
        torch.manual_seed(0)
        drawn = [transform.draw(40, 32) for _ in range(32)]
        assert {which for which, _ in ColourPlan.of(drawn).steps} == set(range(6))
        pixels = torch.zeros(32, 3, 16, 16, dtype=torch.uint8, device="meta")
        plan = ColourPlan.of(drawn).map(lambda tensor: tensor.to("meta"))
        assert transform.finish(pixels, plan).shape == pixels.shape
