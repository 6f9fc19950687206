"""The table and the convergence plot of a folder of records."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Record, read_records
from mmcl_lightning.studies.groups import (
    Group,
    finished_and_others,
    flat_options,
    group_runs,
    image_count,
    in_sections,
    renewed_options,
    seeds_of,
    varying,
    without_copies,
)
from mmcl_lightning.studies.paired import Difference, chance_beyond_two, paired_difference
from mmcl_lightning.studies.paper import paper_value
from mmcl_lightning.studies.plotting import plot_curves, plot_ends

__all__ = ["write_report"]

_METRICS = ("knn/top1", "probe/top1", "logistic/top1", "linear/top1", "finetune/top1")
_TITLES = {
    "knn": "k-NN",
    "probe": "online probe",
    "logistic": "logistic regression",
    "linear": "linear",
    "finetune": "fine-tuned",
}


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
    configuration: their seeds are those of the pretraining.

    Args:
        folder: Folder with records, at any depth.
        out: Markdown file to write.
        title: Heading.
        metrics: Logged metrics to show; by default the k-NN readout, the probes and the fine-tuning.
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
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    chosen = ((path, record) for path, record in read_records(folder) if only is None or path in only)
    records = without_copies(record for _, record in chosen)
    if not records:
        raise DataError(f"{folder} holds no record of a run (ledger.json)")
    known = {name for record in records for name in record.metrics}
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"no run logged {metric!r}; there are {', '.join(sorted(known))}")
    finished, rest = finished_and_others(records)
    rest += [f"* {line}" for line in missing]
    others = sorted(metric for metric in known if metric.endswith("/top1") and metric not in _METRICS)
    shown = [metric for metric in metrics or (*_METRICS, *others) if metric in known]
    out.parent.mkdir(parents=True, exist_ok=True)
    parts, pictures = [f"# {title}\n"], 0
    sections = in_sections(finished)
    _check_reference(reference, sections)
    for (data, held_out), section in sections.items():
        groups = group_runs(section, tries=held_out == "validation")
        columns = [metric for metric in shown if any(group.last(metric) for group in groups)]
        if held_out == "validation":
            tries = _tuning_table(groups, list(tuned_by) or columns[:1] or list(_METRICS[:1]))
            parts.append(f"## Tuning: {data}, validation part\n\n{tries}")
            continue
        parts.append(f"## {data}\n\n{_table(groups, columns)}\n{_notes(section, columns, groups)}")
        if compared := _differences(groups, columns, reference):
            parts.append(f"### Differences from {' '.join(reference.split())}, seed by seed\n\n{compared}")
        picture = out.with_name(f"{out.stem}{f'_{pictures + 1}' if pictures else ''}.png")
        if (line := _draw(groups, columns, picture)) is not None:
            pictures += line.startswith("!")
            parts.append(line)
    if rest:
        parts.append("## Not counted\n\n" + "\n".join(rest) + "\n")
    text = "\n".join(parts)
    out.write_text(text, encoding="utf-8")
    return text


def _draw(groups: Sequence[Group], metrics: Sequence[str], picture: Path) -> str | None:
    """Draw the first metric that moves, or every run's end; return the line for it, None if nothing moves."""
    drawn = next((metric for metric in metrics if any(group.moves(metric) for group in groups)), None)
    if drawn is None:
        return None
    with_curve = [group for group in groups if group.curves(drawn)]
    if _followed([curve for group in with_curve for curve in group.curves(drawn)]):
        done = plot_curves(with_curve, drawn, _title(drawn), picture)
        caption = f"{_title(drawn)} against epochs and time"
    else:  # a readout at the start and one at the end make no curve
        done = plot_ends(groups, [(metric, _title(metric)) for metric in metrics], picture)
        caption = "every run at the end of training; bars: means"
    if not done:
        return "No plot: it needs matplotlib, the extra `report` of this package.\n"
    return f"![{caption}]({picture.name})\n"


