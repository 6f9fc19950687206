"""Which runs stand beside each other in a report, and which are seeds of one method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmcl_lightning.ledger import SERVING, Metric, Record, config_hash
from mmcl_lightning.studies.columns import Column
from mmcl_lightning.studies.naming import distinct_names, method_name
from mmcl_lightning.studies.options import training_part, varying

__all__ = [
    "Group",
    "finished_and_others",
    "group_runs",
    "identity",
    "image_count",
    "in_sections",
    "items_of",
    "renewed_options",
    "run_name",
    "seeds_of",
    "without_copies",
]

#: Options in which the seeds of a method differ.
_OF_A_SEED = ("data.init_args.seed", "model.init_args.checkpoint")


@dataclass(frozen=True)
class Group:
    """The runs of one variant: equal but for the seed, and for what was read from them."""

    name: str
    records: tuple[Record, ...]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len({seeds_of(record) for record in self.records})

    def measured(self, column: Column) -> dict[tuple[Any, ...], Metric]:
        """What the runs that have a column measured, by their seeds; of several runs of a seed the latest."""
        found = {}
        for record in sorted(self.records, key=lambda r: r.started):
            if (metric := column.of(record)) is not None:
                found[seeds_of(record)] = metric
        return found

    def last(self, column: Column) -> list[float]:
        """Value at the end of each run that has the column."""
        return [metric.last for metric in self.measured(column).values()]

    def curves(self, column: Column) -> list[list[list[float]]]:
        """Curve of each run that has the column; see :class:`~mmcl_lightning.ledger.Metric`."""
        return [metric.curve for metric in self.measured(column).values()]

    def moves(self, column: Column) -> bool:
        """Whether there is a curve to draw: the k-NN of a frozen backbone, for one, never changes."""
        return any(len({point[3] for point in curve}) > 1 for curve in self.curves(column))

    def best(self, column: Column) -> list[float]:
        """Best value of each run that has the column."""
        return [metric.best for metric in self.measured(column).values()]


def in_sections(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Group records by what they may be compared in; results on test images come first."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        data = f"{_data_name(record)}, {image_count(record, 'pretrain')} {_kind(record)}"
        batch = (record.config.get("data", {}).get("init_args") or {}).get("batch_size")
        data += "" if batch is None or not record.steps else f", batch {batch}"
        found.setdefault((data, record.data.get("held_out", "test")), []).append(record)
    return dict(sorted(found.items(), key=lambda item: item[0][1] == "validation"))


def _data_name(record: Record) -> str:
    """Return the name of the data set, with its folder where that says which one it is."""
    name = str(record.data.get("class")).removesuffix("DataModule")
    name = {
        "ImageFolder": "Image folder",
        "Shapes": "Rendered shapes (synthetic)",
        "FewShot": "Few-shot",
        "Normals": "Surface normals",
        "VOCDetection": "Detection",
    }.get(name, name)
    folder = record.data.get("folder")
    return f"{name} {folder}" if folder else name


def _kind(record: Record) -> str:
    """Return what the items of a data set are: of one without splits, none is trained on."""
    found = record.data.get("fingerprint") or {}
    alike = found and found.get("query") == found.get("pretrain")
    return items_of(record) if alike else f"training {items_of(record)}"


def image_count(record: Record, split: str) -> str:
    """Return the number of images of a split as the fingerprint has it."""
    text = str((record.data.get("fingerprint") or {}).get(split, "?"))
    return text.split(" ")[0]


def identity(record: Record) -> tuple[Any, ...]:
    """Return what a record has in common with its copies alone."""
    return record.started, record.config_hash, *seeds_of(record), str(record.data), record.seconds


def items_of(record: Record) -> str:
    """Return what the items of a data set are called, such as images or graphs, as the fingerprint has it."""
    for text in (record.data.get("fingerprint") or {}).values():
        if found := re.match(r"\d+ ([a-z]+),", str(text)):
            return found[1]
    return "images"


def without_copies(records: Iterable[Record]) -> list[Record]:
    """Return each record once: a study files those of its runs a second time, with their label."""
    found: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        found.setdefault(identity(record), {})[record.label] = record
    kept = []
    for labelled in found.values():
        kept += [record for label, record in labelled.items() if label or len(labelled) == 1]
    return kept


def finished_and_others(records: Iterable[Record]) -> tuple[list[Record], list[tuple[Record, str]]]:
    """Return the runs that count, and each other with the reason why it does not.

    A run that was made again counts no more, unless it was read in another way.
    """
    latest: dict[tuple[Any, ...], Record] = {}
    others: list[Record] = []
    for record in sorted(records, key=lambda r: (r.started, r.seconds)):  # a resumed run keeps its start
        if record.status != "finished":
            others.append(record)
            continue
        if (key := (_run(record), str(sorted(record.protocols.items())))) in latest:
            others.append(latest[key])
        latest[key] = record
    finished = {run for run, _ in latest}
    reasons = []
    for record in others:
        why = "run again later, which counts" if record.status == "finished" else record.status
        if record.status != "finished" and _run(record) in finished:
            why += "; another record has the finished run, which counts"
        reasons.append((record, why))
    return list(latest.values()), reasons


def group_runs(records: Sequence[Record], tries: bool = False) -> list[Group]:
    """Group runs that differ in their seeds only, in the order of their first start.

    Args:
        records: The runs.
        tries: Leave the names of methods as they are where several configurations have the same.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda r: r.started):
        found.setdefault((run_name(record), _variant(record)), []).append(record)
    names = {key: key[0] for key in found}
    for name in () if tries else {name for name, _ in found}:
        alike = [key for key in found if key[0] == name]
        if len(alike) > 1:
            options = [_options(found[key][0]) for key in alike]
            names |= dict(zip(alike, distinct_names(name, options), strict=True))
    return [Group(names[key], tuple(group)) for key, group in found.items()]


