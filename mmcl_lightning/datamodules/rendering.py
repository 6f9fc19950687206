"""Render silhouettes from signed distances, in NumPy.

All images are synthetic. A shape is a function of points: negative inside, positive outside, in units of
the shape's radius and close to the distance near the edge, which is all that antialiasing needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHAPES", "render_shapes"]

Array = NDArray[np.float32]


def _f32(values: object) -> Array:
    return np.asarray(values, dtype=np.float32)


def _polygon(x: Array, y: Array, corners: list[tuple[float, float]]) -> Array:
    """Signed distance to a polygon: the nearest edge, with the sign from the crossing number."""
    distance = np.full_like(x, np.inf)
    inside = np.zeros(x.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0.0, 1.0)
        distance = np.minimum(distance, (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2)
        if dy != 0:
            inside ^= ((y >= y0) != (y >= y1)) & (x < x0 + (y - y0) * (dx / dy))
    root = np.sqrt(distance)
    return _f32(np.where(inside, -root, root))


def _regular(corners: int, radii: tuple[float, ...] = (1.0,)) -> list[tuple[float, float]]:
    """Corners around the origin, the first on top, with radii in turn; y points down."""
    angles = [2 * np.pi * index / corners - np.pi / 2 for index in range(corners)]
    return [
        (float(radii[index % len(radii)] * np.cos(angle)), float(radii[index % len(radii)] * np.sin(angle)))
        for index, angle in enumerate(angles)
    ]


def _disc(x: Array, y: Array, radius: float, cx: float = 0.0) -> Array:
    return _f32(np.hypot(x - cx, y) - radius)


def _circle(x: Array, y: Array) -> Array:
    return _disc(x, y, 0.85)


def _square(x: Array, y: Array) -> Array:
    return _f32(np.maximum(np.abs(x), np.abs(y)) - 0.75)


def _triangle(x: Array, y: Array) -> Array:
    return _polygon(x, y, [(0.0, -0.95), (0.95, 0.75), (-0.95, 0.75)])


def _star(x: Array, y: Array) -> Array:
    return _polygon(x, y, _regular(10, (1.05, 0.42)))


def _cross(x: Array, y: Array) -> Array:
    bar = np.maximum(np.abs(x) - 0.92, np.abs(y) - 0.3)
    return np.minimum(bar, np.maximum(np.abs(y) - 0.92, np.abs(x) - 0.3))


def _ring(x: Array, y: Array) -> Array:
    return _f32(np.abs(np.hypot(x, y) - 0.7) - 0.22)


def _crescent(x: Array, y: Array) -> Array:
    return _f32(np.maximum(_disc(x, y, 0.95, 0.1), -_disc(x, y, 0.8, 0.55)))


def _heart(x: Array, y: Array) -> Array:
    # Two discs on a kite.
    lobe = 0.48
    left = np.hypot(x + lobe * 0.85, y + 0.35) - lobe * 1.1
    right = np.hypot(x - lobe * 0.85, y + 0.35) - lobe * 1.1
    tip = _polygon(x, y, [(-0.86, -0.08), (0.0, -0.6), (0.86, -0.08), (0.0, 0.95)])
    return _f32(np.minimum(np.minimum(left, right), tip))


def _arrow(x: Array, y: Array) -> Array:
    corners = [(0.0, -1.0), (0.8, -0.1), (0.3, -0.1), (0.3, 0.95), (-0.3, 0.95), (-0.3, -0.1), (-0.8, -0.1)]
    return _polygon(x, y, corners)


def _bolt(x: Array, y: Array) -> Array:
    corners = [(0.35, -1.0), (-0.65, 0.2), (-0.08, 0.2), (-0.4, 1.0), (0.65, -0.25), (0.1, -0.25)]
    return _polygon(x, y, corners)


SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "arrow": _arrow,
    "bolt": _bolt,
    "circle": _circle,
    "crescent": _crescent,
    "cross": _cross,
    "heart": _heart,
    "ring": _ring,
    "square": _square,
    "star": _star,
    "triangle": _triangle,
}
"""The silhouettes by name, in the order of their class indices."""

_CHUNK = 500  # images per pass, to bound the memory


def render_shapes(count: int, size: int = 32, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Render synthetic images, equally many of each silhouette, in random order.

    Each shows one silhouette with random colours, position, size and a rotation of up to 30 degrees,
    on a colour gradient with a few soft blobs, under pixel noise.

    Args:
        count: Number of images.
        size: Height and width in pixels.
        seed: The images are a function of count, size and seed.

    Returns:
        Images, uint8 ``(count, size, size, 3)``, and class indices, int64 ``(count,)``.
    """
    generator = np.random.default_rng([seed, count, size])
    targets = generator.permutation(np.arange(count, dtype=np.int64) % len(SHAPES))
    images = np.empty((count, size, size, 3), dtype=np.uint8)
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        images[chunk] = _render(targets[chunk], size, generator)
    return images, targets


