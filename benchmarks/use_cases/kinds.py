"""Files of every kind that lie among pictures, through ``mmcl embed``: read right, left out, or refused."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from mmcl_lightning.datamodules.pictures import PictureReader, is_picture
from mmcl_lightning.errors import MMCLError
from use_cases.cases import case, command, picture
from use_cases.writers import (
    COLOUR,
    COLOURS,
    LEVELS,
    RAMP,
    changed,
    content,
    exif,
    listen,
    png,
    saved,
    tiff,
    with_text,
)

GROUP = "Kinds of picture files"
RED_BLUE = "20 x 16 pixels, (200, 30, 60) to (20, 120, 220)"
GREY = "20 x 16 pixels, (0, 0, 0) to (255, 255, 255)"
WHITE_BLUE = "20 x 16 pixels, (255, 255, 255) to (20, 120, 220)"
REFUSED = "refused: the image x cannot be read"


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        what: The kind, in words.
        name: Of the file.
        write: Called with its path.
        expected: How its outcome begins.
    """

    what: str
    name: str
    write: Callable[[Path], Any]
    expected: str


CLEAR = np.dstack([COLOURS, np.full((16, 20), 255, np.uint8)])
CLEAR[:8, :, 3] = 0
FRAMES = [Image.new("RGB", (20, 16), colour) for colour in ((200, 30, 60), (0, 255, 0), (0, 0, 255))]
MOVING = {"save_all": True, "append_images": FRAMES[1:]}
FIRST = "20 x 16 pixels, (200, 30, 60) to (200, 30, 60)"
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
BEST = {"quality": 100, "subsampling": 0}
DEEP = COLOURS.astype(np.uint16) * 257
KINDS = [
    Kind("PNG of 8 bits", "x.png", saved(COLOUR), RED_BLUE),
    Kind("PNG, 16 bits per colour", "x.png", content(png(16, 2, DEEP)), RED_BLUE),
    Kind(
        "PNG, 16 bits per colour, transparent",
        "x.png",
        content(png(16, 6, CLEAR.astype(int) * 257)),
        WHITE_BLUE,
    ),
    Kind("PNG, 16 bits of grey", "x.png", saved(Image.fromarray(RAMP.astype(np.uint16) * 257)), GREY),
    Kind("PNG, grey of 2 bits", "x.png", content(png(2, 0, np.full((16, 5), 0b00011011))), GREY),
    Kind("PNG, grey of 4 bits", "x.png", content(png(4, 0, np.full((16, 10), 0x0F))), GREY),
    Kind("PNG of 1 bit", "x.png", saved(LEVELS.convert("1")), GREY),
    Kind("PNG, grey with transparency (LA)", "x.png", saved(LEVELS.convert("LA")), GREY),
    Kind("PNG, colours with transparency (RGBA)", "x.png", saved(Image.fromarray(CLEAR)), WHITE_BLUE),
    Kind("PNG with a palette", "x.png", saved(COLOUR.quantize(8)), RED_BLUE),
    Kind(
        "PNG, a palette with a transparent colour",
        "x.png",
        saved(COLOUR.quantize(8), transparency=0),
        WHITE_BLUE,
    ),
    Kind("animated PNG", "x.png", saved(FRAMES[0], **MOVING), FIRST),
    Kind("PNG with an ICC profile that is none", "x.png", saved(COLOUR, icc_profile=b"none" * 9), RED_BLUE),
    Kind(
        "PNG with a text that unpacks to 3 MB", "x.png", with_text, f"{REFUSED} (Decompressed data too large"
    ),
    Kind(
        "PNG that ends early",
        "x.png",
        changed(COLOUR, "PNG", lambda b: b[:-30]),
        f"{REFUSED} (image file is trunc",
    ),
    Kind(
        "PNG with a damaged byte", "x.png", changed(COLOUR, "PNG", lambda b: b[:60] + b"\0" + b[61:]), REFUSED
    ),
    Kind("PNG named .jpg", "x.jpg", lambda path: COLOUR.save(path, format="PNG"), RED_BLUE),
    Kind(
        "PNG of 60,000 x 60,000 pixels in 100 bytes",
        "x.png",
        content(png(8, 0, np.zeros((1, 9)), (60000, 60000))),
        "refused: the image x has 60000 x 60000 pixels, more than max_pixels",
    ),
    Kind(
        "PNG of 1 x 60,000 pixels",
        "x.png",
        saved(Image.new("RGB", (1, 60000), (9, 8, 7))),
        "1 x 60000 pixels, (9, 8, 7)",
    ),
    Kind(
        "PNG of 60,000 x 1 pixels",
        "x.png",
        saved(Image.new("RGB", (60000, 1), (9, 8, 7))),
        "60000 x 1 pixels, (9, 8, 7)",
    ),
    Kind("PNG of one pixel", "x.png", saved(Image.new("RGB", (1, 1), (9, 8, 7))), "1 x 1 pixels, (9, 8, 7)"),
    Kind("JPEG of grey", "x.jpg", saved(LEVELS, quality=100), GREY),
    Kind("JPEG in stages", "x.jpg", saved(COLOUR, progressive=True, **BEST), RED_BLUE),
    Kind(
        "JPEG of CMYK, inverted as Adobe does", "x.jpg", saved(COLOUR.convert("CMYK"), quality=100), RED_BLUE
    ),
    Kind("JPEG with an ICC profile", "x.jpg", saved(COLOUR, icc_profile=PROFILE, **BEST), RED_BLUE),
    Kind(
        "JPEG to be turned by EXIF",
        "x.jpg",
        saved(COLOUR, exif=exif(3), **BEST),
        "20 x 16 pixels, (20, 120, 220) to (200, 30, 60)",
    ),
    Kind(
        "JPEG with an EXIF orientation that is none", "x.jpg", saved(COLOUR, exif=exif(9), **BEST), RED_BLUE
    ),
    Kind(
        "JPEG with damaged EXIF data",
        "x.jpg",
        saved(COLOUR, exif=b"Exif\0\0II*\0\xff\xff\xff\xff", **BEST),
        RED_BLUE,
    ),
    Kind(
        "JPEG that ends early",
        "x.jpg",
        changed(COLOUR.resize((200, 160)), "JPEG", lambda b: b[:-99]),
        f"{REFUSED} (image file is trunc",
    ),
    Kind(
        "JPEG with bytes behind its end",
        "x.jpg",
        changed(COLOUR, "JPEG", lambda b: b + b"rest" * 99),
        "20 x 16 pixels, ",
    ),
    Kind("JPEG named .png", "x.png", lambda path: COLOUR.save(path, format="JPEG", **BEST), RED_BLUE),
    Kind(
        "two JPEGs in one (MPO), as of phones",
        "x.jpg",
        lambda path: FRAMES[0].save(path, format="MPO", **MOVING, **BEST),
        FIRST,
    ),
    Kind("the same, named .mpo", "x.mpo", saved(FRAMES[0], **MOVING, **BEST), FIRST),
    Kind("GIF", "x.gif", saved(COLOUR.quantize(8)), RED_BLUE),
    Kind("GIF with a transparent colour", "x.gif", saved(COLOUR.quantize(8), transparency=0), WHITE_BLUE),
    Kind("animated GIF", "x.gif", saved(FRAMES[0], **MOVING), FIRST),
    Kind("WebP", "x.webp", saved(COLOUR, lossless=True), RED_BLUE),
    Kind("animated WebP", "x.webp", saved(FRAMES[0], lossless=True, **MOVING), FIRST),
    Kind("AVIF", "x.avif", saved(COLOUR, quality=100, subsampling="4:4:4"), "20 x 16 pixels, "),
    Kind("BMP of 1 bit", "x.bmp", saved(LEVELS.convert("1")), GREY),
    Kind(
        "icon (ICO)",
        "x.ico",
        saved(Image.new("RGB", (16, 16), (9, 8, 7)), sizes=[(16, 16)]),
        "16 x 16 pixels, (9, 8, 7)",
    ),
    Kind("JPEG 2000 of 16 bits", "x.jp2", saved(Image.fromarray(RAMP.astype(np.uint16) * 257)), GREY),
    Kind("PGM of 16 bits", "x.pgm", saved(Image.fromarray(RAMP.astype(np.uint16) * 257)), GREY),
    Kind(
        "PPM in words",
        "x.ppm",
        content(b"P3\n2 1\n255\n255 0 0 0 0 255\n"),
        "2 x 1 pixels, (255, 0, 0) to (0, 0, 255)",
    ),
    Kind("QOI", "x.qoi", saved(COLOUR), RED_BLUE),
    Kind("TGA", "x.tga", saved(COLOUR), RED_BLUE),
    Kind("TIFF of CMYK", "x.tif", saved(COLOUR.convert("CMYK")), RED_BLUE),
    Kind("TIFF of 1 bit, fax-coded", "x.tif", saved(LEVELS.convert("1"), compression="group4"), GREY),
    Kind("TIFF whose 0 is white", "x.tif", tiff(255 - RAMP, photometric="miniswhite"), GREY),
    Kind("TIFF, colours of 16 bits", "x.tif", tiff(DEEP, photometric="rgb"), RED_BLUE),
    Kind(
        "TIFF, 16 bits, big-endian (I;16B)", "x.tif", tiff(RAMP.astype(np.uint16) * 257, byteorder=">"), GREY
    ),
    Kind(
        "TIFF, signed integers of 8 bits",
        "x.tif",
        tiff((RAMP.astype(int) - 128).astype(np.int8)),
        "refused: the image x has values of type int8, whose black and white are not known",
    ),
    Kind("TIFF, floats of 16 bits", "x.tif", tiff((RAMP / 255).astype(np.float16)), GREY),
    Kind("TIFF, floats of 64 bits", "x.tif", tiff(RAMP / 255), GREY),
    Kind(
        "TIFF, complex numbers",
        "x.tif",
        tiff((RAMP / 255).astype(np.complex64)),
        "refused: the image x has complex numbers, whose black",
    ),
    Kind("TIFF in tiles", "x.tif", tiff(COLOURS, photometric="rgb", tile=(16, 16)), RED_BLUE),
    Kind(
        "TIFF, colours apart",
        "x.tif",
        tiff(COLOURS.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"),
        RED_BLUE,
    ),
    Kind(
        "TIFF of several pages",
        "x.tif",
        tiff(np.stack([COLOURS, 255 - COLOURS]), photometric="rgb", metadata=None),
        "refused: the image x has 2 pages: set data.channels to 2",
    ),
    Kind("BigTIFF", "x.tif", tiff(COLOURS, photometric="rgb", bigtiff=True), RED_BLUE),
    Kind("file without a byte", "x.png", content(b""), f"{REFUSED} (the file is empty)"),
    Kind(
        "web page named .jpg", "x.jpg", content(b"<html>404</html>"), f"{REFUSED} (it is no picture of a kind"
    ),
    Kind("picture without an ending", "x", lambda path: COLOUR.save(path, format="PNG"), RED_BLUE),
    Kind("HEIC, which Pillow does not read", "x.heic", content(b"\0\0\0\x18ftypheic"), "not read: .heic: 1"),
    Kind("film", "x.mp4", content(b"\0\0\0\x18ftypmp42"), "not read: .mp4: 1"),
    Kind("drawing (SVG)", "x.svg", content(b"<svg/>"), "not read: .svg: 1"),
    Kind("named pipe", "x.png", lambda path: os.mkfifo(path), "not read: pipes, sockets and devices: 1"),
    Kind("socket", "x.png", listen, "not read: pipes, sockets and devices: 1"),
    Kind(
        "link to a device",
        "x.png",
        lambda path: path.symlink_to("/dev/zero"),
        "not read: pipes, sockets and devices: 1",
    ),
    Kind(
        "link to nothing",
        "x.png",
        lambda path: path.symlink_to("nowhere.png"),
        "not read: links to nothing: 1",
    ),
    Kind("name that is no UTF-8", os.fsdecode(b"\xff.png"), saved(COLOUR), RED_BLUE),
    Kind("name with an escape of the terminal", "\x1b[31mx.png", saved(COLOUR), RED_BLUE),
]


def reading(kind: Kind) -> str:
    """Say what reading the file gives: its size, and its first and last pixel; or why not."""
    if not Path(kind.name).is_file() or not is_picture(kind.name):
        return "not read"
    try:
        image: Any = PictureReader()(kind.name)
    except MMCLError as error:
        return f"refused: {str(error).replace(kind.name, 'x', 1)}"
    first, last = image.getpixel((0, 0)), image.getpixel((image.width - 1, image.height - 1))
    return f"{image.width} x {image.height} pixels, {first} to {last}"


def is_right(found: str, kind: Kind) -> bool:
    """Whether an outcome is the expected one, but for the few levels that a lossy format changes."""
    one, other = ([int(n) for n in re.findall(r"\d+", text)] for text in (found, kind.expected))
    close = len(one) == len(other) and all(abs(a - b) <= 8 for a, b in zip(one, other, strict=True))
    return found.startswith(kind.expected) or (" pixels, (" in kind.expected and close)


def embedding(place: Path, kind: Kind) -> str:
    """Embed a folder that has the file and three pictures, and say what came of it."""
    root = place / "pics"
    for index in range(3):
        picture(root / f"{index}.jpg")
    os.chdir(root)  # a socket's path is short
    kind.write(Path(kind.name))
    read = reading(kind)
    said = command(
        "embed", "--checkpoint=random", "--backbone=conv4", "--accelerator=cpu", "--data.image_size=16",
        "--data.num_workers=0", f"--data.root={root}", f"--out={place}/out.npz", "--data.on_bad_image=error",
        keep="^error|^not read",
    )  # fmt: skip
    if said.startswith("error"):
        return f"refused: {said.removeprefix('error: ')}"
    rows = len(np.load(place / "out.npz")["h"])
    outcome = said or read
    return f"{outcome}; {rows} rows" if is_right(outcome, kind) else f"{outcome}, expected {kind.expected}"


for kind in KINDS:
    refused = kind.expected.startswith("refused")
    ending = kind.expected[len("refused: the image x ") :] if refused else "; 4 rows"
    case(GROUP, kind.what, "; 3 rows" if kind.expected.startswith("not read") else ending)(
        functools.partial(embedding, kind=kind)
    )
