"""The command ``neighbours``: which images a network takes for alike.

``mmcl neighbours representations.npz --k 5 --duplicates 0.98 --picture neighbours.png --root photos``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from mmcl_lightning._files import free_path, whole_file, write_csv
from mmcl_lightning._next import say_next
from mmcl_lightning._text import plain, say
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.negatives.drawing import BLUE, GREEN, ORANGE, Tile, draw_grid
from mmcl_lightning.neighbours.queries import with_new_images
from mmcl_lightning.neighbours.search import near_duplicates, nearest_neighbours
from mmcl_lightning.representations import EmbeddedImages
from mmcl_lightning.representations.pictures import add_reading_options, reader_of, reading_options, thumbnail

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
    if options.picture and Path(options.picture).suffix.lower() != ".png":
        raise ConfigError(f"--picture is a file whose name ends in .png, got {options.picture}")
    if options.picture is not None and options.root is None:
        raise ConfigError(
            "--picture needs the images: set --root to the folder that the paths are relative to"
        )
    out = free_path(options.out, "neighbours.csv", ".duplicates.csv")
    picture = None if options.picture is None else free_path(options.picture or None, "neighbours.png")
    images = EmbeddedImages.read(options.file)
    options.query = list(dict.fromkeys(options.query))  # one that is named twice is one
    known, names = len(images.paths), options.query
    if options.checkpoint is not None:
        images, names = _with_new(images, options)
    queries = images.rows(names)
    similarity, index = _among(known, images.h, queries, options.k)
    duplicates = near_duplicates(images.h, queries, similarity, index, options.duplicates)
    # Before any file is written: an image may be missing.
    drawn = None if picture is None else _draw(images, known, queries, similarity, index, options)
    median = similarity[:, 0].median().item()
    of = "query" if options.query else "image"
    say(f"similarity of {'an' if of == 'image' else 'a'} {of} to its nearest: {median:.4f} in the median")
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
        of = (
            f"{len(names)} quer{'y' if len(names) == 1 else 'ies'}"
            if options.query
            else f"{len(images.paths)} images"
        )
        _say(rows, of, options.duplicates, None if options.query else median)
    if picture is not None and drawn is not None:
        with whole_file(picture) as file:
            drawn.save(file, "PNG")
        written.append(picture)
    say(f"Wrote {', '.join(str(path) for path in written)}")
    if picture is None:
        say_next("neighbours", file=options.file)
    else:
        say_next("neighbours, picture", picture=picture)


def _with_new(images: EmbeddedImages, options: argparse.Namespace) -> tuple[EmbeddedImages, list[str]]:
    """Add the queries that are files and not among the images; return the names of all queries."""
    new = [name for name in options.query if not images.fitting(name) and Path(name).is_file()]
    if not new:
        if absent := [name for name in options.query if not images.fitting(name)]:
            raise ConfigError(
                f"--query {absent[0]} is neither one of the {len(images.paths)} images of {options.file} "
                "nor a file"
            )
        raise ConfigError(
            "--checkpoint is for images that are not in the file, and all of --query are: leave it out, or "
            "name another picture"
        )
    names = [str(Path(name).absolute()) if name in new else name for name in options.query]
    chosen = options.checkpoint, options.backbone, reading_options(options)
    return with_new_images(images, list(dict.fromkeys(new)), *chosen), names


def _among(known: int, h: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the nearest of the first ``known`` images, for queries that may be among the others."""
    new = len(h) - known
    similarity, index = nearest_neighbours(h, queries, k + new)
    order = (index >= known).byte().argsort(dim=1, stable=True)[:, : max(1, min(k, known - (new == 0)))]
    return similarity.gather(1, order), index.gather(1, order)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmcl neighbours",
        description="Find the nearest neighbours of images by the cosine similarity of their "
        "representations, and near duplicates, those across splits first.",
    )
    parser.add_argument("file", metavar="FILE", help=".npz or .parquet that predict or embed wrote")
    parser.add_argument("--k", type=int, default=5, help="neighbours of each image (5)")
    parser.add_argument(
        "--query", nargs="+", action="extend", default=[], metavar="PATH",
        help="images to search for: their paths as in FILE, or the ends of these, or with --checkpoint any "
        "file (all)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="weights that FILE was made with, for queries that are not in it"
    )
    parser.add_argument("--backbone", metavar="NAME", help="the network, where the weights do not say it")
    parser.add_argument(
        "--duplicates", type=float, default=0.98, metavar="SIMILARITY", help="of near duplicates (0.98)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.csv",
        help="table to write (neighbours.csv); .duplicates.csv is written beside it",
    )
    parser.add_argument(
        "--picture",
        nargs="?",
        const="",
        metavar="FILE.png",
        help="picture of queries and their neighbours (neighbours.png, or the next that is free)",
    )
    add_reading_options(parser, "the picture")
    return parser


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
    return sorted(rows, key=lambda row: not _across(row))  # stable: by similarity within