def _render(targets: NDArray[np.int64], size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    n = len(targets)
    axis = _f32((np.arange(size) + 0.5) / size * 2 - 1)
    x, y = np.meshgrid(axis, axis)  # [-1, 1] across the image
    background = _background(n, x, y, generator)
    coverage = _coverage(targets, x, y, generator)[..., None]
    color = _foreground(background, generator)
    image = background * (1 - coverage) + color * coverage
    noise = generator.standard_normal(image.shape, dtype=np.float32)
    image = image + noise * _uniform(generator, 0.01, 0.05, (n, 1, 1, 1))
    return np.asarray(np.clip(image, 0.0, 1.0) * 255 + 0.5, dtype=np.uint8)


def _coverage(targets: NDArray[np.int64], x: Array, y: Array, generator: np.random.Generator) -> Array:
    """Share of each pixel that the silhouette covers, shape ``(n, size, size)``."""
    n, pixel = len(targets), 2.0 / len(x)
    radius = _uniform(generator, 0.48, 0.75, (n, 1, 1))
    center = _uniform(generator, -1, 1, (2, n, 1, 1)) * (0.92 - radius)
    angle = np.radians(_uniform(generator, -30, 30, (n, 1, 1)))
    dx, dy = x - center[0], y - center[1]
    u = (np.cos(angle) * dx + np.sin(angle) * dy) / radius
    v = (np.cos(angle) * dy - np.sin(angle) * dx) / radius
    distance = np.empty((n, *x.shape), dtype=np.float32)
    for index, shape in enumerate(SHAPES.values()):
        chosen = targets == index
        distance[chosen] = shape(u[chosen], v[chosen])
    return _f32(np.clip(0.5 - distance * radius / pixel, 0.0, 1.0))


def _background(n: int, x: Array, y: Array, generator: np.random.Generator) -> Array:
    """A gradient between two colours with soft blobs, shape ``(n, size, size, 3)``, in [0, 1]."""
    first = _uniform(generator, 0, 1, (n, 1, 1, 3))
    second = _f32(np.clip(first + _uniform(generator, -0.25, 0.25, (n, 1, 1, 3)), 0, 1))
    angle = _uniform(generator, 0, 2 * np.pi, (n, 1, 1))
    ramp = ((np.cos(angle) * x + np.sin(angle) * y) / np.sqrt(2) * 0.5 + 0.5)[..., None]
    image = first + (second - first) * ramp
    for _ in range(3):
        cx, cy = _uniform(generator, -1, 1, (2, n, 1, 1))
        width = _uniform(generator, 0.1, 0.35, (n, 1, 1))
        blob = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * width**2))[..., None]
        image = image + blob * _uniform(generator, -0.2, 0.2, (n, 1, 1, 3))
    return _f32(np.clip(image, 0.0, 1.0))


def _foreground(background: Array, generator: np.random.Generator) -> Array:
    """One colour per image that stands out from its background, shape ``(n, 1, 1, 3)``."""
    mean = _f32(background.mean(axis=(1, 2), keepdims=True))
    best = _uniform(generator, 0, 1, mean.shape)
    for _ in range(5):  # of six colours the one that differs most in lightness
        other = _uniform(generator, 0, 1, mean.shape)
        better = np.abs((other - mean).mean(-1, keepdims=True)) > np.abs(
            (best - mean).mean(-1, keepdims=True)
        )
        best = _f32(np.where(better, other, best))
    return best


def _uniform(generator: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> Array:
    return _f32(generator.uniform(low, high, shape))
