"""The plots of a report: a metric by method against epochs and time, or at the end of training."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcl_lightning._plots import COLOURS, LINES, pyplot, save_png
from mmcl_lightning._text import plain
from mmcl_lightning.studies.columns import Column
from mmcl_lightning.studies.groups import Group

__all__ = ["plot_curves", "plot_ends", "plot_watched"]

_LONGEST = 300  # characters of a name
_LINE = 0.21  # inches of a line of the legend


def plot_curves(groups: Sequence[Group], columns: Sequence[Column], path: Path) -> bool:
    """Draw mean and range over seeds against epochs and minutes, a row of panels for each column.

    Args:
        groups: Methods.
        columns: What to draw; methods without it are left out of its panels.
        path: Picture to write.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := pyplot()) is None:
        return False
    drawn = [group for group in groups if any(group.curves(column) for column in columns)]
    labels = [_label(group.name, 100) for group in drawn]
    legend = _Legend(labels, 11)
    size = (11, 3.9 * len(columns) + legend.height)
    figure, axes = plt.subplots(
        len(columns), 2, figsize=size, sharey="row", squeeze=False, layout="constrained"
    )
    handles = {}
    for (left, right), column in zip(axes, columns, strict=True):
        for index, (group, label) in enumerate(zip(drawn, labels, strict=True)):
            if curves := group.curves(column):
                style = {**_style(index), "label": label}
                handles[label] = _draw_band(left, curves, 0, 1.0, style)
                _draw_band(right, curves, 2, 60.0, style)
        for axis, unit_name in ((left, "epochs"), (right, "minutes, readouts included")):
            axis.set_xlabel(unit_name)
            _tidy(axis)
        left.set_ylabel(_label(column.title, 40))
    legend.draw(figure, handles)
    save_png(figure, path)
    return True


def plot_watched(groups: Sequence[Group], columns: Sequence[Column], path: Path) -> bool:
    """Draw what was logged in training against epochs, a panel for each column, three side by side.

    Args:
        groups: Methods.
        columns: What to draw; methods without it are left out of its panel.
        path: Picture to write.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := pyplot()) is None:
        return False
    across = min(3, len(columns))
    down = math.ceil(len(columns) / across)
    drawn = [group for group in groups if any(group.curves(column) for column in columns)]
    labels = [_label(group.name, 100) for group in drawn]
    legend = _Legend(labels, 3.7 * across)
    size = (3.7 * across, 2.7 * down + legend.height)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    handles = {}
    for axis, column in zip(axes.flat, columns, strict=False):
        for index, (group, label) in enumerate(zip(drawn, labels, strict=True)):
            if curves := group.curves(column):
                handles[label] = _draw_band(axis, curves, 0, 1.0, {**_style(index), "label": label})
        axis.set_title(_label(column.title, 40), loc="left", fontsize=10)
        axis.set_xlabel("epochs")
        _tidy(axis)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    legend.draw(figure, handles)
    save_png(figure, path)
    return True


def plot_ends(groups: Sequence[Group], columns: Sequence[Column], path: Path) -> bool:
    """Draw the value of every run at its end, a panel per column, a row per method, a bar at the mean.

    Args:
        groups: Methods.
        columns: What to draw.
        path: Picture to write.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := pyplot()) is None:
        return False
    names = [_label(group.name, 50) for group in groups]
    rows = sum(name.count("\n") + 1 for name in names)
    size = (3.6 * len(columns) + 2, 0.25 * rows + 0.15 * len(groups) + 1.3)
    figure, axes = plt.subplots(
        1, len(columns), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, column in zip(axes[0], columns, strict=True):
        for row, group in enumerate(groups):
            values = group.last(column)
            axis.plot(values, [row] * len(values), "o", color="tab:blue", alpha=0.5, markersize=5)
            if values:
                axis.plot(statistics.mean(values), row, "|", color="black", markersize=16, markeredgewidth=2)
        axis.set_xlabel(_label(column.title, 36))
        axis.grid(alpha=0.3, axis="x")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(groups)), names)
    axes[0][0].set_ylim(len(groups) - 0.5, -0.5)
    save_png(figure, path)
    return True


class _Legend:
    """The names of methods below a figure, in as many columns as fit.

    Args:
        labels: Names, perhaps of several lines.
        width: Of the figure, in inches.
    """

    def __init__(self, labels: Sequence[str], width: float) -> None:
        self._across = max(1, min(4, round(10 * width) // (max(map(_width, labels)) + 6)))
        lines = math.ceil(len(labels) / self._across) * max(label.count("\n") + 1 for label in labels)
        self.height = _LINE * lines + 0.2

    def draw(self, figure: Any, handles: dict[str, Any]) -> None:
        figure.legend(
            handles.values(), handles, loc="outside lower left", ncols=self._across, frameon=False, fontsize=9
        )


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _style(index: int) -> dict[str, Any]:
    """Return what tells a method from the others: seven colours, then other lines."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def _draw_band(axis: Any, curves: Any, place: int, unit: float, style: dict[str, Any]) -> Any:
    """Draw the mean of curves and their range against one number of their points; return the line."""
    points = list(zip(*curves, strict=False))  # up to the end of the shortest
    x = [statistics.mean(point[place] for point in at) / unit for at in points]
    y = [[point[3] for point in at] for at in points]
    (line,) = axis.plot(
        x, [statistics.mean(values) for values in y], marker="." if len(x) < 9 else "", **style
    )
    axis.fill_between(
        x, [min(v) for v in y], [max(v) for v in y], color=style["color"], alpha=0.12, linewidth=0
    )
    return line


def _label(name: str, width: int) -> str:
    """Return a name in lines of a width; a $ would begin maths, and a _ at the start hide it."""
    text = textwrap.fill(plain(name)[:_LONGEST], width).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _width(label: str) -> int:
    return max(map(len, label.split("\n")))
