"""The command ``map``: representations as points of a plane, and in TensorBoard's projector.

``mmcl map representations.npz --method tsne --tensorboard projector --root photos``
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mmcl_lightning._files import free_path
from mmcl_lightning._next import say_next
from mmcl_lightning._options import check_installed
from mmcl_lightning._text import say
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.representations.images import EmbeddedImages
from mmcl_lightning.representations.maps import (
    METHODS,
    Method,
    check_method,
    check_rows,
    draw_map,
    map_points,
    sample,
)
from mmcl_lightning.representations.pictures import Read, add_reading_options, reader_of
from mmcl_lightning.representations.projector import write_projector

__all__ = ["map_representations", "write_map", "write_to_tensorboard"]


def write_map(images: EmbeddedImages, source: Path, method: Method, out: Path) -> None:
    """Draw a map of representations, and say what it shows.

    Args:
        images: All of a file.
        source: The file.
        method: How; see :func:`~mmcl_lightning.representations.maps.map_points`.
        out: Picture to write.
    """
    drawn = sample(images)
    points = map_points(drawn.h, method)
    some = f"{len(drawn.paths):,}" + f" of {len(images.paths):,}" * (len(drawn.paths) < len(images.paths))
    what = f"{some} images by {points.how}"
    if draw_map(drawn, points, out, [f"Representations of {source.name}", what]):
        say(f"Wrote {out}: {what}")
    else:
        say('no map: it needs matplotlib, pip install "mmcl-lightning[map]"')


def write_to_tensorboard(images: EmbeddedImages, folder: Path, root: Path | None, read: Read | None) -> None:
    """Write representations for TensorBoard's projector, and say how to open it."""
    drawn = sample(images)
    write_projector(drawn, folder, root, read)
    some = f"{len(drawn.paths):,} of {len(images.paths):,} images"
    how = "with thumbnails" if root is not None else "without thumbnails, which need --root"
    say(f"Wrote {folder}: {some} for the projector, {how}")


def map_representations(arguments: list[str]) -> None:
    """Run ``mmcl map``.

    Args:
        arguments: What stands after ``map`` on the command line.
    """
    parser = argparse.ArgumentParser(
        prog="mmcl map",
        description="Draw representations as points of a plane, coloured by class, at most 5,000 of them; "
        "with --tensorboard they are written for TensorBoard's projector too.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".npz or .parquet of predict or embed")
    parser.add_argument(
        "--method", choices=METHODS, default="pca",
        help="pca: keeps large distances; tsne: keeps neighbours, needs scikit-learn (pca)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE.png", help="picture to write (FILE.png beside FILE)")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="folder to write for its projector")
    add_reading_options(parser, "the thumbnails of the projector")
    options = parser.parse_args(arguments)
    check_method(options.method)
    check_installed("mmcl map", "matplotlib", "map")
    if options.out is not None and Path(options.out).suffix.lower() != ".png":
        raise ConfigError(f"--out is a picture whose name ends in .png, got {options.out}")
    out = free_path(options.out, options.file.with_suffix(".png"))
    images = EmbeddedImages.read(str(options.file))
    check_rows(sample(images).h, options.method)
    if options.tensorboard is not None:
        folder = free_path(options.tensorboard, "")
        write_to_tensorboard(images, folder, options.root, reader_of(options) if options.root else None)
    write_map(images, options.file, options.method, out)
    if options.tensorboard is not None:
        say_next("map, projector", folder=options.tensorboard)
    elif options.method == "pca":
        say_next("map, pca", file=options.file)
    else:
        say_next("map", file=options.file)
