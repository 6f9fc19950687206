"""Read all bands of a picture file, as satellites, microscopes and scanners have them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmcl_lightning.errors import DataError

__all__ = ["PictureBytes", "is_tiff", "read_bands"]

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two of files above 4 GiB


class PictureBytes(io.BytesIO):
    """The content of a picture file, with the name that messages give it.

    Args:
        content: The bytes.
        name: The name.
    """

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name: str = name

    def __str__(self) -> str:
        return self.name


def is_tiff(path: str | Path | PictureBytes) -> bool:
    """Whether a file begins as a TIFF does."""
    if isinstance(path, PictureBytes):
        return path.getvalue()[:4] in _MAGIC
    with open(path, "rb") as file:
        return file.read(4) in _MAGIC


def read_bands(
    path: str | Path | PictureBytes, check_size: Callable[[int, int], None], image: Image.Image | None = None
) -> NDArray[Any]:
    """Return the bands of a file as they are, shape ``(K, H, W)``.

    Of a TIFF these are the samples of its pixels, or its pages where they have one sample each.

    Args:
        path: The file.
        check_size: Called with height and width before the pixels are read; raises where they are too many.
        image: The same file as Pillow opened it, for what is no TIFF.

    Raises:
        DataError: If it has more axes than bands, height and width, or cannot be read.
    """
    if is_tiff(path):
        return _read_tiff(path, check_size)
    if image is None:
        with Image.open(path) as opened:
            return read_bands(path, check_size, opened)
    check_size(image.height, image.width)
    values = np.asarray(image.convert() if image.mode in ("P", "1") else image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def _read_tiff(path: str | Path | PictureBytes, check_size: Callable[[int, int], None]) -> NDArray[Any]:
    try:
        import tifffile
    except ImportError as error:
        raise DataError(
            f"the image {path} is a TIFF of bands that Pillow does not read: "
            'pip install "mmcl-lightning[tiff]"'
        ) from error
    try:
        if isinstance(path, PictureBytes):
            path.seek(0)  # Pillow has read of it
        with tifffile.TiffFile(path) as file:
            if (pages := _equal_pages(file)) is not None:
                check_size(*pages[0].shape)
                return np.stack([page.asarray() for page in pages])
            series = file.series[0]
            axes = "".join(
                a for a, size in zip(series.axes, series.shape, strict=True) if a in "YX" or size > 1
            )
            if len(axes) > 3 or "YX" not in axes:
                raise DataError(
                    f"the image {path} has the axes {axes} of sizes {series.shape}; expected bands, Y and X"
                )
            check_size(*(series.shape[series.axes.index(a)] for a in "YX"))
            values = series.asarray()
    except DataError:
        raise
    except Exception as error:  # its decoders have errors of many kinds
        raise DataError(f"the image {path} cannot be read ({error}); repair or remove it") from error
    if not values.size:
        raise DataError(f"the image {path} cannot be read (it has no pixels); repair or remove it")
    values = values.squeeze(
        tuple(i for i, a in enumerate(series.axes) if a not in "YX" and series.shape[i] == 1)
    )
    return values[None] if len(axes) == 2 else np.moveaxis(values, 2 if axes[:2] == "YX" else 0, 0)


def _equal_pages(file: Any) -> list[Any] | None:
    """Return the pages of a TIFF that was written page by page, each of one band, or None for another one."""
    pages = [series.pages[0] for series in file.series]
    first = pages[0]
    alike = all(page.shape == first.shape and page.dtype == first.dtype for page in pages)
    return pages if len(pages) > 1 and len(first.shape) == 2 and alike else None
