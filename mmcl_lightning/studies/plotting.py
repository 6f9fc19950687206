"""The plots of a report: a metric by method against epochs and time, or at the end of training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcl_lightning.studies.groups import Group

__all__ = ["plot_curves", "plot_ends"]


def plot_curves(groups: Sequence[Group], metric: str, title: str, path: Path) -> bool:
    """Draw mean and range over seeds against epochs and minutes.

    Args:
        groups: Methods, each with the metric.
        metric: Logged metric to draw.
        title: What the axis calls it.
        path: Picture to write.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := _pyplot()) is None:
        return False
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    colors = plt.get_cmap("tab10" if len(groups) <= 10 else "tab20")
    for index, group in enumerate(groups):
        curves = group.curves(metric)
        common = min(map(len, curves))
        points = [[curve[i] for curve in curves] for i in range(common)]
        label = " " + group.name.replace("$", r"\$")  # matplotlib hides _names, and reads $ as maths
        style: dict[str, Any] = {"color": colors(index % colors.N)}
        for axis, column, unit in ((axes[0], 0, 1.0), (axes[1], 2, 60.0)):
            x = [statistics.mean(point[column] for point in at) / unit for at in points]
            y = [[point[3] for point in at] for at in points]
            axis.plot(x, [statistics.mean(values) for values in y], label=label, **style)
            band = {**style, "alpha": 0.12, "linewidth": 0}
            axis.fill_between(x, [min(v) for v in y], [max(v) for v in y], **band)
    for axis, unit_name in zip(axes, ("epochs", "minutes, readouts included"), strict=True):
        axis.set_xlabel(unit_name)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def plot_ends(groups: Sequence[Group], metrics: Sequence[tuple[str, str]], path: Path) -> bool:
    """Draw the value of every run at its end, a panel per metric, a row per method, a bar at the mean.

    Args:
        groups: Methods.
        metrics: Logged metrics, each with what the axis calls it.
        path: Picture to write.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := _pyplot()) is None:
        return False
    size = (3.6 * len(metrics) + 2, 0.38 * len(groups) + 1.1)
    figure, axes = plt.subplots(
        1, len(metrics), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (metric, title) in zip(axes[0], metrics, strict=True):
        for row, group in enumerate(groups):
            values = group.last(metric)
            axis.plot(values, [row] * len(values), "o", color="tab:blue", alpha=0.5, markersize=5)
            if values:
                axis.plot(statistics.mean(values), row, "|", color="black", markersize=16, markeredgewidth=2)
        axis.set_xlabel(title)
        axis.grid(alpha=0.3, axis="x")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(groups)), [group.name.replace("$", r"\$") for group in groups])
    axes[0][0].set_ylim(len(groups) - 0.5, -0.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files only; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
