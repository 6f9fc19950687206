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
    flat_options,
    group_runs,
    image_count,
    in_sections,
    seeds_of,
    sort_out,
    varying,
    without_copies,
)
from mmcl_lightning.studies.paper import paper_value

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
        only: Files of records to count, of those in the folder; ``None`` for all.
        missing: A line on each run that left no record, to be listed.

    Returns:
        The Markdown text.

    Raises:
        DataError: If there is no record, or one cannot be read.
        ConfigError: If no run logged a metric that was asked for, or ``out`` is not a ``.md`` file.
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
    finished, rest = sort_out(records)
    rest += [f"* {line}" for line in missing]
    shown = [metric for metric in metrics or _METRICS if metric in known]
    out.parent.mkdir(parents=True, exist_ok=True)
    parts, pictures = [f"# {title}\n"], 0
    for (data, held_out), section in in_sections(finished).items():
        groups = group_runs(section, tries=held_out == "validation")
        columns = [metric for metric in shown if any(group.last(metric) for group in groups)]
        if held_out == "validation":
            tries = _tuning_table(groups, columns[0] if columns else _METRICS[0])
            parts.append(f"## Tuning: {data}, validation part\n\n{tries}")
            continue
        parts.append(f"## {data}\n\n{_table(groups, columns)}\n{_notes(section, columns)}")
        picture = out.with_name(f"{out.stem}{f'_{pictures + 1}' if pictures else ''}.png")
        drawn = next((metric for metric in columns if any(group.moves(metric) for group in groups)), None)
        if drawn is not None and _plot([group for group in groups if group.curves(drawn)], drawn, picture):
            pictures += 1
            parts.append(f"![{_title(drawn)} against epochs and time]({picture.name})\n")
        elif drawn is not None:
            parts.append("No plot: it needs matplotlib, the extra `report` of this package.\n")
    if rest:
        parts.append("## Not counted\n\n" + "\n".join(rest) + "\n")
    text = "\n".join(parts)
    out.write_text(text, encoding="utf-8")
    return text


def _table(groups: Sequence[Group], metrics: Sequence[str]) -> str:
    paper = {
        (group.name, metric): value
        for group in groups for metric in metrics
        if (value := paper_value(group.records[0], metric)) is not None
    }  # fmt: skip
    head = ["method", "seeds"]
    for metric in metrics:
        head += [_title(metric), "best epoch"]
        head += ["paper"] if any(key[1] == metric for key in paper) else []
    head += ["images/s", "minutes", "memory, GB"]
    rows = []
    for group in groups:
        row = [group.name, str(len(group.records))]
        for metric in metrics:
            row += [_spread(group.last(metric)), _spread(group.best(metric))]
            if any(key[1] == metric for key in paper):
                value = paper.get((group.name, metric))
                row.append("-" if value is None else f"{value:.3f}")
        speed = [r.images_per_second for r in group.records if r.images_per_second]
        memory = [r.peak_memory / 1e9 for r in group.records if r.peak_memory]
        row += [f"{statistics.mean(speed):.0f}" if speed else "-"]
        row += [f"{statistics.mean(r.seconds for r in group.records) / 60:.1f}"]
        rows.append([*row, f"{max(memory):.1f}" if memory else "-"])
    return _markdown(head, rows)


def _tuning_table(groups: Sequence[Group], metric: str) -> str:
    """One row per try, with the options in which the tries of a variant differ, the best of them in bold."""
    rows = []
    for name in dict.fromkeys(group.name for group in groups):
        tries = [group for group in groups if group.name == name]
        firsts = [group.records[0] for group in tries]
        options, differing = [flat_options(record.config) for record in firsts], varying(firsts)
        values = [group.last(metric)[0] if group.last(metric) else -math.inf for group in tries]
        for option, value in zip(options, values, strict=True):
            words = ", ".join(f"{key.rpartition('.')[2]} = {option.get(key)}" for key in differing) or "-"
            text = f"{value:.3f}" if value > -math.inf else "-"
            rows.append([name, words, f"**{text}**" if -math.inf < value == max(values) else text])
    return _markdown(["method", "tried", _title(metric)], rows)


def _notes(records: Sequence[Record], metrics: Sequence[str]) -> str:
    """Return what the numbers depend on: protocol, data, code, machine."""
    lines = [
        "Mean ± standard deviation over seeds at the end of training; *best epoch* is chosen in hindsight, "
        "the readout before training included."
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


def _plot(groups: Sequence[Group], metric: str, path: Path) -> bool:
    """Draw mean and range over seeds against epochs and minutes; return whether matplotlib is there."""
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
    axes[0].set_ylabel(_title(metric))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _title(metric: str) -> str:
    place, _, name = metric.partition("/")
    return f"{_TITLES.get(place, place)} {name}".replace("top1", "top-1").replace("top5", "top-5")


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
