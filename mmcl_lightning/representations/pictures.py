"""The images of a file of representations, as a picture or the projector shows them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import DataError

__all__ = ["Read", "add_reading_options", "reader_of", "reading_options", "thumbnail"]

Read = Callable[[Path], Any]
_READING = ("channels", "bands", "value_range", "max_pixels")


def add_reading_options(parser: argparse.ArgumentParser, use: str) -> None:
    """Add ``--root`` and how images are read.

    Args:
        parser: Of a command that shows images of a file of representations.
        use: What they are read for.
    """
    parser.add_argument("--root", type=Path, metavar="PATH", help=f"folder of the images, for {use}")
    reading = parser.add_argument_group(f"how the images are read for {use}, as data has it of embed")
    reading.add_argument("--channels", type=int, help="of an image; the first three are shown")
    reading.add_argument("--bands", type=_list, metavar="'[0, 1, 2]'", help="of a file, from 0")
    reading.add_argument("--value_range", type=_list, metavar="'[0, 1000]'", help="black and white")
    reading.add_argument("--max_pixels", type=int, help="most pixels of an image")


def reader_of(options: argparse.Namespace) -> PictureReader:
    """Return what reads an image as the options say."""
    return PictureReader(**reading_options(options))


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the data that were given, by name."""
    return {name: found for name in _READING if (found := getattr(options, name)) is not None}


def _list(text: str) -> list[Any]:
    """Return a list of the command line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise argparse.ArgumentTypeError(f"expected a list, such as '[0, 1]', got {text[:60]!r}")
    return found


def thumbnail(read: Read, path: Path, side: int) -> Tensor:
    """Return an image as three channels in [0, 1], ``(3, H, W)``, none of its sides longer than ``side``.

    Args:
        read: Reads a file, as :func:`reader_of` or the ``reader`` of an image folder.
        path: The file.
        side: Pixels.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        image = read(path)
    except DataError as error:  # the options of the data are the command's own here
        raise DataError(str(error).replace("--data.", "--").replace("data.", "--")) from error
    if isinstance(image, Tensor):  # of other than three channels
        rgb = image[:3] if len(image) > 2 else image[:1].expand(3, -1, -1)
        image = Image.fromarray(rgb.permute(1, 2, 0).numpy())
    image.thumbnail((side, side))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
