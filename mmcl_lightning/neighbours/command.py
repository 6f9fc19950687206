"""The command ``neighbours``: which images a network takes for alike.

``mmcl neighbours representations.npz --k 5 --duplicates 0.98 --picture neighbours.png --root photos``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning._files import free_path, whole_file, write_csv
from mmcl_lightning._text import plain, say
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.negatives.drawing import BLUE, GREEN, ORANGE, Tile, draw_grid
from mmcl_lightning.neighbours.images import EmbeddedImages
from mmcl_lightning.neighbours.search import near_duplicates, nearest_neighbours

__all__ = ["neighbours"]

_SHOWN = 10  # pairs of near duplicates on the terminal
_ROWS = 8  # of the picture, where no query is named
_SIDE = 144  # pixels of an image there


def neighbours(arguments: list[str]) -> None:
    """Run ``mmcl neighbours``.

    Args:
        arguments: What stands after ``neighbours`` on the command line.
    """
    options = _parser().parse_args(arguments)
    if options.picture is not None and Path(options.picture).suffix.lower() != ".png":
        raise ConfigError(f"--picture is a file whose name ends in .png, got {options.picture}")
    if options.picture is not None and options.root is None:
        raise ConfigError(
            "--picture needs the images: set --root to the folder that the paths are relative to"
        )
    out = free_path(options.out, "neighbours.csv", ".duplicates.csv")
    picture = None if options.picture is None else free_path(options.picture, "")
    images = EmbeddedImages.read(options.file)
    queries = images.rows(options.query)
    similarity, index = nearest_neighbours(images.h, queries, options.k)
    duplicates = near_duplicates(images.h, queries, similarity, index, options.duplicates)
    # Before any file is written: an image may be missing.
    drawn = None if picture is None else _draw(images, queries, similarity, index, options)
    say(f"similarity of an image to its nearest: {similarity[:, 0].median():.4f} in the median")
    write_csv(
        out, ("query", "rank", "neighbour", "similarity"), _neighbours(images, queries, similarity, index)
    )
    written = [out]
    if duplicates is None:
        say(f"more than 100,000 pairs are as similar as {options.duplicates}: raise --duplicates")
    else:
        written.append(out.with_suffix(".duplicates.csv"))
        rows = _duplicates(images, *duplicates)
        write_csv(written[-1], ("first", "second", "similarity", "first_split", "second_split"), rows)
        of = f"{len(options.query)} queries" if options.query else f"{len(images.paths)} images"
        _say(rows, of, options.duplicates)
    if picture is not None and drawn is not None:
        with whole_file(picture) as file:
            drawn.save(file, "PNG")
        written.append(picture)
    say(f"Wrote {', '.join(str(path) for path in written)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmcl neighbours",
        description="Find the nearest neighbours of images by the cosine similarity of their "
        "representations, and near duplicates, those across splits first.",
    )
    parser.add_argument("file", metavar="FILE", help=".npz or .parquet that predict or embed wrote")
    parser.add_argument("--k", type=int, default=5, help="neighbours of each image (5)")
    parser.add_argument(
        "--query", nargs="+", default=[], metavar="PATH",
        help="images to search for: their paths as in FILE, or the ends of these (all)",
    )  # fmt: skip
    parser.add_argument(
        "--duplicates", type=float, default=0.98, metavar="SIMILARITY", help="of near duplicates (0.98)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.csv",
        help="table to write (neighbours.csv); .duplicates.csv is written beside it",
    )
    parser.add_argument("--picture", metavar="FILE.png", help="picture of queries and their neighbours")
    parser.add_argument("--root", metavar="PATH", help="folder of the images, for the picture")
    reading = parser.add_argument_group("how the images are read for the picture, as data has it of embed")
    reading.add_argument("--channels", type=int, help="of an image; the first three are shown")
    reading.add_argument("--bands", type=_list, metavar="'[0, 1, 2]'", help="of a file, from 0")
    reading.add_argument("--value_range", type=_list, metavar="'[0, 1000]'", help="black and white")
    reading.add_argument("--max_pixels", type=int, help="most pixels of an image")
    return parser


def _list(text: str) -> list[Any]:
    """Return a list of the command line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise argparse.ArgumentTypeError(f"expected a list, such as '[0, 1]', got {text[:60]!r}")
    return found


