"""The pictures of a report: accuracies, what was watched in training, and the negatives that counted."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mmcl_lightning._files import whole_file
from mmcl_lightning._text import markdown
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.columns import Column, metric_title
from mmcl_lightning.studies.groups import Group
from mmcl_lightning.studies.plotting import plot_curves, plot_ends, plot_watched
from mmcl_lightning.studies.tables import is_followed

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["NEGATIVES", "Folders", "Pictures", "latest_negatives"]

#: Where the runs of a record lie, of which the first has a log, or none.
Folders = Callable[[Record], Sequence[Path]]

#: What tells a good training from a collapsed one, and what plots call it.
WATCHED = {
    "train/loss": "training loss",
    "health/rankme_h": "effective rank of h",
    "health/rankme_z": "effective rank of z",
    "health/std_h": "spread of h",
    "health/std_z": "spread of z",
    "health/alignment": "alignment (0: views agree)",
    "health/uniformity": "uniformity (lower: more even)",
    "svm/sv_fraction": "support vectors among negatives",
}
NEGATIVES = "svm/support_vectors"
_MOST_NEGATIVES = 4  # methods whose negatives are shown
_MOST_PIXELS = 50_000_000  # of such a picture


class Pictures:
    """Draws the pictures of the sections of a report, and says what they show.

    Args:
        out: The report; pictures are written beside it, as ``NAME.png``, ``NAME_2.png``, ``NAME_health.png``
            and so on.
        folders: Where the runs of a record lie.
    """

    def __init__(self, out: Path, folders: Folders) -> None:
        self.out, self.folders = out, folders
        self._counts: dict[str, int] = {}

    def of_section(self, groups: Sequence[Group], columns: Sequence[Column]) -> list[str]:
        """Draw all pictures of a section; return the Markdown of each."""
        watched = [
            column for name, title in WATCHED.items() if _moves(column := Column(name, "", title), groups)
        ]
        return [
            *self._accuracies(groups, columns),
            *(self._watched(groups, watched) if watched else []),
            *self._negatives(groups),
        ]

    def _path(self, kind: str) -> Path:
        """Return the next free name of a kind of picture."""
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        return self.out.with_name(f"{self.out.stem}{kind}{f'_{number}' if number > 1 else ''}.png")

    def _accuracies(self, groups: Sequence[Group], columns: Sequence[Column]) -> list[str]:
        """Draw the first metric that moves, or the ends of all."""
        first = next((column for column in columns if _moves(column, groups)), None)
        if first is None:
            return []
        drawn = [column for column in columns if column.metric == first.metric]
        path = self._path("")
        if is_followed([curve for group in groups for column in drawn for curve in group.curves(column)]):
            done = plot_curves(groups, drawn, path)
            what = f"{metric_title(first.metric)} against epochs and time"
            caption = f"{_lines_and_bands(groups, drawn)} Left against the epochs trained, right against the "
            caption += "minutes since the first step."
        else:  # a readout at the start and one at the end make no curve
            done = plot_ends(groups, columns, path)
            what = "every run at the end of training; bars: means"
            caption = "Dots: runs, one per seed, at the end of training; bars: means of a method."
        if not done:
            self._counts[""] -= 1
            return ["No plot: it needs matplotlib, the extra `report` of this package.\n"]
        return [_shown(what, path, caption)]

    def _watched(self, groups: Sequence[Group], columns: Sequence[Column]) -> list[str]:
        """Draw loss and health; without matplotlib the accuracies have said so."""
        path = self._path("_health")
        if not plot_watched(groups, columns, path):
            return []
        caption = f"{_lines_and_bands(groups, columns)} Losses of different methods do not compare."
        if any(column.metric.startswith("health/") for column in columns):
            caption += (
                " A rank near 1 or a spread near 0 is a collapse: to the network all images look alike."
            )
        what = "loss and health of the representations against epochs"
        return ["### Training and health\n", _shown(what, path, caption)]

    def _negatives(self, groups: Sequence[Group]) -> list[str]:
        """Show the latest picture of support vectors of a run of each method that has one."""
        found = []
        for group in groups:
            folders = [folder for record in group.records for folder in self.folders(record)]
            latest = next(filter(None, map(latest_negatives, folders)), None)
            if latest is not None:
                found.append((group, *latest))
        parts = ["### Negatives that count\n"] if found else []
        for group, step, picture in found[:_MOST_NEGATIVES]:
            path = self._path("_negatives")
            with whole_file(path) as file:
                picture.save(file, "PNG")
            parts.append(_shown(f"negatives of {group.name}", path, f"{markdown(group.name)}, step {step}."))
        if len(found) > _MOST_NEGATIVES:
            parts.append(f"{len(found) - _MOST_NEGATIVES} more methods have such a picture in TensorBoard.\n")
        return parts


def latest_negatives(folder: Path) -> tuple[int, Image.Image] | None:
    """Return the last picture of support vectors that a run logged, and its step; None without one.

    Args:
        folder: Of the run, with the files of TensorBoard.
    """
    if not any(folder.glob("events.out.tfevents.*")):
        return None
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

    log = EventAccumulator(str(folder), size_guidance={IMAGES: 1})
    try:
        log.Reload()
        event = log.Images(NEGATIVES)[-1]
        with Image.open(io.BytesIO(event.encoded_image_string), formats=["PNG"]) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                return None
            return event.step, picture.convert("RGB")
    except (KeyError, OSError, ValueError, SyntaxError):  # no such picture, or none that can be read
        return None


def _moves(column: Column, groups: Sequence[Group]) -> bool:
    return any(group.moves(column) for group in groups)


def _lines_and_bands(groups: Sequence[Group], columns: Sequence[Column]) -> str:
    several = any(len(group.curves(column)) > 1 for group in groups for column in columns)
    bands = "; bands: from the lowest to the highest seed" if several else ""
    return f"Lines: means over the seeds of a method{bands}."


def _shown(what: str, path: Path, caption: str) -> str:
    """Return a picture with its caption; the text between brackets has none of its own."""
    what = markdown(what.replace("[", "(").replace("]", ")"))
    return f"![{what}]({quote(path.name)})\n\n{caption}\n"