def _across(row: tuple[Any, ...]) -> bool:
    """Whether a pair is of two splits; an image that is searched for has none."""
    return "" not in row[3:5] and row[3] != row[4]


def _say(rows: list[tuple[Any, ...]], of: str, threshold: float, median: float | None) -> None:
    """Print how many pairs may be near duplicates, and the first; the median is that of all images."""
    across = sum(map(_across, rows))
    said = f", {across} of them across splits" if across else ""
    say(f"{len(rows)} pairs of {of} have a cosine similarity of {threshold} or more{said}")
    if rows and median is None:
        say("  near duplicates, if that is far above the median of all images, which is said without --query")
    elif rows and median is not None and median >= threshold:
        say("  half of the images are that similar to their nearest: either they are there twice, or the")
        say("  network hardly tells images apart, and few of these pairs are near duplicates")
        if median < 0.99995:
            say(f"  then train longer, or raise --duplicates above {median:.4f}")
    elif rows:
        say("  near duplicates, if that is far above the median of an image and its nearest")
    for row in rows[:_SHOWN]:
        first, second, value, *splits = row
        where = f" ({' and '.join(splits)})" if _across(row) else ""
        say(plain(f"  {value} {first} {second}{where}"))
    if len(rows) > _SHOWN:
        say(f"  ... and {len(rows) - _SHOWN} more")


def _draw(
    images: EmbeddedImages, known: int, queries: Tensor, similarity: Tensor, index: Tensor, options: Any
) -> Any:
    """Draw a row for every query: the image, then its neighbours."""
    if not options.query:
        some = slice(None, None, max(1, -(-len(queries) // _ROWS)))
        queries, similarity, index = queries[some], similarity[some], index[some]
    read = reader_of(options)

    def tile(row: int, frame: str, corner: str = "", thick: bool = False) -> Tile:
        pixels = thumbnail(read, options.root / images.paths[row], _SIDE)
        return Tile(pixels, frame, corner, images.classes[row] or Path(images.paths[row]).name, thick=thick)

    rows, found = [], zip(queries.tolist(), similarity.tolist(), index.tolist(), strict=True)
    for query, values, others in found:
        tiles = [
            tile(
                other,
                ORANGE if images.classes[query] not in ("", images.classes[other]) else BLUE,
                f"{value:.3f}",
                value >= options.duplicates,
            )
            for value, other in zip(values, others, strict=True)
        ]
        rows.append([[tile(query, GREEN)], tiles])
    legend = [(GREEN, False, "query"), (BLUE, False, "neighbour, with its cosine similarity")]
    if any(images.classes[query] for query in queries.tolist()):
        legend.append((ORANGE, False, "of another class"))
    legend.append((BLUE, True, f"near duplicate, >= {options.duplicates}"))
    lines = [f"{known} images of {options.file}"]
    return draw_grid("Nearest neighbours", lines, ["query", "neighbours"], rows, [1, index.shape[1]], legend)
