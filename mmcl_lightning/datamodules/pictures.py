"""Read picture files of every bit depth, orientation and transparency as 8-bit RGB, or say why not."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mmcl_lightning._options import is_number
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["PictureReader", "extensions", "is_picture"]

#: Formats that Pillow recognises and cannot read by itself.
_NO_PICTURES = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
_MAX_PIXELS = 250_000_000
_DEEP = ("I", "F")  # modes of one band with more than 8 bits, 32-bit integers and floats; I;16 besides


@functools.cache
def extensions() -> frozenset[str]:
    """Return the endings of file names, in lower case, that Pillow has a reader for."""
    Image.init()
    found = Image.registered_extensions().items()
    return frozenset(end for end, kind in found if kind in Image.OPEN and kind not in _NO_PICTURES)


def is_picture(path: str) -> bool:
    """Whether a file is a picture, by its ending, or by its first bytes where it has none.

    Args:
        path: The file.
    """
    name = os.path.basename(path)
    if name.startswith("."):
        return False
    end = os.path.splitext(name)[1].lower()
    return end in extensions() if end else _looks_like_a_picture(path)


@dataclass(frozen=True)
class PictureReader:
    """Reads a picture file as an image in mode RGB, upright and without transparency.

    Pictures of 8 bits are taken as they are. Of deeper ones, which have one band, ``value_range`` goes from
    black to white; without it that is the range of the type: 0 to 65535 for 16 bits, 0 to 1 for floats.
    Values outside of these have no range that is known, and are refused; outside of a given ``value_range``
    they are black or white. Transparent pixels show ``background``. Of an animation the first frame is read.

    Args:
        value_range: Values of such deep pictures that become black and white, the first smaller; or None.
        background: Grey level, or red, green and blue, behind transparent pixels, each 0 to 255.
        max_pixels: Most pixels of a picture; a small file can hold a picture that fills the memory.

    Raises:
        ConfigError: If an option is out of range.
    """

    value_range: tuple[float, float] | None = None
    background: int | tuple[int, int, int] = 255
    max_pixels: int = _MAX_PIXELS

    def __post_init__(self) -> None:
        limits = self.value_range
        if limits is not None:
            numbers = len(limits) == 2 and all(is_number(v) and np.isfinite(v) for v in limits)
            if not (numbers and limits[0] < limits[1]):
                raise ConfigError(f"value_range must be two numbers, the first smaller, got {limits!r}")
        levels = self.background if isinstance(self.background, tuple | list) else (self.background,) * 3
        if len(levels) != 3 or not all(isinstance(v, int) and 0 <= v <= 255 for v in levels):
            raise ConfigError(f"background must be a grey level or three, 0 to 255, got {self.background!r}")

    def __call__(self, path: str | Path) -> Image.Image:
        """Read a file.

        Args:
            path: The file.

        Raises:
            DataError: If it is missing, damaged, too large, or of a kind whose values have no known range.
        """
        try:
            with _any_size(), Image.open(path) as image:
                if image.width * image.height > self.max_pixels:
                    raise DataError(
                        f"the image {path} has {image.width} x {image.height} pixels, more than max_pixels, "
                        f"{self.max_pixels}: set data.max_pixels if that is right, or make it smaller"
                    )
                return self._to_rgb(_upright(image), path)
        except (OSError, SyntaxError, ValueError, MemoryError) as error:
            hint = "convert it to 8-bit RGB" if _is_tiff(path) else "repair or remove it"
            raise DataError(f"the image {path} cannot be read ({error}); {hint}") from error

    def is_dark_by_depth(self, path: str | Path) -> bool:
        """Whether a picture of 16 bits has values below 4096 alone: 12 bits perhaps, and nearly black here.

        Args:
            path: The file; of one that cannot be read, reading says why.
        """
        with contextlib.suppress(OSError, SyntaxError, ValueError), _any_size(), Image.open(path) as image:
            deep = image.mode == "I" or image.mode.startswith("I;")
            return self.value_range is None and deep and 0 < int(np.asarray(image).max()) < 4096
        return False

    def _to_rgb(self, image: Image.Image, path: str | Path) -> Image.Image:
        if image.mode in _DEEP or image.mode.startswith("I;"):
            return Image.fromarray(self._to_bytes(image, path)).convert("RGB")
        if image.has_transparency_data:
            above = image.convert("RGBA")
            behind = self.background if isinstance(self.background, tuple | list) else (self.background,) * 3
            page = Image.new("RGBA", above.size, (*behind, 255))
            return Image.alpha_composite(page, above).convert("RGB")
        return image.convert("RGB")

    def _to_bytes(self, image: Image.Image, path: str | Path) -> NDArray[np.uint8]:
        """Return the values of a picture of one deep band as grey levels."""
        values = np.asarray(image)
        low, high = float(values.min()), float(values.max())
        limits = self.value_range
        if limits is None:
            limits = (0.0, 1.0) if image.mode == "F" else (0.0, 65535.0)
            if not (limits[0] <= low and high <= limits[1]):  # NaN too
                kind = "floats" if image.mode == "F" else "integers of more than 16 bits"
                raise DataError(
                    f"the image {path} has {kind} from {low:g} to {high:g}, whose black and white are not "
                    f"known: set data.value_range, as in --data.value_range '[{low:g}, {high:g}]'"
                )
        scaled = (values.astype(np.float64) - limits[0]) * (255.0 / (limits[1] - limits[0]))
        levels: NDArray[np.uint8] = np.rint(np.nan_to_num(scaled).clip(0.0, 255.0)).astype(np.uint8)
        return levels


@contextlib.contextmanager
def _any_size() -> Iterator[None]:
    """Let Pillow open pictures of any size: the reader has a limit of its own."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _upright(image: Image.Image) -> Image.Image:
    """Return a picture as its EXIF orientation says that it is to be seen."""
    return ImageOps.exif_transpose(image)


def _is_tiff(path: str | Path) -> bool:
    return str(path).lower().endswith((".tif", ".tiff"))


def _looks_like_a_picture(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    Image.init()
    found = ((name, accept) for name, (_, accept) in Image.OPEN.items() if name not in _NO_PICTURES)
    return any(accept is not None and accept(start) is True for _, accept in found)
