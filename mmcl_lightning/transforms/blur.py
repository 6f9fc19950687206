"""A Gaussian blur of images of one size as products with two banded matrices."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_choice
from mmcl_lightning.errors import ConfigError

__all__ = ["BlurPadding", "GaussianBlur", "gaussian_taps"]

BlurPadding = Literal["reflect", "zeros"]


def gaussian_taps(sigma: float, radius: int) -> list[float]:
    """Weights of a normalised Gaussian at the distances 0 to ``radius``.

    Args:
        sigma: Standard deviation in pixels, > 0.
        radius: Largest distance in pixels that has a weight, >= 0.

    Returns:
        ``radius + 1`` weights w with w[0] + 2 (w[1] + ... + w[radius]) = 1.
    """
    weights = [math.exp(-0.5 * (distance / sigma) ** 2) for distance in range(radius + 1)]
    total = weights[0] + 2.0 * sum(weights[1:])
    return [weight / total for weight in weights]


class GaussianBlur:
    r"""Blur images of one fixed size with a Gaussian whose width changes from call to call.

    A blur along one axis is a banded n x n matrix :math:`T = \sum_d w_d S_d`, where :math:`S_d` sums
    the pixels at distance d and already holds the treatment of the border. The :math:`S_d` are built
    once, so that a call is one small product for each T and two for the image, :math:`T X T'^\top`. At
    32 x 32 pixels and three taps this is several times cheaper than padding and convolving.

    Args:
        size: Height and width of the images in pixels, one number for a square.
        kernel_size: Number of taps, odd; 1 leaves images as they are.
        padding: ``"reflect"`` mirrors at the border pixel, which is not repeated (OpenCV's default and
            torchvision's choice); ``"zeros"`` lets the border darken.
        device: Where the images lie.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        kernel_size: int,
        padding: BlurPadding = "reflect",
        device: torch.device | None = None,
    ) -> None:
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ConfigError(f"blur_kernel must be odd and positive, got {kernel_size}")
        radius = kernel_size // 2
        check_choice("blur_padding", padding, ("reflect", "zeros"))
        self.size = size if isinstance(size, tuple | list) else (size, size)
        if padding == "reflect" and radius >= min(self.size):
            raise ConfigError(
                f"blur_kernel {kernel_size} is too wide to reflect within {min(self.size)} pixels"
            )
        self.radius = radius
        self._basis = {
            side: _neighbour_sums(side, radius, padding).view(radius + 1, side * side).to(device)
            for side in self.size
        }

    def __call__(self, images: Tensor, sigma: float) -> Tensor:
        """Blur along both axes.

        Args:
            images: Float tensor of shape ``(..., H, W)``, of the size of the blur.
            sigma: Standard deviation in pixels, > 0.

        Returns:
            A new tensor of the same shape.
        """
        taps = torch.tensor(gaussian_taps(sigma, self.radius))
        rows, columns = (self._matrices(taps, side) for side in self.size)
        return rows @ images @ columns.T

    def each(self, images: Tensor, sigmas: Tensor) -> Tensor:
        """Blur every image by a width of its own.

        Args:
            images: Shape ``(n, C, H, W)``, float32.
            sigmas: Standard deviations in pixels, > 0, shape ``(n,)``.

        Returns:
            A new tensor of the same shape.
        """
        distances = torch.arange(self.radius + 1, device=images.device)
        taps = (-0.5 * (distances / sigmas[:, None]).square()).exp()
        taps = taps / (2 * taps.sum(1, keepdim=True) - 1)  # the middle one is 1, and counts once
        rows, columns = (self._matrices(taps, side).unsqueeze(1) for side in self.size)
        return rows @ images @ columns.transpose(2, 3)

    def _matrices(self, taps: Tensor, side: int) -> Tensor:
        """Return T along a side of some pixels for taps ``(..., radius + 1)``: ``(..., side, side)``."""
        return (taps @ self._basis[side]).view(*taps.shape[:-1], side, side)


def _neighbour_sums(size: int, radius: int, padding: BlurPadding) -> Tensor:
    """Matrices S_0 ... S_radius, shape ``(radius + 1, size, size)``; see SquareGaussianBlur."""
    basis = torch.zeros(radius + 1, size, size)
    rows = torch.arange(size)
    for offset in range(-radius, radius + 1):
        columns = rows + offset
        if padding == "reflect":
            columns = size - 1 - (size - 1 - columns.abs()).abs()
        inside = (columns >= 0) & (columns < size)
        basis[abs(offset), rows[inside], columns[inside]] += 1.0
    return basis
