"""The SimCLR augmentation against torchvision's transforms and the published parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from PIL import Image
from torchvision.transforms.v2 import functional as tvf

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import (
    CIFAR_MEAN,
    CIFAR_STD,
    ImageTransform,
    MultiView,
    SimCLRTransform,
    simclr,
)
from mmcl_lightning.transforms.batched import ColourPlan
from mmcl_lightning.transforms.images import pixels_of


def photo(size: int = 32, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def only(**options: object) -> SimCLRTransform:
    """A transform that does nothing but the given options."""
    off = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0), "hflip_prob": 0.0, "cj_prob": 0.0}
    return SimCLRTransform(**{**off, "gray_prob": 0.0, "blur_prob": 0.0, **options})


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def test_everything_off_is_the_identity() -> None:
    assert torch.equal(only()(photo()), pixels(photo()))


def test_recipe_a2() -> None:
    recipe = SimCLRTransform.cifar()
    assert recipe.size == 32
    assert recipe.crop_scale == (0.08, 1.0)
    assert recipe.crop_ratio == (3 / 4, 4 / 3)
    assert recipe.interpolation == "bilinear"
    assert (recipe.hflip_prob, recipe.vflip_prob, recipe.cj_prob, recipe.gray_prob) == (0.5, 0.0, 0.8, 0.2)
    assert recipe.jitter == (0.4, 0.4, 0.4, 0.1)
    assert (recipe.blur_prob, recipe.blur_sigma, recipe._blur.radius) == (0.5, (0.1, 2.0), 1)
    assert CIFAR_MEAN == (0.4914, 0.4822, 0.4465)
    assert CIFAR_STD == (0.2023, 0.1994, 0.2010)
    assert recipe._statistics is not None


def test_recipe_a1() -> None:
    recipe = SimCLRTransform.imagenet()
    assert recipe.size == 224
    assert recipe.interpolation == "bicubic"
    assert recipe.jitter == (0.8, 0.8, 0.8, 0.2)
    assert (recipe.blur_prob, recipe.blur_sigma, recipe._blur.radius) == (0.5, (0.2, 2.0), 11)
    assert recipe._statistics is None
    view = recipe(photo(64))
    assert view.shape == (3, 224, 224)
    assert 0 <= view.min() < view.max() <= 1


def test_normalisation() -> None:
    view = only(mean=CIFAR_MEAN, std=CIFAR_STD)(photo())
    torch.testing.assert_close(view, tvf.normalize(pixels(photo()), list(CIFAR_MEAN), list(CIFAR_STD)))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"hflip_prob": 1.0}, lambda image: image.flip(2)),
        ({"vflip_prob": 1.0}, lambda image: image.flip(1)),
        ({"gray_prob": 1.0}, lambda image: pixels(tvf.to_grayscale(photo(), 3))),
    ],
)
def test_flips_and_grayscale(option: dict, expected: object) -> None:
    assert torch.equal(only(**option)(photo()), expected(pixels(photo())))


def test_probabilities() -> None:
    torch.manual_seed(0)
    image, original = photo(4), pixels(photo(4))
    for option, probability in (
        ("hflip_prob", 0.5),
        ("gray_prob", 0.2),
        ("cj_prob", 0.8),
        ("blur_prob", 0.5),
    ):
        transform = only(size=4, **{option: probability})
        changed = np.mean([not torch.equal(transform(image), original) for _ in range(1000)])
        assert abs(changed - probability) < 0.06, option


def test_crop_has_the_distribution_of_random_resized_crop() -> None:
    from torchvision.transforms.v2 import RandomResizedCrop

    torch.manual_seed(0)
    ours, reference = SimCLRTransform(), RandomResizedCrop(32, (0.08, 1.0))
    image = torch.zeros(3, 40, 60)
    a = np.array([ours.crop_box(60, 40) for _ in range(3000)])
    b = [reference.make_params([image]) for _ in range(3000)]
    b = np.array([(p["left"], p["top"], p["left"] + p["width"], p["top"] + p["height"]) for p in b])
    assert (a.min(axis=0) >= 0).all()
    assert (a.max(axis=0) <= [60, 40, 60, 40]).all()
    for q in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(a, q, axis=0), np.quantile(b, q, axis=0), atol=2.5)


def test_crop_of_a_very_long_image() -> None:
    left, top, right, bottom = SimCLRTransform(crop_scale=(1.0, 1.0)).crop_box(300, 10)
    assert (top, bottom) == (0, 10)
    assert right - left == 13
    assert abs((left + right) / 2 - 150) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_colour_functions_equal_those_of_torchvision(seed: int) -> None:
    factor = float(np.random.default_rng(seed).uniform(0, 2))
    image = photo(seed=seed)
    assert np.array_equal(simclr._contrast(image, factor), tvf.adjust_contrast(image, factor))
    assert np.array_equal(simclr._hue(image, factor / 2 - 0.5), tvf.adjust_hue(image, factor / 2 - 0.5))


def test_brightness_draws_the_published_range() -> None:
    torch.manual_seed(0)
    transform = only(cj_prob=1.0, jitter=(0.4, 0.0, 0.0, 0.0), size=4)
    image = Image.new("RGB", (4, 4), (100, 100, 100))
    factors = np.array([transform(image).mean().item() * 2.55 for _ in range(500)])
    assert 0.59 <= factors.min() < 0.62
    assert 1.38 < factors.max() <= 1.41


def test_strength_scales_the_jitter() -> None:
    assert SimCLRTransform(cj_strength=0.5)._strengths == pytest.approx((0.2, 0.2, 0.2, 0.05))


def test_views_are_reproducible_and_differ() -> None:
    transform = MultiView(SimCLRTransform.cifar(), views=3)
    torch.manual_seed(1)
    first = transform(photo())
    torch.manual_seed(1)
    second = transform(photo())
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    assert "views=3" in repr(transform)


def test_yaml_names_a_transform() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--transform", type=ImageTransform | None)
    # jsonargparse 4.49 renamed the method.
    instantiate = parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes
    config = {"class_path": "mmcl_lightning.transforms.SimCLRTransform"}
    config["init_args"] = {"size": 24, "crop_scale": [0.2, 1.0], "jitter": [0.8, 0.8, 0.8, 0.2], "mean": None}
    built = instantiate(parser.parse_object({"transform": config})).transform
    assert built(photo()).shape == (3, 24, 24)
    assert built.jitter == (0.8, 0.8, 0.8, 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be an integer >= 1"),
        ({"hflip_prob": 1.5}, "hflip_prob must be a finite number in .0, 1., got 1.5: it is a probability"),
        ({"crop_scale": (0.5, 0.1)}, "crop_scale must be two numbers"),
        ({"crop_scale": (0.5, 1.5)}, "crop_scale must be two numbers"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "hue jitter is at most 0.5"),
        ({"cj_strength": -1.0}, "cj_strength >= 0"),
        ({"blur_kernel": 4}, "blur_kernel must be odd"),
        ({"blur_kernel": 65}, "too wide to reflect"),
        ({"blur_padding": "same"}, "blur_padding must be"),
        ({"blur_sigma": (0.0, 1.0)}, "blur_sigma must be two numbers"),
        ({"interpolation": "nearest"}, "interpolation must be 'bicubic' or 'bilinear'"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean and std go together"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0, 1.0)}, "one number per channel each"),
        ({"mean": (0.5, 0.5, 0.5), "std": (1.0, 0.0, 1.0)}, "every std must be positive"),
    ],
)
def test_options_are_checked(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimCLRTransform(**options)


def test_views_are_checked() -> None:
    with pytest.raises(ConfigError, match="views must be an integer >= 1, got 0"):
        MultiView(SimCLRTransform(), views=0)


def test_log_ratio_is_symmetric() -> None:
    torch.manual_seed(0)
    transform = SimCLRTransform(crop_scale=(0.3, 0.5))
    boxes = np.array([transform.crop_box(500, 500) for _ in range(2000)])
    ratios = np.log((boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1]))
    assert abs(ratios.mean()) < 0.02
    assert abs(ratios).max() < math.log(4 / 3) + 0.02


def test_views_that_are_not_square() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
    for transform in (SimCLRTransform.cifar((12, 28)), SimCLRTransform.imagenet((48, 64))):
        torch.manual_seed(0)
        view = transform(image)
        assert view.shape == (3, *transform.pixels)
    torch.manual_seed(0)
    transform = SimCLRTransform((12, 28), blur_prob=1.0)
    parameters = transform.draw(50, 40)
    pixels = pixels_of(transform.cut(image, parameters))
    batched = transform.finish(pixels[None], ColourPlan.of([parameters]))[0]
    torch.testing.assert_close(batched, transform.apply(image, parameters), atol=8 / 255, rtol=0)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_numbers_of_channels(channels: int) -> None:
    """Brightness and contrast change all channels alike, gray is their mean, and the hue stays."""
    image = torch.randint(0, 256, (channels, 20, 24), dtype=torch.uint8)
    plain = {"size": 8, "hflip_prob": 0.0, "blur_prob": 0.0, "crop_scale": (1.0, 1.0)}
    torch.manual_seed(0)
    gray = SimCLRTransform(**plain, cj_prob=0.0, gray_prob=1.0)(image)
    torch.manual_seed(0)
    colour = SimCLRTransform(**plain, cj_prob=0.0, gray_prob=0.0)(image)
    torch.testing.assert_close(gray, colour.mean(0, keepdim=True).expand_as(colour))
    torch.manual_seed(0)
    hue = SimCLRTransform(**plain, cj_prob=1.0, gray_prob=0.0, jitter=(0.0, 0.0, 0.0, 0.5))(image)
    assert torch.equal(hue, colour)
    torch.manual_seed(0)
    bright = SimCLRTransform(**plain, cj_prob=1.0, gray_prob=0.0, jitter=(0.9, 0.0, 0.0, 0.0))(image)
    inside = (bright > 0) & (bright < 1)
    assert (bright / colour)[inside].std() < 1e-5
