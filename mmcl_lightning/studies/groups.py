"""Which runs stand beside each other in a report, and which are seeds of one method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmcl_lightning.ledger import NOT_HASHED, Record, config_hash

__all__ = [
    "Group",
    "finished_and_others",
    "flat_options",
    "group_runs",
    "image_count",
    "in_sections",
    "renewed_options",
    "run_name",
    "seeds_of",
    "varying",
    "without_copies",
]


#: Options in which the seeds of a method differ.
_OF_A_SEED = ("data.init_args.seed", "model.init_args.checkpoint")


@dataclass(frozen=True)
class Group:
    """The runs of one variant: equal but for the seed."""

    name: str
    records: tuple[Record, ...]

    def last(self, metric: str) -> list[float]:
        """Value at the end of each run that has the metric."""
        return [record.metrics[metric].last for record in self.records if metric in record.metrics]

    def curves(self, metric: str) -> list[list[list[float]]]:
        """Curve of each run that has the metric; see :class:`~mmcl_lightning.ledger.Metric`."""
        return [record.metrics[metric].curve for record in self.records if metric in record.metrics]

    def moves(self, metric: str) -> bool:
        """Whether there is a curve to draw: the k-NN of a frozen backbone, for one, never changes."""
        return any(len({point[3] for point in curve}) > 1 for curve in self.curves(metric))

    def best(self, metric: str) -> list[float]:
        """Best value of each run that has the metric."""
        return [record.metrics[metric].best for record in self.records if metric in record.metrics]


def in_sections(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Group records by what they may be compared in; results on test images come first."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        data = f"{record.data.get('class')}, {image_count(record, 'pretrain')} training images"
        batch = (record.config.get("data", {}).get("init_args") or {}).get("batch_size")
        data += "" if batch is None else f", batch {batch}"
        found.setdefault((data, record.data.get("held_out", "test")), []).append(record)
    return dict(sorted(found.items(), key=lambda item: item[0][1] == "validation"))


def image_count(record: Record, split: str) -> str:
    """Return the number of images of a split as the fingerprint has it."""
    text = str((record.data.get("fingerprint") or {}).get(split, "?"))
    return text.split(" ")[0]


def without_copies(records: Iterable[Record]) -> list[Record]:
    """Return each record once: a study files those of its runs a second time, with their label."""
    found: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        key = (record.started, record.config_hash, *seeds_of(record), str(record.data), record.seconds)
        found.setdefault(key, {})[record.label] = record
    kept = []
    for labelled in found.values():
        kept += [record for label, record in labelled.items() if label or len(labelled) == 1]
    return kept


def finished_and_others(records: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """Return the runs that count, and a line on each other that no later one finished."""
    latest: dict[tuple[Any, ...], Record] = {}
    others: list[Record] = []
    for record in sorted(records, key=lambda r: (r.started, r.seconds)):  # a resumed run keeps its start
        if record.status != "finished":
            others.append(record)
            continue
        if (key := _run(record)) in latest:
            others.append(latest[key])
        latest[key] = record
    lines = []
    for record in others:
        if record.status == "finished":
            lines.append(f"* {run_name(record)}, seed {record.seed}: run again later, which counts")
        elif _run(record) not in latest:
            lines.append(f"* {run_name(record)}, seed {record.seed}: {record.status}")
    return list(latest.values()), lines


def group_runs(records: Sequence[Record], tries: bool = False) -> list[Group]:
    """Group runs that differ in their seeds only, in the order of their first start.

    Args:
        records: The runs.
        tries: Leave the names of methods as they are where several configurations have the same.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda r: r.started):
        found.setdefault((run_name(record), _variant(record)), []).append(record)
    alike: dict[str, list[Record]] = {}
    for (name, _), group in found.items():
        alike.setdefault(name, []).append(group[0])
    return [
        Group(name if tries else _distinct_name(name, group[0], alike[name]), tuple(group))
        for (name, _), group in found.items()
    ]


def varying(records: Sequence[Record]) -> list[str]:
    """Return the options, as dotted names, in which the configurations of runs differ."""
    flat = [flat_options(record.config) for record in records]
    names = dict.fromkeys(name for options in flat for name in options)
    return [name for name in names if len({str(options.get(name)) for options in flat}) > 1]


def flat_options(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the options of a configuration under dotted names, but for what is no option of the run."""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for name, part in config.items():
        if prefix or name not in NOT_HASHED:
            flat |= flat_options(part, f"{prefix}.{name}" if prefix else name)
    return flat


def _distinct_name(name: str, record: Record, others: Sequence[Record]) -> str:
    """Return the name of a method with the options in which it differs from others of the same name."""
    if len(others) == 1:
        return name
    options = flat_options(record.config)
    said = [
        f"{key.rpartition('.')[2]}={options.get(key)}"
        for key in varying(others)
        if key != "data.init_args.seed"
    ]
    return f"{name} ({', '.join(said[:3])})" if said else name


def run_name(record: Record) -> str:
    """Return what a table calls a run; of an evaluation it says what is evaluated."""
    if record.label or record.pretraining is None:
        return record.name
    return f"{record.method} of {record.pretraining['name']}"


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
        return config_hash({"arguments": _without_seeds(record.arguments)})
    if record.pretraining is None:
        return record.config_hash
    model = record.config.get("model") or {}
    options = {k: v for k, v in (model.get("init_args") or {}).items() if k != "checkpoint"}
    config = {**record.config, "model": {**model, "init_args": options}}
    return config_hash(config) + config_hash(record.pretraining["config"])


def renewed_options(groups: Iterable[Group]) -> list[str]:
    """Return the options in which the runs of one method differ, seeds apart: those of several versions."""
    found: dict[str, None] = {}
    for group in groups:
        if len({record.config_hash for record in group.records}) > 1:
            found |= dict.fromkeys(name for name in varying(group.records) if name not in _OF_A_SEED)
    return list(found)


def _without_seeds(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a run without its seeds."""
    kept, values = [], iter(arguments)
    for argument in values:
        name, has_value, _ = argument.partition("=")
        if name not in ("--seed_everything", "--data.seed"):
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
