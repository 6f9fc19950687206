"""``mmcl transfer``: judge one backbone on the data sets of the paper's transfer tables."""

from __future__ import annotations

import argparse
import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmcl_lightning._files import whole_text
from mmcl_lightning._text import markdown, say
from mmcl_lightning.datamodules.transfer_names import FEW_SHOT_SETS, LINEAR_SETS
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.command import run_stoppable
from mmcl_lightning.studies.paper import few_shot_value
from mmcl_lightning.studies.study import Run, Study, Variant
from mmcl_lightning.studies.sweep import Sweep
from mmcl_lightning.studies.tables import markdown_table

__all__ = ["few_shot_table", "linear_table", "transfer"]

_NAMED = ("random", "pretrained")  # weights that are no file


class Task(NamedTuple):
    """A transfer evaluation of a backbone."""

    recipe: str
    command: str
    """Which method of the trainer leaves the record."""
    sets: tuple[str, ...]
    measure: Callable[[str], tuple[str, str]]
    """From a set to its metric, and what tables call that."""
    table: Callable[..., str]
    purpose: str


def transfer(arguments: list[str]) -> None:
    """Run a transfer evaluation on every set, one process each, and write the table.

    Raises:
        SystemExit: With code 1 if a set failed.
    """
    options, extra = _parser().parse_known_args(arguments)
    task = TASKS[options.task]
    for name in options.sets or ():
        if name not in task.sets:
            near = difflib.get_close_matches(name, task.sets, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--sets takes {', '.join(task.sets)}; got {name!r}{hint}")
    if options.out is not None and options.out.suffix != ".md":
        raise ConfigError(f"the table is Markdown: --out must end in .md, got {options.out}")
    weights = _weights(options.checkpoint, options.backbone)
    shared = {
        "config": task.recipe, "model.checkpoint": options.checkpoint, "model.backbone": options.backbone
    }  # fmt: skip
    if options.task == "linear":
        shared["data.normalize"] = options.normalize
    elif options.normalize == "none":  # would not undo a mean and std that the weights tell of
        raise ConfigError(
            "few_shot leaves images in [0, 1] where the weights say nothing: leave --normalize out"
        )
    elif options.normalize is not None:
        shared |= _statistics(options.normalize)
    names = [name for name in task.sets if name in (options.sets or task.sets)]
    study = Study(
        f"{options.task}_{weights}",
        {name: value for name, value in shared.items() if value is not None},
        tuple(Variant(name, {"data.dataset": name}) for name in names),
    )
    folder = options.runs / "transfer" / study.name
    work = _Transfer(study, folder, extra=["--data.root", options.root, *extra])
    work.task = task
    run_stoppable(work)
    found = {name: record for name in names if (record := work.record(name)) is not None}
    out = options.out or folder / "TRANSFER.md"
    text = task.table(found, names, f"{options.checkpoint} ({weights})", work.failures)
    with whole_text(out) as file:
        file.write(text)
    say(f"\n{text}\nTable: {out}")
    if len(found) < len(names):
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmcl transfer",
        description="Judge a backbone on the data sets of the paper's transfer tables. What is finished "
        "is never run again, unless the weights or the options have changed.",
        epilog="Further options go to every run, e.g. --data.num_workers 4",
    )
    purposes = "; ".join(f"{name}: {task.purpose}" for name, task in TASKS.items())
    parser.add_argument("task", choices=list(TASKS), help=purposes)
    parser.add_argument("--checkpoint", required=True, metavar="PATH", help="weights, as model.checkpoint")
    parser.add_argument("--backbone", metavar="NAME", help="the network, where the weights do not say it")
    parser.add_argument("--root", default="data", metavar="PATH", help="folder of all data sets (data)")
    parser.add_argument(
        "--sets", nargs="+", metavar="NAME",
        help=f"(all: {'; '.join(f'{name}: ' + ' '.join(task.sets) for name, task in TASKS.items())})",
    )  # fmt: skip
    parser.add_argument(
        "--normalize", choices=["none", "imagenet", "cifar"], help="where the weights do not say it"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs (runs)")
    parser.add_argument("--out", type=Path, help="table to write (TRANSFER.md in the folder of these runs)")
    return parser


def _weights(checkpoint: str, backbone: str | None) -> str:
    """Return what tells the weights from others: a digest of their file, or their name."""
    if checkpoint in _NAMED:
        return "_".join([checkpoint, *([backbone.replace(":", "_").replace("/", "_")] if backbone else [])])
    if not Path(checkpoint).is_file():
        names = " or ".join(_NAMED)
        raise ConfigError(f"--checkpoint {checkpoint}: there is no such file, nor is it {names}")
    with open(checkpoint, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:12]


class _Transfer(Sweep):
    """A study whose variants are data sets, each with a metric of its own."""

    task: Task

    def _arguments(self, run: Run) -> list[str]:
        _, *options = super()._arguments(run)  # which begin with fit
        return [self.task.command, *options]

    def record(self, name: str) -> Record | None:
        """Return the record of a set, or None where its run has not finished."""
        variant = next(variant for variant in self.study.variants if variant.name == name)
        (run,) = self.study.runs(variant, {})
        return Record.read(self._ledger(run)) if self._finished(run) else None

    def _score(self, run: Run) -> str:
        metric, title = self.task.measure(run.label)
        return f"{title} {100 * Record.read(self._ledger(run)).metrics[metric].last:.2f} %"


def _statistics(name: str) -> dict[str, Any]:
    """Return the options of mean and std of a name, where the data module has none for it."""
    from mmcl_lightning.datamodules.transfer import NORMALIZE

    mean, std = NORMALIZE[name]
    return {"data.mean": list(mean), "data.std": list(std)}


def _linear_measure(name: str) -> tuple[str, str]:
    """Return the metric of a set, and what tables call it."""
    from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS  # needs torch, which --help does not
    from mmcl_lightning.modules.measures import MEASURES

    metric = TRANSFER_SETS[name].metric
    return f"logistic/{metric}", MEASURES[metric]


def linear_table(
    records: Mapping[str, Record], names: Sequence[str], weights: str, failures: Sequence[str] = ()
) -> str:
    """Return the table of linear transfer as Markdown.

    Args:
        records: Records of finished runs by set.
        names: The sets that were asked for.
        weights: The weights in words.
        failures: Why others have not finished.
    """
    rows = [[name, _linear_measure(name)[1], *"----"] for name in names if name not in records]
    rows = [[name, *_cells(name, record)] for name, record in records.items()] + rows
    head = ["set", "metric", "test, %", "C", "validation, %", "images"]
    lines = [
        "# Linear transfer", "", f"Weights: {markdown(weights)}", "", markdown_table(head, rows),
        "The paper prints no values of linear many-shot transfer, only of fine-tuning: none of its values "
        "stands beside these. Images: training and validation + test; those marked * are not the published "
        "ones, and values of them compare with no others. What the paper calls mAP is the mean per-class "
        "accuracy but for voc2007.", "",
    ]  # fmt: skip
    for name, record in records.items():
        protocol = record.protocols.get(_linear_measure(name)[0], "unknown")
        lines.append(f"* {name}: {markdown(protocol)}; {markdown(record.data.get('prepared', ''))}")
    return _page(lines, failures)


def _cells(name: str, record: Record) -> list[str]:
    from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS

    of_set, (metric, title) = TRANSFER_SETS[name], _linear_measure(name)

    def value(metric: str, form: str, factor: float = 1) -> str:
        found = record.metrics.get(metric)
        return "-" if found is None else f"{factor * found.last:{form}}"

    shown = record.data.get("fingerprint") or {}
    counts = [int(str(shown.get(use, "0")).split(" ")[0]) for use in ("bank", "query")]
    train, validation, test = of_set.sizes
    mark = "" if counts == [train + (validation or 0), test] else " *"
    return [
        title, value(metric, ".2f", 100), value("logistic/chosen_C", ".3g"),
        value("logistic/validation", ".2f", 100), f"{counts[0]:,} + {counts[1]:,}{mark}",
    ]  # fmt: skip


def few_shot_table(
    records: Mapping[str, Record], names: Sequence[str], weights: str, failures: Sequence[str] = ()
) -> str:
    """Return the table of few-shot transfer as Markdown.

    Args:
        records: Records of finished runs by set.
        names: The sets that were asked for.
        weights: The weights in words.
        failures: Why others have not finished.
    """
    rows = []
    for name in [*records, *(name for name in names if name not in records)]:
        record = records.get(name)
        found = {} if record is None else record.metrics
        values = [
            f"{100 * found[f'few_shot/{part}'].last:.2f}" for part in ("accuracy", "half_width") if found
        ]
        compares = record is not None and _is_the_papers(record)
        printed = [few_shot_value(method, name) if compares else None for method in ("MMCL", "supervised")]
        shown = ["" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}" for value in printed]
        rows.append([name, " ± ".join(values) or "-", *shown])
    head = ["set", "accuracy, %", "paper's MMCL", "supervised"]
    lines = [
        "# Few-shot transfer", "", f"Weights: {markdown(weights)}", "", markdown_table(head, rows),
        "± is half of the 95 % interval over episodes of one network, and says nothing about another "
        "training. The paper's columns are empty where a run is not the paper's: ResNet-50, images of 224 "
        "pixels, 600 episodes, 5-way 20-shot. Its values of isic and chestx equal its supervised ones digit "
        "for digit.", "",
    ]  # fmt: skip
    for name, record in records.items():
        lines.append(f"* {name}: {markdown(record.protocols.get('few_shot/accuracy', 'unknown'))}")
    return _page(lines, failures)


def _page(lines: Sequence[str], failures: Sequence[str]) -> str:
    """Return lines as a page, which ends with what is missing."""
    missing = ["", "Missing:", "", *(f"* {markdown(failure)}" for failure in failures)] if failures else []
    return "\n".join([*lines, *missing]) + "\n"


def _is_the_papers(record: Record) -> bool:
    """Whether a run is one of the paper's few-shot runs, but for its weights."""
    protocol = record.protocols.get("few_shot/accuracy", "")
    model = (record.config.get("model") or {}).get("init_args") or {}
    usual = protocol.startswith("5-way 20-shot, 15 queries a class, 600 episodes") and "224 x 224" in protocol
    return usual and model.get("backbone") == "resnet50"


TASKS = {
    "linear": Task(
        "transfer_linear.yaml", "fit", LINEAR_SETS, _linear_measure, linear_table,
        "logistic regression on frozen features",
    ),
    "few_shot": Task(
        "few_shot.yaml", "test", FEW_SHOT_SETS, lambda name: ("few_shot/accuracy", "accuracy"),
        few_shot_table, "nearest mean of a few labelled images of each class",
    ),
}  # fmt: skip