def _neighbours(
    images: EmbeddedImages, queries: Tensor, similarity: Tensor, index: Tensor
) -> Iterable[tuple[Any, ...]]:
    """Return the rows of the table of neighbours."""
    for query, values, others in zip(queries.tolist(), similarity.tolist(), index.tolist(), strict=True):
        for rank, (value, other) in enumerate(zip(values, others, strict=True), start=1):
            yield images.paths[query], rank, images.paths[other], f"{value:.6f}"


def _duplicates(images: EmbeddedImages, pairs: Tensor, values: Tensor) -> list[tuple[Any, ...]]:
    """Return the rows of the table of near duplicates, those across splits first."""
    rows = []
    for (first, second), value in zip(pairs.tolist(), values.tolist(), strict=True):
        splits = images.splits[first], images.splits[second]
        rows.append((images.paths[first], images.paths[second], f"{value:.6f}", *splits))
    return sorted(rows, key=lambda row: row[3] == row[4])  # stable: by similarity within


def _say(rows: list[tuple[Any, ...]], of: str, threshold: float) -> None:
    """Print how many pairs may be near duplicates, and the first."""
    across = sum(row[3] != row[4] for row in rows)
    said = f", {across} of them across splits" if across else ""
    say(f"{len(rows)} pairs of {of} have a cosine similarity of {threshold} or more{said}: near duplicates,")
    say("  where that is far above the median of an image and its nearest, which a weak network raises")
    for first, second, value, *splits in rows[:_SHOWN]:
        where = f" ({' and '.join(splits)})" if splits[0] != splits[1] else ""
        say(plain(f"  {value} {first} {second}{where}"))
    if len(rows) > _SHOWN:
        say(f"  ... and {len(rows) - _SHOWN} more")


def _draw(images: EmbeddedImages, queries: Tensor, similarity: Tensor, index: Tensor, options: Any) -> Any:
    """Draw a row for every query: the image, then its neighbours."""
    if not options.query:
        some = slice(None, None, max(1, -(-len(queries) // _ROWS)))
        queries, similarity, index = queries[some], similarity[some], index[some]
    names = ("channels", "bands", "value_range", "max_pixels")
    read = PictureReader(**{name: found for name in names if (found := getattr(options, name)) is not None})

    def tile(row: int, frame: str, corner: str = "", thick: bool = False) -> Tile:
        pixels = _pixels(read, Path(options.root) / images.paths[row])
        return Tile(pixels, frame, corner, images.classes[row] or Path(images.paths[row]).name, thick=thick)

    rows, found = [], zip(queries.tolist(), similarity.tolist(), index.tolist(), strict=True)
    for query, values, others in found:
        tiles = [
            tile(
                other,
                BLUE if images.classes[other] == images.classes[query] else ORANGE,
                f"{value:.3f}",
                value >= options.duplicates,
            )
            for value, other in zip(values, others, strict=True)
        ]
        rows.append([[tile(query, GREEN)], tiles])
    legend = [(GREEN, False, "query"), (BLUE, False, "neighbour, with its cosine similarity")]
    if any(images.classes):
        legend.append((ORANGE, False, "of another class"))
    legend.append((BLUE, True, f"near duplicate, >= {options.duplicates}"))
    lines = [f"{len(images.paths)} images of {options.file}"]
    return draw_grid("Nearest neighbours", lines, ["query", "neighbours"], rows, [1, index.shape[1]], legend)


def _pixels(read: PictureReader, path: Path) -> Tensor:
    """Return an image as three channels in [0, 1], as large as the picture shows it."""
    try:
        image = read(path)
    except DataError as error:  # the options of the data are this command's own here
        raise DataError(str(error).replace("--data.", "--").replace("data.", "--")) from error
    if isinstance(image, Tensor):  # of other than three channels
        rgb = image[:3] if len(image) > 2 else image[:1].expand(3, -1, -1)
        image = Image.fromarray(rgb.permute(1, 2, 0).numpy())
    image.thumbnail((_SIDE, _SIDE))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