def _table(groups: Sequence[Group], metrics: Sequence[str]) -> str:
    paper = {
        (group.name, metric): value
        for group in groups for metric in metrics
        if (value := paper_value(group.records[0], metric)) is not None
    }  # fmt: skip
    head = ["method", "seeds"]
    followed = {metric for metric in metrics if _followed([c for g in groups for c in g.curves(metric)])}
    for metric in metrics:
        head += [_title(metric), *(["best epoch"] if metric in followed else [])]
        head += ["paper"] if any(key[1] == metric for key in paper) else []
    head += ["images/s", "minutes", "memory, GB"]
    rows = []
    for group in groups:
        row = [group.name, str(len(group.records))]
        for metric in metrics:
            row += [_spread(group.last(metric))]
            row += [_spread(group.best(metric))] if metric in followed else []
            if any(key[1] == metric for key in paper):
                value = paper.get((group.name, metric))
                row.append("-" if value is None else f"{value:.3f}")
        speed = [r.images_per_second for r in group.records if r.images_per_second]
        memory = [r.peak_memory / 1e9 for r in group.records if r.peak_memory]
        row += [f"{statistics.mean(speed):.0f}" if speed else "-"]
        row += [f"{statistics.mean(r.seconds for r in group.records) / 60:.1f}"]
        rows.append([*row, f"{max(memory):.1f}" if memory else "-"])
    return _markdown(head, rows)


def _check_reference(reference: str, sections: dict[tuple[str, str], list[Record]]) -> None:
    """Raise :class:`ConfigError` unless the tables of results have a method of this name."""
    if not reference:
        return
    results = [section for (_, held_out), section in sections.items() if held_out != "validation"]
    names = {group.name for section in results for group in group_runs(section)}
    if reference not in names:
        raise ConfigError(f"no run is of the reference {reference!r}; there are {', '.join(sorted(names))}")


def _differences(groups: Sequence[Group], metrics: Sequence[str], reference: str) -> str:
    """One row per method, with the difference of each metric, and of their mean, from the reference."""
    base = next((group for group in groups if group.name == reference), None)
    if base is None:
        return ""
    columns = [[metric] for metric in metrics] + ([list(metrics)] if len(metrics) > 1 else [])
    rows, found = [], []
    for group in groups:
        if group is base:
            continue
        cells = [paired_difference(group, base, column) for column in columns]
        found += [cell for cell in cells if cell is not None and math.isfinite(cell.error)]
        counts = sorted({cell.seeds for cell in cells if cell is not None})
        rows.append(
            [group.name, " to ".join(map(str, counts[:1] + counts[1:][-1:])) or "0", *map(_difference, cells)]
        )
    if not rows:
        return ""
    titles = [_title(metric) for metric in metrics] + (["mean"] if len(metrics) > 1 else [])
    note = ""
    if found:
        expected = math.fsum(chance_beyond_two(cell.seeds) for cell in found)
        note = (
            "\nMean difference ± standard error over the seeds that both have; *mean*: of the columns before "
            f"it. In bold where it exceeds two standard errors: {sum(cell.counts for cell in found)} of "
            f"{len(found)} comparisons. If no method differed from the reference, about {expected:.0f} of "
            f"{len(found)} would still do so by chance, because the seeds are few.\n"
        )
    return _markdown(["method", "seeds", *titles], rows) + note


def _followed(curves: Sequence[Sequence[Any]]) -> bool:
    """Whether there are readouts between the first and the last, of which one may be the best."""
    return any(len(curve) > 2 for curve in curves)


def _difference(found: Difference | None) -> str:
    if found is None:
        return "-"
    text = f"{found.mean:+.4f}" + (f" ± {found.error:.4f}" if math.isfinite(found.error) else "")
    return f"**{text}**" if found.counts else text


