"""What the numbers of a report depend on, in words below the table."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from mmcl_lightning._text import markdown
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.columns import Column, late_metrics, metric_title
from mmcl_lightning.studies.groups import Group, image_count, items_of, renewed_options, run_name, seeds_of
from mmcl_lightning.studies.tables import is_followed

__all__ = ["notes"]


def notes(records: Sequence[Record], columns: Sequence[Column], groups: Sequence[Group]) -> str:
    """Return the spread, the protocol of every column, the machine, the code and the images.

    Args:
        records: Runs of the table.
        columns: Its columns.
        groups: Its rows.
    """
    lines = ["Mean ± standard deviation over seeds at the end of training."]
    if any(is_followed(group.curves(column)) for group in groups for column in columns):
        lines = [
            f"{lines[0][:-1]}; *best epoch* is chosen in hindsight, the readout before training included."
        ]
    lines += _error_of_one(records, columns)
    for column in columns:
        if texts := column.texts(records):
            lines.append(f"{markdown(column.title)}: {markdown('; '.join(texts))}.")
    lines += _left_out(records, columns)
    machines = dict.fromkeys(_machine(record) for record in records)
    commits = dict.fromkeys(record.commit[:10] + "+" * record.commit.endswith("+") for record in records)
    code = markdown(", ".join(filter(None, commits)) or "unknown")
    lines.append(f"Machine: {markdown('; '.join(machines))}. Commit: {code}.")
    data = ", ".join(f"{split} {text}" for split, text in _fingerprints(records).items())
    lines.append(f"Data: {markdown(data)}.")
    if renewed := renewed_options(groups):
        more = f" and {len(renewed) - 5} more" if len(renewed) > 5 else ""
        names = markdown(", ".join(renewed[:5]))
        lines.append(f"Seeds were run by several versions, whose options differ in {names}{more}.")
    prints = {(*seeds_of(record), str(record.data.get("fingerprint"))) for record in records}
    if len(prints) > len({seeds_of(record) for record in records}):
        lines.append(
            f"**Runs of one seed did not see the same {items_of(records[0])}: do not compare them.**"
        )
    return "".join(f"* {line}\n" for line in lines)


def _error_of_one(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    """Return a line on the error that the number of images leaves of an accuracy, where it is known."""
    count = re.match(r"[1-9]\d{0,17}(?!\d)", image_count(records[0], "query"))
    for column in [column for column in columns if column.metric.endswith("top1")][:1]:
        values = [metric.last for record in records if (metric := column.of(record)) is not None]
        accuracy = statistics.mean(values) if values else math.nan
        if count is not None and 0 <= accuracy <= 1:
            error = math.sqrt(accuracy * (1 - accuracy) / int(count[0]))
            return [f"One readout on {count[0]} {items_of(records[0])} has a standard error of {error:.3f}."]
    return []


def _left_out(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    """Return a line on numbers that were read for the last time before the end of their run."""
    shown = {column.metric for column in columns}
    names = dict.fromkeys(name for record in records for name in record.metrics)
    late = late_metrics(records, [m for m in names if m.endswith("/top1") or m.rpartition("/")[0] in shown])
    texts = [
        f"{metric_title(metric)} of {run_name(record)}, seed {record.seed} (last read at step "
        f"{record.metrics[metric].curve[-1][1]:.0f} of {record.steps})"
        for record, metric in late
    ]
    return [f"Not read at the end of training, and left out: {markdown('; '.join(texts))}."] if texts else []


def _fingerprints(records: Sequence[Record]) -> dict[str, str]:
    """Return what each split was; where seeds chose different images, how many choices there were."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for split, text in (record.data.get("fingerprint") or {}).items():
            found.setdefault(split, {})[str(text)] = None
    texts = {split: list(choices) for split, choices in found.items()}
    items = items_of(records[0])
    return {
        split: first + (f" (and {len(more)} other choice{'s' * (len(more) > 1)} of {items})" if more else "")
        for split, (first, *more) in texts.items()
    }


def _machine(record: Record) -> str:
    parts = record.hardware
    text = f"{parts.get('cpu')}, {parts.get('cores')} cores, {parts.get('threads')} threads per run"
    return text + (f", {parts['gpu']}" if "gpu" in parts else "") + f", torch {parts.get('torch')}"
