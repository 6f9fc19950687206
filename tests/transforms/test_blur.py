"""The banded-matrix blur against reference Gaussians."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as tvf

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms.blur import GaussianBlur, gaussian_taps


def image(size: int) -> torch.Tensor:
    return torch.rand(3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("size", "kernel"), [(32, 3), (33, 5), (48, 23), (8, 15)])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_reflecting_blur_equals_torchvision(size: int, kernel: int, sigma: float) -> None:
    expected = tvf.gaussian_blur(image(size), [kernel, kernel], [sigma, sigma])
    torch.testing.assert_close(GaussianBlur(size, kernel)(image(size), sigma), expected)


@pytest.mark.parametrize("sigma", [0.2, 2.0])
def test_zero_padded_blur_equals_a_convolution(sigma: float) -> None:
    taps = torch.tensor(gaussian_taps(sigma, 11))
    line = torch.cat([taps.flip(0), taps[1:]])
    weight = (line[:, None] * line[None]).expand(3, 1, 23, 23)
    expected = torch.nn.functional.conv2d(image(40)[None], weight, padding=11, groups=3)[0]
    torch.testing.assert_close(GaussianBlur(40, 23, "zeros")(image(40), sigma), expected)


def test_taps_sum_to_one() -> None:
    taps = gaussian_taps(1.3, 4)
    assert taps[0] + 2 * sum(taps[1:]) == pytest.approx(1.0)
    assert gaussian_taps(1.0, 0) == [1.0]


def test_a_constant_image_stays_constant_when_reflected() -> None:
    constant = torch.full((3, 16, 16), 0.25)
    torch.testing.assert_close(GaussianBlur(16, 7)(constant, 1.5), constant)
    assert GaussianBlur(16, 7, "zeros")(constant, 1.5)[0, 0, 0] < 0.2


def test_kernel_is_checked() -> None:
    with pytest.raises(ConfigError, match="odd and positive, got 2"):
        GaussianBlur(8, 2)


@pytest.mark.parametrize("padding", ["reflect", "zeros"])
def test_each_image_is_blurred_by_its_own_width(padding: str) -> None:
    blur, sigmas = GaussianBlur((12, 20), 5, padding), torch.tensor([0.1, 0.7, 2.0])
    images = torch.rand(3, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    expected = [blur(image, float(sigma)) for image, sigma in zip(images, sigmas, strict=True)]
    torch.testing.assert_close(blur.each(images, sigmas), torch.stack(expected))