def _tuning_table(groups: Sequence[Group], metrics: Sequence[str]) -> str:
    """One row per try, with the options in which the tries of a variant differ, the best of them in bold.

    Of several metrics the mean decides, as it does in a study that is tuned by them.
    """
    titles = [_title(metric) for metric in metrics] + (["mean"] if len(metrics) > 1 else [])
    rows = []
    for name in dict.fromkeys(group.name for group in groups):
        tries = [group for group in groups if group.name == name]
        firsts = [group.records[0] for group in tries]
        options, differing = [flat_options(record.config) for record in firsts], varying(firsts)
        values = [[(group.last(metric) or [-math.inf])[0] for metric in metrics] for group in tries]
        means = [math.fsum(of_try) / len(of_try) for of_try in values]
        for option, of_try, mean in zip(options, values, means, strict=True):
            words = ", ".join(f"{key.rpartition('.')[2]} = {option.get(key)}" for key in differing) or "-"
            shown = [*of_try, mean] if len(of_try) > 1 else of_try
            cells = [f"{value:.3f}" if value > -math.inf else "-" for value in shown]
            if -math.inf < mean == max(means):
                cells[-1] = f"**{cells[-1]}**"
            rows.append([name, words, *cells])
    return _markdown(["method", "tried", *titles], rows)


def _notes(records: Sequence[Record], metrics: Sequence[str], groups: Sequence[Group]) -> str:
    """Return what the numbers depend on: protocol, data, code, machine."""
    lines = ["Mean ± standard deviation over seeds at the end of training."]
    if _followed([record.metrics[m].curve for record in records for m in metrics if m in record.metrics]):
        lines = [
            f"{lines[0][:-1]}; *best epoch* is chosen in hindsight, the readout before training included."
        ]
    first = records[0]
    for metric in [metric for metric in metrics if metric.endswith("top1")][:1]:
        count = re.match(r"[1-9]\d*", image_count(first, "query"))
        accuracy = statistics.mean(r.metrics[metric].last for r in records if metric in r.metrics)
        if count is not None and 0 <= accuracy <= 1:
            error = math.sqrt(accuracy * (1 - accuracy) / int(count[0]))
            lines.append(f"One readout on {count[0]} images has a standard error of {error:.3f}.")
    shown = {metric.partition("/")[0] for metric in metrics}
    names = dict.fromkeys(name for record in records for name in record.protocols)
    for name in (name for name in names if name.partition("/")[0] in shown):
        texts = dict.fromkeys(record.protocols[name] for record in records if name in record.protocols)
        lines.append(f"{_TITLES.get(name, name)}: {'; '.join(texts)}.")
    machines = dict.fromkeys(_machine(record) for record in records)
    commits = dict.fromkeys(record.commit[:10] + "+" * record.commit.endswith("+") for record in records)
    lines.append(f"Machine: {'; '.join(machines)}. Commit: {', '.join(filter(None, commits)) or 'unknown'}.")
    lines.append(f"Data: {', '.join(f'{split} {text}' for split, text in _fingerprints(records).items())}.")
    prints = {(*seeds_of(record), str(record.data.get("fingerprint"))) for record in records}
    if renewed := renewed_options(groups):
        more = f" and {len(renewed) - 5} more" if len(renewed) > 5 else ""
        lines.append(
            f"Seeds were run by several versions, whose options differ in {', '.join(renewed[:5])}{more}."
        )
    if len(prints) > len({seeds_of(record) for record in records}):
        lines.append("**Runs of one seed did not see the same images: do not compare them.**")
    return "\n".join(lines) + "\n"


def _fingerprints(records: Sequence[Record]) -> dict[str, str]:
    """Return what each split was; where seeds chose different images, how many choices there were."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for split, text in (record.data.get("fingerprint") or {}).items():
            found.setdefault(split, {})[str(text)] = None
    texts = {split: list(choices) for split, choices in found.items()}
    return {
        split: first + (f" (and {len(more)} other choice{'s' * (len(more) > 1)} of images)" if more else "")
        for split, (first, *more) in texts.items()
    }


def _machine(record: Record) -> str:
    parts = record.hardware
    text = f"{parts.get('cpu')}, {parts.get('cores')} cores, {parts.get('threads')} threads per run"
    return text + (f", {parts['gpu']}" if "gpu" in parts else "") + f", torch {parts.get('torch')}"


def _title(metric: str) -> str:
    place, _, name = metric.partition("/")
    name, _, protocol = name.replace("top1", "top-1").replace("top5", "top-5").partition("/")
    return f"{_TITLES.get(place, place)} {name}" + (f" ({protocol})" if protocol else "")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    if not all(map(math.isfinite, values)):
        return f"{math.fsum(values) / len(values):.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
