"""The tables of a report, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from mmcl_lightning._text import markdown
from mmcl_lightning.studies.columns import Column
from mmcl_lightning.studies.groups import Group, items_of
from mmcl_lightning.studies.naming import option_words
from mmcl_lightning.studies.options import flat_options, varying
from mmcl_lightning.studies.paired import Difference, chance_beyond_two, paired_difference
from mmcl_lightning.studies.paper import paper_value

__all__ = ["differences_table", "is_followed", "markdown_table", "results_table", "tuning_table"]


#: Metrics that an untrained network nearly reaches on small sets of graphs.
_BESIDE_UNTRAINED = "cv/"


def results_table(groups: Sequence[Group], columns: Sequence[Column]) -> str:
    """Return one row per method: means over the seeds, the paper's value, speed and memory."""
    paper = {
        (group.name, column): value
        for group in groups for column in columns
        if group.last(column)
        and (value := paper_value(group.records[0], column.metric, column.protocol)) is not None
    }  # fmt: skip
    head = ["method", "seeds"]
    followed = {column for column in columns if is_followed([c for g in groups for c in g.curves(column)])}
    for column in columns:
        title = markdown(column.title)
        head += [title, f"{title}, best epoch"] if column in followed else [title]
        head += ["paper"] if any(key[1] == column for key in paper) else []
    head += [f"{items_of(groups[0].records[0])}/s", "minutes", "memory, GB"]
    rows = _untrained(groups, columns, head)
    for group in groups:
        row = [markdown(group.name), str(group.seeds)]
        for column in columns:
            row += [_spread(group.last(column))]
            row += [_spread(group.best(column))] if column in followed else []
            if any(key[1] == column for key in paper):
                value = paper.get((group.name, column))
                row.append("-" if value is None else f"{value:.3f}")
        rows.append([*row, *_cost(group)])
    return markdown_table(head, rows)


def _untrained(groups: Sequence[Group], columns: Sequence[Column], head: Sequence[str]) -> list[list[str]]:
    """Return a row of what was read before training, where trained networks hardly differ from that.

    It is the same in every method, so each seed counts once.
    """
    cells: dict[str, str] = {}
    counts = set()
    for column in columns:
        found = {
            seed: metric.curve[0][3]
            for group in groups for seed, metric in group.measured(column).items()
            if column.metric.startswith(_BESIDE_UNTRAINED) and metric.curve[0][1] == 0
        }  # fmt: skip
        if found:
            cells[markdown(column.title)] = _spread(list(found.values()))
            counts.add(str(len(found)))
    cells |= {"method": "untrained", "seeds": " to ".join(sorted(counts))}
    return [[cells.get(name, "-") for name in head]] if counts else []


def _cost(group: Group) -> list[str]:
    """Images per second and minutes of a run, and the most memory, of the runs of a method."""
    speed = [r.images_per_second for r in group.records if r.images_per_second]
    memory = [r.peak_memory / 1e9 for r in group.records if r.peak_memory]
    return [
        f"{statistics.mean(speed):.0f}" if speed else "-",
        f"{statistics.mean(r.seconds for r in group.records) / 60:.1f}",
        f"{max(memory):.1f}" if memory else "-",
    ]


def differences_table(groups: Sequence[Group], columns: Sequence[Column], reference: str) -> str:
    """Return one row per method: differences from the reference, of each column and of their mean."""
    base = next((group for group in groups if group.name == reference), None)
    if base is None or not columns:
        return ""
    compared = [[column] for column in columns] + ([list(columns)] if len(columns) > 1 else [])
    rows, found = [], []
    for group in groups:
        if group is base:
            continue
        cells = [paired_difference(group, base, part) for part in compared]
        found += [cell for cell in cells if cell is not None and cell.is_measured]
        counts = sorted({cell.seeds for cell in cells if cell is not None})
        rows.append(
            [
                markdown(group.name),
                " to ".join(map(str, counts[:1] + counts[1:][-1:])) or "0",
                *map(_difference, cells),
            ]
        )
    if not rows:
        return ""
    note = ""
    if found:
        expected = math.fsum(chance_beyond_two(cell.seeds) for cell in found)
        note = (
            "\nMean difference ± standard error over the seeds that both have; *mean*: of the columns before "
            f"it. In bold where it exceeds two standard errors: {sum(cell.counts for cell in found)} of "
            f"{len(found)} comparisons. If no method differed from the reference, about {expected:.0f} of "
            f"{len(found)} would still do so by chance, because the seeds are few.\n"
        )
    return markdown_table(["method", "seeds", *_titles(columns)], rows) + note


def tuning_table(groups: Sequence[Group], columns: Sequence[Column]) -> str:
    """Return one row per try, with the options in which the tries of a variant differ, the best in bold.

    Of several columns the mean decides, as it does in a study that is tuned by them.
    """
    rows = []
    for name in dict.fromkeys(group.name for group in groups):
        tries = [group for group in groups if group.name == name]
        configs = [group.records[0].config for group in tries]
        options, differing = [flat_options(config) for config in configs], varying(configs)
        values = [[(group.last(column) or [-math.inf])[0] for column in columns] for group in tries]
        means = [math.fsum(of_try) / max(1, len(of_try)) for of_try in values]
        for option, of_try, mean in zip(options, values, means, strict=True):
            said = [option_words(key, option.get(key)).replace("=", " = ", 1) for key in differing]
            shown = [*of_try, mean] if len(of_try) > 1 else of_try
            cells = [_number(value) if value > -math.inf else "-" for value in shown]
            if cells and -math.inf < mean == max(means):
                cells[-1] = f"**{cells[-1]}**"
            rows.append([markdown(name), markdown(", ".join(said)) or "-", *cells])
    return markdown_table(["method", "tried", *_titles(columns)], rows)


def is_followed(curves: Sequence[Sequence[Any]]) -> bool:
    """Whether there are readouts between the first and the last, of which one may be the best."""
    return any(len(curve) > 2 for curve in curves)


def _titles(columns: Sequence[Column]) -> list[str]:
    return [markdown(column.title) for column in columns] + (["mean"] if len(columns) > 1 else [])


def _difference(found: Difference | None) -> str:
    if found is None:
        return "-"
    text = _number(found.mean, "+.4") + (
        f" ± {_number(found.error, '.4')}" if math.isfinite(found.error) else ""
    )
    return f"**{text}**" if found.counts else text


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return _number(values[0])
    if not all(map(math.isfinite, values)):
        return _number(sum(values) / len(values))
    return f"{_number(statistics.mean(values))} ± {_number(statistics.stdev(values))}"


def _number(value: float, digits: str = ".3") -> str:
    """Return a number with digits behind the point, or, of a run that went wrong, with a power of ten."""
    return f"{value:{digits}{'f' if not abs(value) >= 1e6 else 'g'}}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return cells as a table.

    Args:
        head: Its first line.
        rows: The others.
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
