"""Plot the k-NN curve of a run from its TensorBoard log.

python benchmarks/plot_knn.py runs/quickstart/version_0 docs/images/quickstart_knn.png --title "..."
"""

from __future__ import annotations

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", help="folder with the event file")
    parser.add_argument("image", help="PNG to write")
    parser.add_argument("--title", default="")
    parser.add_argument("--chance", type=float, default=0.1)
    options = parser.parse_args()
    log = EventAccumulator(options.log)
    log.Reload()
    events = log.Scalars("knn/top1")
    minutes = [(event.wall_time - events[0].wall_time) / 60 for event in events]
    values = [event.value for event in events]

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot(minutes, values, marker="o", markersize=4, color="C3")
    for index in (0, -1):
        place = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(f"{values[index]:.2f}", (minutes[index], values[index]), **place)
    axes.axhline(options.chance, color="0.6", linestyle=":", linewidth=1)
    axes.text(minutes[-1], options.chance, "chance", va="bottom", ha="right", color="0.4", fontsize=8)
    axes.set(xlabel="minutes", ylabel="k-NN top-1", ylim=(0, 1))
    axes.set_title(options.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.image, dpi=150)


if __name__ == "__main__":
    main()
