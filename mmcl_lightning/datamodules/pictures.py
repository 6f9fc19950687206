"""Read picture files of every bit depth, orientation and number of bands as 8 bits, or say why not."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mmcl_lightning._options import check_whole, is_number, is_whole
from mmcl_lightning.datamodules.bands import PictureBytes, is_tiff, read_bands
from mmcl_lightning.errors import ConfigError, DataError, MMCLError
from mmcl_lightning.transforms.images import PixelImage, any_size

__all__ = ["PictureReader", "extensions", "is_picture"]

#: Formats that Pillow recognises and cannot read by itself.
_NO_PICTURES = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
_MAX_PIXELS = 250_000_000
_BITS, _SAMPLES_PER_PIXEL, _SAMPLE_FORMAT = 258, 277, 339  # tags of a TIFF
#: A file, or the content of one.
PictureFile = str | Path | PictureBytes
_DEEP = ("I", "F")  # modes of one band with more than 8 bits, 32-bit integers and floats; I;16 besides


@functools.cache
def extensions() -> frozenset[str]:
    """Return the endings of file names, in lower case, that Pillow has a reader for."""
    Image.init()
    found = Image.registered_extensions().items()
    # Two JPEGs in one, of kind MPO, are opened as a JPEG.
    return frozenset(end for end, kind in found if kind in {*Image.OPEN, "MPO"} and kind not in _NO_PICTURES)


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
    """Reads a picture file as an image of 8 bits, upright and without transparency.

    Pictures of 8 bits are taken as they are. Of deeper ones ``value_range`` goes from black to white, in 256
    levels; without it that is the range of the type: 0 to 65535 for 16 bits, 0 to 1 for floats. Values
    outside of these have no range that is known, and are refused; outside of a given ``value_range`` they are
    black or white. Transparent pixels show ``background``. Of an animation the first frame is read.

    With three channels, the default, or one, colour becomes grey and grey colour, and a file of another
    number of bands is refused. With ``bands``, or another number of ``channels``, the bands of a file are
    taken as they are; those of a TIFF, also where they are its pages, by tifffile, without its orientation.

    Args:
        channels: Channels of an image; None for the number of ``bands``, or 3.
        bands: Which bands of a file become the channels, counted from 0; None for all of them.
        value_range: Values of such deep pictures that become black and white, the first smaller; or None.
        background: Grey level, or red, green and blue, behind transparent pixels, each 0 to 255; None for
            white.
        max_pixels: Most pixels of a picture; a small file can hold a picture that fills the memory.

    Raises:
        ConfigError: If an option is out of range.
    """

    channels: int | None = None
    bands: tuple[int, ...] | None = None
    value_range: tuple[float, float] | None = None
    background: int | tuple[int, int, int] | None = None
    max_pixels: int = _MAX_PIXELS

    def __post_init__(self) -> None:
        check_whole(1, max_pixels=self.max_pixels)
        if self.channels is not None:
            check_whole(1, channels=self.channels)
        bands = self.bands
        if bands is not None and not (len(bands) and all(is_whole(band) and band >= 0 for band in bands)):
            raise ConfigError(f"bands must be numbers of bands, counted from 0, got {bands!r}")
        if bands is not None and self.channels not in (None, len(bands)):
            raise ConfigError(
                f"channels is {self.channels}, and bands names {len(bands)}: leave channels out"
            )
        limits = self.value_range
        if limits is not None:
            numbers = len(limits) == 2 and all(is_number(v) and np.isfinite(v) for v in limits)
            if not (numbers and limits[0] < limits[1]):
                raise ConfigError(f"value_range must be two numbers, the first smaller, got {limits!r}")
        levels = self._page()
        if len(levels) != 3 or not all(is_whole(v) and 0 <= v <= 255 for v in levels):
            raise ConfigError(f"background must be a grey level or three, 0 to 255, got {self.background!r}")

    def _page(self) -> tuple[Any, ...]:
        """Return red, green and blue behind transparent pixels."""
        behind = 255 if self.background is None else self.background
        return tuple(behind) if isinstance(behind, tuple | list) else (behind,) * 3

    @property
    def depth(self) -> int:
        """Number of channels of the images."""
        return self.channels or (3 if self.bands is None else len(self.bands))

    def __call__(self, path: PictureFile) -> PixelImage:
        """Read a file.

        Args:
            path: The file.

        Returns:
            A PIL image in mode RGB; of other than three channels a uint8 tensor ``(C, H, W)``.

        Raises:
            DataError: If it is missing, damaged, too large, or of a kind whose values have no known range.
        """
        try:
            return self._read(path)
        except MMCLError:
            raise
        except Exception as error:  # decoders have errors of many kinds
            reason = _reason(path, error)
            raise DataError(f"the image {path} cannot be read ({reason}); repair or remove it") from error

    def is_dark_by_depth(self, path: PictureFile) -> bool:
        """Whether a picture of 16 bits has values below 4096 alone: 12 bits perhaps, and nearly black here.

        Args:
            path: The file; of one that cannot be read, reading says why.
        """
        if self.value_range is not None:
            return False
        with contextlib.suppress(Exception), any_size():
            if self._whole_bands:
                values = self._chosen(read_bands(path, self._checking(path)), path)
            else:
                with Image.open(path) as image:
                    deep = _has_deep_colour(image)
                    if not deep and image.mode not in _DEEP and not image.mode.startswith("I;"):
                        return False
                    values = np.asarray(image)
                    if deep:  # Pillow gives the upper 8 bits
                        return 0 < int(values.max()) < 16
            return values.dtype.kind in "iu" and values.itemsize > 1 and 0 < int(values.max()) < 4096
        return False

    def _read(self, path: PictureFile) -> PixelImage:
        try:
            with any_size(), Image.open(path) as image:
                self._check_size(image.height, image.width, path)
                deep = _has_deep_colour(image) and not is_tiff(path)
                if deep and (self._whole_bands or self.value_range is not None):
                    raise DataError(_deep_colour(path))
                deep = self.value_range is not None and _has_deep_colour(image)
                if self._whole_bands or deep or _is_signed(image):
                    return self._from_bands(read_bands(path, self._checking(path), image), path)
                _check_bands(image, path)
                rgb = self._to_rgb(_upright(image), path)
                return rgb if self.depth == 3 else _to_tensor(np.asarray(rgb.convert("L"))[None])
        except UnidentifiedImageError:
            if not is_tiff(path):
                raise
            return self._from_bands(read_bands(path, self._checking(path)), path)  # as Pillow knows none

    @property
    def _whole_bands(self) -> bool:
        return self.bands is not None or self.depth not in (1, 3)

    def _chosen(self, bands: NDArray[Any], path: PictureFile) -> NDArray[Any]:
        """Return the bands that become channels, out of all of a file ``(K, H, W)``."""
        count, wanted = len(bands), self.bands
        if wanted is None and not self._whole_bands and count == 1:
            return np.repeat(bands, self.depth, axis=0)
        if wanted is None and count != self.depth:
            raise DataError(_many_bands(path, count, self.depth))
        if wanted is not None and max(wanted) >= count:
            raise DataError(f"the image {path} has {count} bands, counted from 0, and data.bands is {wanted}")
        return bands if wanted is None else bands[list(wanted)]

    def _from_bands(self, bands: NDArray[Any], path: PictureFile) -> PixelImage:
        levels = self._to_bytes(self._chosen(bands, path), path)
        if self.depth == 3:
            return Image.fromarray(np.ascontiguousarray(levels.transpose(1, 2, 0)))
        return _to_tensor(levels)

    def _checking(self, path: PictureFile) -> Callable[[int, int], None]:
        return functools.partial(self._check_size, path=path)

    def _check_size(self, height: int, width: int, path: PictureFile) -> None:
        if width * height > self.max_pixels:
            raise DataError(
                f"the image {path} has {width} x {height} pixels, more than max_pixels, {self.max_pixels}: "
                "set data.max_pixels if that is right, or make it smaller"
            )

    def _to_rgb(self, image: Image.Image, path: PictureFile) -> Image.Image:
        if image.mode in _DEEP or image.mode.startswith("I;"):
            return Image.fromarray(self._to_bytes(np.asarray(image), path)).convert("RGB")
        if image.has_transparency_data:
            above = image.convert("RGBA")
            page = Image.new("RGBA", above.size, (*self._page(), 255))
            return Image.alpha_composite(page, above).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")

    def _to_bytes(self, values: NDArray[Any], path: PictureFile) -> NDArray[np.uint8]:
        """Return the values of a picture as levels of 8 bits."""
        limits, floats = self.value_range, values.dtype.kind == "f"
        if values.dtype == np.uint8:
            return values
        if values.dtype == bool:
            return values.astype(np.uint8) * 255
        if values.dtype.kind not in "iuf" or (
            limits is None and values.dtype.kind == "i" and values.itemsize == 1
        ):
            kind = "complex numbers" if values.dtype.kind == "c" else f"values of type {values.dtype}"
            hint = ": set data.value_range" if values.dtype.kind == "i" else ": convert it to floats"
            raise DataError(f"the image {path} has {kind}, whose black and white are not known{hint}")
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
        if limits is None:
            limits = (0.0, 1.0) if floats else (0.0, 65535.0)
            if not (limits[0] <= low and high <= limits[1] and finite.size == values.size):
                odd = " and others that are not finite" * (finite.size < values.size)
                kind = "floats" if floats else "integers of more than 16 bits"
                raise DataError(
                    f"the image {path} has {kind} from {low:g} to {high:g}{odd}, whose black and white are "
                    f"not known: set data.value_range, as in --data.value_range '[{low:g}, {high:g}]'"
                )
        scaled = (values.astype(np.float64) - limits[0]) * (255.0 / (limits[1] - limits[0]))
        levels: NDArray[np.uint8] = np.rint(np.nan_to_num(scaled).clip(0.0, 255.0)).astype(np.uint8)
        return levels


def _upright(image: Image.Image) -> Image.Image:
    """Turn a picture as its EXIF orientation says that it is to be seen, without a copy of one that is."""
    image.load()
    with contextlib.suppress(Exception):  # an EXIF block that is damaged says nothing
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _reason(path: PictureFile, error: Exception) -> str:
    """Say in a few words why a file cannot be read."""
    if isinstance(error, UnidentifiedImageError):
        if isinstance(path, PictureBytes):
            empty = not path.getbuffer().nbytes
        else:
            empty = os.path.exists(path) and os.path.getsize(path) == 0
        return "the file is empty" if empty else "it is no picture of a kind that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _to_tensor(levels: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.array(levels))  # a copy, which may be written to


def _has_deep_colour(image: Image.Image) -> bool:
    """Whether a picture has 16 bits per colour, of which Pillow gives the upper 8."""
    return len(image.getbands()) > 1 and any("16" in str(tile[3]) for tile in getattr(image, "tile", []))


def _is_signed(image: Image.Image) -> bool:
    """Whether a TIFF has signed integers of 8 bits, of which Pillow shows -1 as white."""
    tags = getattr(image, "tag_v2", {})
    return 2 in tags.get(_SAMPLE_FORMAT, ()) and 8 in tags.get(_BITS, ())


def _deep_colour(path: PictureFile) -> str:
    return (
        f"the image {path} has colours of 16 bits, of which Pillow reads 8: for data.value_range, "
        "data.channels and data.bands convert it to TIFF"
    )


def _check_bands(image: Image.Image, path: PictureFile) -> None:
    """Refuse a picture of which Pillow would show some bands or pages alone."""
    pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    if pages > 1:  # a smaller second page is a thumbnail
        size = image.size
        image.seek(1)
        equal = image.size == size
        image.seek(0)
        if equal:
            raise DataError(
                f"the image {path} has {pages} pages: set data.channels to {pages}, or say which to take, as "
                "in --data.bands '[0]' for the first"
            )
    count = max(len(image.getbands()), getattr(image, "tag_v2", {}).get(_SAMPLES_PER_PIXEL, 1))
    if count > len(image.getbands()):
        raise DataError(_many_bands(path, count, 3))


def _many_bands(path: PictureFile, count: int, wanted: int) -> str:
    some = ", ".join(map(str, range(min(count, wanted))))
    return (
        f"the image {path} has {count} bands, expected {wanted}: set data.channels to {count}, or say which "
        f"to take, as in --data.bands '[{some}]'"
    )


def _looks_like_a_picture(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    Image.init()
    found = ((name, accept) for name, (_, accept) in Image.OPEN.items() if name not in _NO_PICTURES)
    return any(accept is not None and accept(start) is True for _, accept in found)
