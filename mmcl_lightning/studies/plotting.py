"""The plot of a report: a metric by method against epochs and time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcl_lightning.studies.groups import Group

__all__ = ["plot_curves"]


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
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

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
