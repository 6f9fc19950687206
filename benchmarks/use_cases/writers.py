"""Write files of kinds that few programs write."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image, PngImagePlugin

#: Left half red, right half blue; a ramp from black to white; both 20 x 16 pixels.
COLOURS = np.zeros((16, 20, 3), np.uint8)
COLOURS[:, :10], COLOURS[:, 10:] = (200, 30, 60), (20, 120, 220)
RAMP = np.tile(np.linspace(0, 255, 20).astype(np.uint8), (16, 1))
COLOUR, LEVELS = Image.fromarray(COLOURS), Image.fromarray(RAMP)


def saved(image: Image.Image, **options: Any) -> Callable[[Path], Any]:
    """Return what writes an image with Pillow."""
    return lambda path: image.save(path, **options)


def tiff(values: np.ndarray, **options: Any) -> Callable[[Path], Any]:
    """Return what writes an array with tifffile."""
    return lambda path: tifffile.imwrite(path, values, **options)


def content(data: bytes) -> Callable[[Path], Any]:
    """Return what writes bytes."""
    return lambda path: path.write_bytes(data)


def changed(image: Image.Image, kind: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Return what writes an image of a kind, and changes its bytes."""

    def write(path: Path) -> None:
        image.save(path, format=kind)
        path.write_bytes(change(path.read_bytes()))

    return write


def png(depth: int, kind: int, values: np.ndarray, size: tuple[int, int] | None = None) -> bytes:
    """Return a PNG of samples of 16 bits, or of packed bytes: Pillow writes few of these kinds."""
    rows = [row.astype(">u2" if depth == 16 else "u1").tobytes() for row in values]
    width, height = size or (20, len(rows))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def exif(orientation: int) -> Image.Exif:
    """Return EXIF data with an orientation."""
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def with_text(path: Path) -> None:
    """Write a PNG with 3 MB of text, packed into 3 KB."""
    notes = PngImagePlugin.PngInfo()
    notes.add_text("comment", "x" * 3_000_000, zip=True)
    COLOUR.save(path, pnginfo=notes)


def listen(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
