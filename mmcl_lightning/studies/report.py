"""The report of a folder of records: tables and pictures, as Markdown or as one page."""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from mmcl_lightning._files import whole_text
from mmcl_lightning._text import markdown
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Record, read_records
from mmcl_lightning.studies.columns import BESIDE_TOP1, METRICS, Column, columns_of
from mmcl_lightning.studies.groups import (
    finished_and_others,
    group_runs,
    identity,
    in_sections,
    run_name,
    without_copies,
)
from mmcl_lightning.studies.notes import notes
from mmcl_lightning.studies.page import check_page, page_of
from mmcl_lightning.studies.pictures import Folders, Pictures
from mmcl_lightning.studies.tables import differences_table, results_table, tuning_table

__all__ = ["check_name", "write_report"]


def check_name(out: Path) -> None:
    """Raise :class:`ConfigError` unless a report of this name can be written."""
    if out.suffix not in (".md", ".html"):
        raise ConfigError(f"a report is Markdown or one page: --out must end in .md or .html, got {out}")
    if out.suffix == ".html":
        check_page()
    if os.path.lexists(out) and not _is_report(out):
        raise ConfigError(f"{out} exists and is no report of runs: give another --out, or remove it")


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
    """Write ``out``: as ``.md`` with its pictures beside it, as ``.html`` with them inside.

    A section has a table, a plot of the accuracies, ``NAME.png``, one of loss and health,
    ``NAME_health.png``, and where the runs lie in the folder, the latest pictures of negatives.

    Runs are compared within a section only: one data set, batch size and held-out part, so that tuning runs
    on a validation part never mix with results on test images. Unfinished runs are listed, not averaged, and
    of several runs of one seed the latest counts. Evaluations are one method where they evaluate runs of one
    configuration: their seeds are those of the pretraining. Runs that differ only in what was read from them
    are one method too, and what was measured in several ways has a column for each.

    Args:
        folder: Folder with records, at any depth.
        out: File to write, .md or .html.
        title: Heading.
        metrics: Logged metrics to show; by default the accuracies of readouts and evaluations.
        reference: Method that the others are compared with, seed by seed, as the table calls it; empty for
            no comparison.
        tuned_by: Logged metrics whose mean chose among the tries of the tuning; by default the first shown.
        only: Files of records to count, of those in the folder; ``None`` for all.
        missing: A line on each run that left no record, to be listed.

    Returns:
        The Markdown text, of which a page is a rendering.

    Raises:
        DataError: If there is no record, or one cannot be read.
        ConfigError: If no run logged a metric that was asked for, no run is of the reference, or ``out`` is
            of another kind, or there and no report.
    """
    check_name(out)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    found = list(read_records(folder))
    chosen = [(path, record) for path, record in found if only is None or path in only]
    records = without_copies(record for _, record in chosen)
    if not records:
        raise DataError(f"{folder} holds no record of a run (ledger.json)")
    _check_metrics(metrics, records)
    finished, others = finished_and_others(records)
    places = {id(record): path.relative_to(folder).as_posix() for path, record in chosen}
    rest = [f"{run_name(record)}, seed {record.seed}: {why} ({places[id(record)]})" for record, why in others]
    sections = in_sections(finished)
    _check_reference(reference, sections)
    where = folder.name if folder.is_absolute() else folder  # no path of a machine in what is passed on
    verb = "does" if len(others) == 1 else "do"
    unfinished = f", {len(others)} of which {verb} not count, see the end" if others else ""
    head = f"# {title}\n\nMade of {len(records)} records of runs in {markdown(where)}{unfinished}.\n"
    shown = metrics or _usual(
        {name for record in records for name in record.metrics},
        {name for record in finished for name in record.protocols},
    )
    with tempfile.TemporaryDirectory() as place:
        draft = out if out.suffix == ".md" else Path(place) / f"{out.stem}.md"
        draft.parent.mkdir(parents=True, exist_ok=True)
        pictures = Pictures(draft, _folders(found))
        parts = [head, *_sections(sections, shown, tuned_by, reference, pictures)]
        if lines := [*rest, *missing]:
            parts.append("## Not counted\n\n" + "\n".join(f"* {markdown(line)}" for line in lines) + "\n")
        text = "\n".join(parts)
        content = text if draft == out else page_of(text, title, draft.parent)
    with whole_text(out) as file:
        file.write(content)
    return text


def _sections(
    sections: dict[tuple[str, str], list[Record]],
    shown: Sequence[str],
    tuned_by: Sequence[str],
    reference: str,
    pictures: Pictures,
) -> list[str]:
    """Return the parts of the report, section by section."""
    parts = []
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
        parts += pictures.of_section(groups, columns)
    return parts


def _folders(found: Sequence[tuple[Path, Record]]) -> Folders:
    """Return the function from a record to the folders of its run: a study files a copy elsewhere."""
    folders = defaultdict(list)
    for path, record in found:
        folders[identity(record)].append(path.parent)
    return lambda record: folders[identity(record)]


def _is_report(path: Path) -> bool:
    """Whether a file is one that :func:`write_report` wrote, and may write anew."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        begin = file.read(10_000).decode(errors="replace")
    return re.search(r"^(<p>)?Made of \d+ records of runs in ", begin, re.MULTILINE) is not None


def _usual(known: Collection[str], protocols: Collection[str]) -> list[str]:
    """Return the accuracies among logged metrics, those of further protocols after their first one.

    Of those beside the top-1 only what a run has a protocol of, as its data set is judged by it.
    """
    beside = {metric for metric in known if metric in protocols and metric.split("/")[1] in BESIDE_TOP1}
    usual = {m for m in known if m in METRICS or m.split("/")[1:2] == ["top1"]}
    accuracies = sorted(beside | usual)
    families = dict.fromkeys([*METRICS, *("/".join(metric.split("/")[:2]) for metric in accuracies)])
    return [m for family in families for m in accuracies if m == family or m.startswith(f"{family}/")]


def _check_reference(reference: str, sections: dict[tuple[str, str], list[Record]]) -> None:
    """Raise :class:`ConfigError` unless the tables of results have a method of this name."""
    if not reference:
        return
    results = [section for (_, held_out), section in sections.items() if held_out != "validation"]
    names = {group.name for section in results for group in group_runs(section)}
    if reference not in names:
        raise ConfigError(f"no run is of the reference {reference!r}; there are {', '.join(sorted(names))}")


def _check_metrics(metrics: Sequence[str], records: Sequence[Record]) -> None:
    """Raise :class:`ConfigError` unless some run logged each metric."""
    known = {name for record in records for name in record.metrics}
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"no run logged {metric!r}; there are {', '.join(sorted(known))}")
