"""The evaluation transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.transforms import (
    CIFAR_MEAN,
    CIFAR_STD,
    CentralCrop,
    EvalTransform,
    ImageTransform,
    SimCLRTransform,
    StretchedCrop,
)
from mmcl_lightning.transforms.base import described


def photo(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("preset", [EvalTransform.cifar(), EvalTransform.stl10()])
def test_small_presets_normalise_and_keep_the_size(preset: EvalTransform) -> None:
    view = preset(photo(96, 96))
    pixels = v2.functional.to_dtype(v2.functional.pil_to_tensor(photo(96, 96)), torch.float32, scale=True)
    expected = v2.functional.normalize(pixels, list(CIFAR_MEAN), list(CIFAR_STD))
    torch.testing.assert_close(view, expected)


def test_imagenet_preset_equals_torchvision() -> None:
    image = photo(90, 70)
    reference = v2.Compose(
        [
            v2.Resize(64, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(56),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    view = EvalTransform.imagenet(size=56, resize=64)(image)
    assert view.shape == (3, 56, 56)
    torch.testing.assert_close(view, reference(image))


def test_odd_sizes_equal_torchvision_bit_for_bit() -> None:
    reference = v2.Compose(
        [v2.Resize(224, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(224), v2.PILToTensor()]
    )
    ours = EvalTransform(resize=224, crop=224)
    sizes = np.random.default_rng(1).integers(61, 480, (40, 2)).tolist()
    differing = [
        size for size in [*sizes, (375, 500), (225, 224), (227, 224), (224, 229)]
        if not torch.equal(ours(photo(*size)), reference(photo(*size)).float().div(255))
    ]  # fmt: skip
    assert differing == []


def test_native_size_is_untouched() -> None:
    pixels = v2.functional.pil_to_tensor(photo(32, 32)).float() / 255
    assert torch.equal(EvalTransform.imagenet(size=32, resize=None)(photo(32, 32)), pixels)


@pytest.mark.parametrize("size", [(20, 20), (20, 200), (300, 10)])
def test_small_and_long_images_fill_the_crop(size: tuple[int, int]) -> None:
    assert EvalTransform(crop=48)(photo(*size)).shape == (3, 48, 48)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="crop must be an integer >= 1, got 0"):
        EvalTransform(crop=0)
    with pytest.raises(ConfigError, match=r"in \(0, 1\], got 1.5"):
        CentralCrop(fraction=1.5)
    with pytest.raises(ConfigError, match="size must be an integer >= 1, got 0"):
        CentralCrop(size=0)


@pytest.mark.parametrize(("width", "height"), [(100, 60), (60, 100), (3, 3)])
def test_central_crop_equals_torchvision(width: int, height: int) -> None:
    image = photo(width, height)
    reference = v2.Compose(
        [
            v2.CenterCrop((int(0.875 * height), int(0.875 * width))),
            v2.Resize((24, 24), interpolation=v2.InterpolationMode.BICUBIC),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(CIFAR_MEAN, CIFAR_STD),
        ]
    )
    view = CentralCrop(24, mean=CIFAR_MEAN, std=CIFAR_STD)(image)
    assert view.shape == (3, 24, 24)
    torch.testing.assert_close(view, reference(image))


@pytest.mark.parametrize("size", [224, 32, 37])
def test_stretched_crop_equals_torchvision_bit_for_bit(size: int) -> None:
    reference = v1.Compose(
        [
            v1.Resize((int(1.15 * size), int(1.15 * size))),
            v1.CenterCrop(size),
            v1.ToTensor(),
            v1.Normalize(CIFAR_MEAN, CIFAR_STD),
        ]
    )
    transform = StretchedCrop(size, mean=CIFAR_MEAN, std=CIFAR_STD)
    for width, height in np.random.default_rng(0).integers(1, 400, (14, 2)).tolist():  # with 3 sizes 42
        image = photo(width, height)
        assert torch.equal(transform(image), reference(image)), (width, height)


def test_the_published_sizes_of_the_stretched_crop() -> None:
    assert int(224 * StretchedCrop().enlarge) == 257
    assert StretchedCrop()(photo(31, 47)).shape == (3, 224, 224)
    with pytest.raises(ConfigError, match=r"enlarge must be a finite number >= 1, got 0\.9"):
        StretchedCrop(8, 0.9)


@pytest.mark.parametrize(
    "transform",
    [EvalTransform(20, (12, 28)), StretchedCrop((12, 28)), CentralCrop((12, 28)), EvalTransform((12, 28))],
)
def test_sizes_that_are_not_square(transform: ImageTransform) -> None:
    view = transform(photo(70, 30))
    assert view.shape == (3, 12, 28)
    assert (view.min() >= 0, view.max() <= 1) == (True, True)


@pytest.mark.parametrize(
    ("image", "covered"),
    [((70, 30), (12, 28)), ((30, 70), (65, 28)), ((28, 12), (12, 28)), ((7, 3), (12, 28))],
)
def test_a_height_and_a_width_are_just_covered(image: tuple[int, int], covered: tuple[int, int]) -> None:
    assert EvalTransform((12, 28))(photo(*image)).shape[1:] == covered


@pytest.mark.parametrize(
    "transform", [EvalTransform(20, 16), CentralCrop(16), StretchedCrop(16), EvalTransform(None, 96)]
)
def test_tensors_are_made_as_pictures(transform: ImageTransform) -> None:
    """Of three channels, to compare; the same up to the rounding of the two ways of resizing."""
    pixels = v2.functional.pil_to_tensor(photo(70, 30))
    torch.testing.assert_close(transform(pixels), transform(photo(70, 30)), atol=2 / 255, rtol=0)
    assert transform(pixels[:2].contiguous()).shape[0] == 2


def test_mean_and_std_are_of_the_channels() -> None:
    transform = EvalTransform(mean=(0.5,), std=(0.5,))
    assert transform(torch.full((1, 4, 4), 255, dtype=torch.uint8)).unique().tolist() == [1.0]
    with pytest.raises(ShapeError, match="mean and std have 1 numbers, and the images 3 channels"):
        transform(photo(4, 4))


def test_a_transform_says_how_it_was_built() -> None:
    for transform in (
        EvalTransform(20, (12, 28), CIFAR_MEAN, CIFAR_STD),
        CentralCrop(16, 0.5),
        StretchedCrop((16, 20), 1.5, CIFAR_MEAN, CIFAR_STD),
        SimCLRTransform(24),
    ):
        again = type(transform)(**transform.options())
        assert again.options() == transform.options()
    assert SimCLRTransform(24, cj_strength=0.5).replace(size=16)._strengths == pytest.approx(
        (0.2, 0.2, 0.2, 0.05)
    )


def test_a_transform_in_words_has_mean_and_std_and_is_the_same_in_every_run() -> None:
    crop = CentralCrop(32, mean=(0.5, 0.25, 0.4), std=(0.2, 0.2, 0.3))
    assert described(crop) == "CentralCrop(size=32, fraction=0.875), mean 0.5, 0.25, 0.4, std 0.2, 0.2, 0.3"
    assert described(CentralCrop(32)) == "CentralCrop(size=32, fraction=0.875), in [0, 1]"
    assert described(v2.Compose([v2.CenterCrop(8)])) == "Compose( CenterCrop(size=(8, 8)))"
    assert described(lambda image: image).endswith("<lambda>>"), "and not where it lies in memory"
