"""The table and the convergence plot of a folder of records."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from mmcl_lightning._files import whole_text
from mmcl_lightning._text import markdown
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Record, read_records
from mmcl_lightning.studies.columns import BESIDE_TOP1, METRICS, Column, columns_of, metric_title
from mmcl_lightning.studies.groups import (
    Group,
    finished_and_others,
    group_runs,
    in_sections,
    run_name,
    without_copies,
)
from mmcl_lightning.studies.notes import notes
from mmcl_lightning.studies.plotting import plot_curves, plot_ends
from mmcl_lightning.studies.tables import differences_table, is_followed, results_table, tuning_table

__all__ = ["write_report"]


def write_report(
    folder: Path,
    out: Path,
    title: str = "Results",
    metrics: Sequence[str] = (),
    *,
    only: Collection[Path] | None = None,
    missing: Sequence[str] = (),
    reference: str = "",
    tuned_by: Sequence[str] = (),
) -> str:
    """Write ``out`` and, beside it, a plot per section, ``NAME.png``, ``NAME_2.png`` and so on.

    Runs are compared within a section only: one data set, batch size and held-out part, so that tuning runs
    on a validation part never mix with results on test images. Unfinished runs are listed, not averaged, and
    of several runs of one seed the latest counts. Evaluations are one method where they evaluate runs of one
    configuration: their seeds are those of the pretraining. Runs that differ only in what was read from them
    are one method too, and what was measured in several ways has a column for each.

    Args:
        folder: Folder with records, at any depth.
        out: Markdown file to write.
        title: Heading.
        metrics: Logged metrics to show; by default the accuracies of readouts and evaluations.
        reference: Method that the others are compared with, seed by seed, as the table calls it; empty for
            no comparison.
        tuned_by: Logged metrics whose mean chose among the tries of the tuning; by default the first shown.
        only: Files of records to count, of those in the folder; ``None`` for all.
        missing: A line on each run that left no record, to be listed.

    Returns:
        The Markdown text.

    Raises:
        DataError: If there is no record, or one cannot be read.
        ConfigError: If no run logged a metric that was asked for, no run is of the reference, or ``out`` is
            not a ``.md`` file.
    """
    if out.suffix != ".md":
        raise ConfigError(f"the report is Markdown: --out must end in .md, got {out}")
    if os.path.lexists(out) and not _is_report(out):
        raise ConfigError(f"{out} exists and is no report of runs: give another --out, or remove it")
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    chosen = [(path, record) for path, record in read_records(folder) if only is None or path in only]
    records = without_copies(record for _, record in chosen)
    if not records:
        raise DataError(f"{folder} holds no record of a run (ledger.json)")
    known = {name for record in records for name in record.metrics}
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"no run logged {metric!r}; there are {', '.join(sorted(known))}")
    finished, others = finished_and_others(records)
    places = {id(record): path.relative_to(folder) for path, record in chosen}
    rest = [
        f"{run_name(record)}, seed {record.seed}: {why} ({places[id(record)].as_posix()})"
        for record, why in others
    ] + list(missing)
    shown = metrics or _usual(known, {name for record in finished for name in record.protocols})
    out.parent.mkdir(parents=True, exist_ok=True)
    verb = "does" if len(others) == 1 else "do"
    unfinished = f", {len(others)} of which {verb} not count, see the end" if others else ""
    where = folder.name if folder.is_absolute() else folder  # no path of a machine in what is passed on
    parts = [f"# {title}\n", f"Made of {len(records)} records of runs in {markdown(where)}{unfinished}.\n"]
    pictures = 0
    sections = in_sections(finished)
    _check_reference(reference, sections)
    for (data, held_out), section in sections.items():
        groups = group_runs(section, tries=held_out == "validation")
        columns = columns_of(section, shown)
        if held_out == "validation":
            tried = columns_of(section, tuned_by) or columns[:1] or [Column(METRICS[0], "", "k-NN top-1")]
            parts.append(f"## Tuning: {markdown(data)}, validation part\n\n{tuning_table(groups, tried)}")
            continue
        parts.append(
            f"## {markdown(data)}\n\n{results_table(groups, columns)}\n{notes(section, columns, groups)}"
        )
        if compared := differences_table(groups, columns, reference):
            parts.append(f"### Differences from {markdown(reference)}, seed by seed\n\n{compared}")
        picture = out.with_name(f"{out.stem}{f'_{pictures + 1}' if pictures else ''}.png")
        if (lines := _draw(groups, columns, picture)) is not None:
            pictures += lines.startswith("!")
            parts.append(lines)
    if rest:
        parts.append("## Not counted\n\n" + "\n".join(f"* {markdown(line)}" for line in rest) + "\n")
    text = "\n".join(parts)
    with whole_text(out) as file:
        file.write(text)
    return text


def _is_report(path: Path) -> bool:
    """Whether a file is one that :func:`write_report` wrote, and may write anew."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        begin = file.read(10_000).decode(errors="replace")
    return re.search(r"^Made of \d+ records of runs in ", begin, re.MULTILINE) is not None


def _usual(known: Collection[str], protocols: Collection[str]) -> list[str]:
    """Return the accuracies among logged metrics, those of further protocols after their first one.

    Of those beside the top-1 only what a run has a protocol of, as its data set is judged by it.
    """
    beside = {metric for metric in known if metric in protocols and metric.split("/")[1] in BESIDE_TOP1}
    usual = {m for m in known if m in METRICS or m.split("/")[1:2] == ["top1"]}
    accuracies = sorted(beside | usual)
    families = dict.fromkeys([*METRICS, *("/".join(metric.split("/")[:2]) for metric in accuracies)])
    return [m for family in families for m in accuracies if m == family or m.startswith(f"{family}/")]


def _draw(groups: Sequence[Group], columns: Sequence[Column], picture: Path) -> str | None:
    """Draw the first metric that moves, or the ends of all; return picture and caption, if any moves."""
    first = next((column for column in columns if any(group.moves(column) for group in groups)), None)
    if first is None:
        return None
    drawn = [column for column in columns if column.metric == first.metric]
    if is_followed([curve for group in groups for column in drawn for curve in group.curves(column)]):
        done = plot_curves(groups, drawn, picture)
        what = f"{metric_title(first.metric)} against epochs and time"
        caption = "Lines: means over the seeds of a method"
        if any(len(group.curves(column)) > 1 for group in groups for column in drawn):
            caption += "; bands: from the lowest to the highest seed"
        caption += ". Left against the epochs trained, right against the minutes since the first step."
    else:  # a readout at the start and one at the end make no curve
        done = plot_ends(groups, columns, picture)
        what = "every run at the end of training; bars: means"
        caption = "Dots: runs, one per seed, at the end of training; bars: means of a method."
    if not done:
        return "No plot: it needs matplotlib, the extra `report` of this package.\n"
    return f"![{_alone(what)}]({picture.name})\n\n{caption}\n"


def _alone(text: str) -> str:
    """Return a text for between brackets, without any of its own."""
    return markdown(text.replace("[", "(").replace("]", ")"))


def _check_reference(reference: str, sections: dict[tuple[str, str], list[Record]]) -> None:
    """Raise :class:`ConfigError` unless the tables of results have a method of this name."""
    if not reference:
        return
    results = [section for (_, held_out), section in sections.items() if held_out != "validation"]
    names = {group.name for section in results for group in group_runs(section)}
    if reference not in names:
        raise ConfigError(f"no run is of the reference {reference!r}; there are {', '.join(sorted(names))}")
