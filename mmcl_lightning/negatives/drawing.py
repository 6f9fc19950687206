"""Draw captioned images in rows, with frames, headings and a legend: Pillow alone, no plotting library."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "Tile", "draw_grid", "readable"]

# Colours that remain apart for colour-blind eyes: Okabe and Ito, "Color Universal Design", 2008.
GREEN, BLUE, ORANGE = "#009E73", "#0072B2", "#D55E00"
GREY, INK, FAINT, PAPER = "#A6A6A6", "#1A1A1A", "#5F5F5F", "#FFFFFF"

SIDE, LARGEST = 96, 144  # pixels of a picture; everything below is in pixels too
FRAME, THICK = 3, 7
GAP, GROUP_GAP, MARGIN = 6, 18, 16
TEXT, SMALL, TITLE = 13, 12, 18


@dataclass(frozen=True, eq=False)
class Tile:
    """One captioned picture.

    Args:
        picture: Shape ``(3, H, W)``, in [0, 1].
        frame: Colour of its frame.
        corner: Text in its lower left corner.
        caption: Text below it.
        ink: Colour of the caption.
        thick: Whether the frame is a thick one.
    """

    picture: Tensor
    frame: str
    corner: str = ""
    caption: str = ""
    ink: str = INK
    thick: bool = False


def draw_grid(
    title: str,
    lines: Sequence[str],
    headings: Sequence[str],
    rows: Sequence[Sequence[Sequence[Tile]]],
    widths: Sequence[int],
    legend: Sequence[tuple[str, bool, str]],
) -> Image.Image:
    """Draw rows of pictures in groups of columns.

    Args:
        title: First line.
        lines: Smaller lines below it.
        headings: One per group of columns.
        rows: For each row and group its tiles, at most as many as the group has columns.
        widths: Number of columns of each group.
        legend: For each kind of frame its colour, whether it is thick, and what it means.

    Returns:
        An RGB image, as wide as the columns or the text need. Pictures keep their size between 96 and 144
        pixels, and are scaled otherwise.
    """
    sizes = [max(tile.picture.shape[1:]) for row in rows for group in row for tile in group]
    side = min(max(SIDE, *sizes), LARGEST)
    captions = any(tile.caption for row in rows for group in row for tile in group)
    cell = side + 2 * THICK
    row_height = cell + (TEXT + 6 if captions else 0) + GAP
    lefts = _lefts(widths, cell)
    top = MARGIN + TITLE + 8 + (TEXT + 6) * len(lines) + GAP + TEXT + 10
    key = _Key(legend)
    right = max(lefts[-1] + widths[-1] * (cell + GAP) - GAP, _longest(title, lines), MARGIN + key.width)
    height = top + row_height * len(rows) + key.height + MARGIN
    page = Image.new("RGB", (right + MARGIN, height), PAPER)
    pen = ImageDraw.Draw(page)
    _text(pen, (MARGIN, MARGIN), title, TITLE, INK)
    for number, line in enumerate(lines):
        _text(pen, (MARGIN, MARGIN + TITLE + 8 + number * (TEXT + 6)), line, TEXT, FAINT)
    for heading, left in zip(headings, lefts, strict=True):
        _text(pen, (left + THICK - FRAME, top - TEXT - 8), heading, TEXT, INK)
    for number, row in enumerate(rows):
        for group, left in zip(row, lefts, strict=True):
            for column, tile in enumerate(group):
                _draw_tile(page, tile, side, left + column * (cell + GAP), top + number * row_height)
    key.draw(pen, MARGIN + THICK - FRAME, top + row_height * len(rows) + GAP)
    return page


def _lefts(widths: Sequence[int], cell: int) -> list[int]:
    """Left edge of each group."""
    lefts = [MARGIN]
    for width in widths[:-1]:
        lefts.append(lefts[-1] + width * (cell + GAP) + GROUP_GAP - GAP)
    return lefts


def _draw_tile(page: Image.Image, tile: Tile, side: int, x: int, y: int) -> None:
    pen = ImageDraw.Draw(page)
    width = THICK if tile.thick else FRAME
    x, y = x + THICK, y + THICK
    pen.rectangle((x - width, y - width, x + side + width - 1, y + side + width - 1), fill=tile.frame)
    picture = _fit(tile.picture, side)
    pen.rectangle((x, y, x + side - 1, y + side - 1), fill=PAPER)
    page.paste(picture, (x + (side - picture.width) // 2, y + (side - picture.height) // 2))
    if tile.corner:
        wide = round(pen.textlength(tile.corner, _font(SMALL))) + 8
        pen.rectangle((x, y + side - SMALL - 6, x + wide, y + side - 1), fill=INK)
        _text(pen, (x + 4, y + side - SMALL - 4), tile.corner, SMALL, PAPER)
    if tile.caption:
        caption = _shorten(pen, tile.caption, side + THICK)
        _text(pen, (x - FRAME, y + side + THICK + 1), caption, TEXT, tile.ink)


def _fit(picture: Tensor, side: int) -> Image.Image:
    """Turn a picture into one whose longer side has ``side`` pixels."""
    pixels = (picture * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC)


class _Key:
    """The legend: swatches with a text each, in one line."""

    def __init__(self, entries: Sequence[tuple[str, bool, str]]) -> None:
        self.entries = entries
        pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
        self.steps = [TEXT + 8 + round(pen.textlength(text, _font(TEXT))) + 24 for _, _, text in entries]
        self.width = sum(self.steps)
        self.height = TEXT + 2 * GAP if entries else 0

    def draw(self, pen: ImageDraw.ImageDraw, x: int, y: int) -> None:
        for (colour, thick, text), step in zip(self.entries, self.steps, strict=True):
            pen.rectangle((x, y, x + TEXT, y + TEXT), outline=colour, width=5 if thick else 2)
            _text(pen, (x + TEXT + 8, y), text, TEXT, INK)
            x += step


def _longest(title: str, lines: Sequence[str]) -> int:
    pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    wide = [pen.textlength(readable(line), _font(TEXT)) for line in lines]
    wide.append(pen.textlength(readable(title), _font(TITLE)))
    return MARGIN + round(max(wide))


def _shorten(pen: ImageDraw.ImageDraw, text: str, width: int) -> str:
    """Cut a text so that it fits into a width."""
    text = readable(text)
    if pen.textlength(text, _font(TEXT)) <= width:
        return text
    while text and pen.textlength(text + "...", _font(TEXT)) > width:
        text = text[:-1]
    return text.rstrip() + "..."


def _text(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, ink: str) -> None:
    pen.text(at, readable(text), fill=ink, font=_font(size))


def readable(text: str) -> str:
    """Put a text into letters that Pillow's own font has.

    Args:
        text: Any text. Accents go; letters of other scripts turn into question marks.
    """
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(letters).encode("ascii", "replace").decode().replace("\n", " ")


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
