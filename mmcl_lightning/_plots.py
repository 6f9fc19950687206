"""How plots are drawn: by matplotlib, to files alone, in colours that stay apart for colour-blind eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmcl_lightning._files import whole_file

__all__ = ["COLOURS", "GREY", "LINES", "MARKERS", "pyplot", "save_png"]

#: Okabe and Ito, "Color Universal Design", 2008, but for the yellow, which is too light for points on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: What tells apart those that share a colour.
MARKERS, LINES = ("o", "^", "s"), ("-", "--", ":", "-.")
GREY = "#BDBDBD"


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files only; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_png(figure: Any, path: Path) -> None:
    """Write a figure, and let go of it.

    Args:
        figure: Of matplotlib.
        path: Picture to write, or to replace.
    """
    try:
        with whole_file(path) as file:
            figure.savefig(file, dpi=130, format="png")
    finally:
        pyplot().close(figure)