def run_name(record: Record) -> str:
    """Return what a table calls a run; of an evaluation it says what is evaluated."""
    if record.label:
        return record.label
    origin = None if record.pretraining is None else str(record.pretraining["name"])
    checkpoint = _model_options(record.config).get("checkpoint")
    return method_name(record.method, origin, None if checkpoint is None else str(checkpoint))


def _run(record: Record) -> tuple[Any, ...]:
    """Return what two records have in common that are of one run, made again or resumed."""
    data = str(record.data.get("fingerprint"))  # the same options on another folder are another run
    return run_name(record), _variant(record), data, *seeds_of(record)


def _variant(record: Record) -> str:
    """Return the hash of what a run did, seeds apart.

    Of a run of a study these are its arguments: the configuration besides has all defaults, of which a later
    version may have more. :func:`renewed_options` names them.
    """
    if record.label and record.arguments:
        return config_hash({"arguments": _deciding(record.arguments)})
    config = _options(record)
    return config_hash({**config, "pretraining": None}) + config_hash(config.get("pretraining") or {})


def _options(record: Record) -> dict[str, Any]:
    """Return what the result of a run depends on; of an evaluation also the options of its pretraining."""
    config = training_part(record.config)
    if record.pretraining is None:
        return config
    model = {**(config.get("model") or {}), "init_args": dict(_model_options(config))}
    model["init_args"].pop("checkpoint", None)
    return {**config, "model": model, "pretraining": training_part(record.pretraining["config"])}


def _model_options(config: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = (config.get("model") or {}).get("init_args") or {}
    return options


def renewed_options(groups: Iterable[Group]) -> list[str]:
    """Return the options in which the runs of one method differ, seeds apart: those of several versions."""
    found: dict[str, None] = {}
    for group in groups:
        if len({record.config_hash for record in group.records}) > 1:
            differing = varying([training_part(record.config) for record in group.records])
            found |= dict.fromkeys(name for name in differing if name not in _OF_A_SEED)
    return list(found)


def _deciding(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a run without its seeds, and without what changes no number of it."""
    passed_over = {"--seed_everything", "--data.seed", *(f"--data.{name}" for name in SERVING)}
    kept, values = [], iter(arguments)
    for argument in values:
        name, has_value, _ = argument.partition("=")
        if name not in passed_over:
            kept.append(argument)
        elif not has_value:
            next(values, None)
    return kept


def seeds_of(record: Record) -> tuple[Any, ...]:
    """Return what tells the runs of a variant apart: their seeds, and those of what they evaluate."""
    origin = record.pretraining or {}
    configs = (record.config, origin.get("config") or {})
    data = [((config.get("data") or {}).get("init_args") or {}).get("seed") for config in configs]
    own = record.started if record.seed is None else record.seed  # without a seed each run is one more
    return own, origin.get("seed"), *data
