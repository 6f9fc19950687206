"""``mmcl transfer``: judge one backbone on the data sets of the paper's transfer tables."""

from __future__ import annotations

import argparse
import difflib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmcl_lightning._files import whole_text
from mmcl_lightning._next import say_next
from mmcl_lightning._text import say
from mmcl_lightning.datamodules.transfer_names import FEW_SHOT_SETS, MANY_SHOT_SETS
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.command import run_stoppable
from mmcl_lightning.studies.study import Run, Study, Variant
from mmcl_lightning.studies.sweep import Sweep
from mmcl_lightning.studies.transfer_tables import (
    JudgedSet,
    few_shot_table,
    finetune_table,
    linear_table,
    set_measure,
)

__all__ = ["transfer"]

_NAMED = ("random", "pretrained")  # weights that are no file
_SEARCH = {"data.part": "search"}  # options of the runs that choose


@dataclass(frozen=True)
class Task:
    """A transfer evaluation of a backbone."""

    recipe: str
    command: str
    """Which method of the trainer leaves the record."""
    sets: tuple[str, ...]
    measure: Callable[[str], tuple[str, str]]
    """From a set to its metric, and what tables call that."""
    table: Callable[[Sequence[JudgedSet], str, Sequence[str]], str]
    purpose: str
    tune: dict[str, list[Any]] = field(default_factory=dict)
    """Options to choose on validation images first."""


def transfer(arguments: list[str]) -> None:
    """Run a transfer evaluation on every set, one process each, and write the table.

    Raises:
        SystemExit: With code 1 if a set failed.
    """
    options, given = _parser().parse_known_args(arguments)
    task = TASKS[options.task]
    configs, extra = _configs(given)
    _check(options, extra, task)
    weights = _weights(options.checkpoint, options.backbone)
    shared = {
        "config": [task.recipe, *configs],
        "model.checkpoint": options.checkpoint, "model.backbone": options.backbone,
    }  # fmt: skip
    if options.task != "few_shot":
        shared["data.normalize"] = options.normalize
    elif options.normalize is not None:
        shared |= _statistics(options.normalize)
    shared = {name: value for name, value in shared.items() if value is not None}
    folder = options.runs / "transfer" / f"{options.task}_{weights}"
    out = options.out or folder / "TRANSFER.md"
    extra = ["--data.root", options.root, *extra]
    sets = [
        _Transfer(task, name, shared, folder, extra)
        for name in task.sets
        if name in (options.sets or task.sets)
    ]
    for work in sets:
        run_stoppable(work)
        judged = [other.judged() for other in sets]
        failures = [failure for other in sets for failure in other.failures]
        text = task.table(judged, f"{options.checkpoint} ({weights})", failures)
        with whole_text(out) as file:  # after every set: a stop leaves what there is
            file.write(text)
    say(f"\n{text}\nTable: {out}")
    unfinished = any(found.record is None for found in judged)
    say_next("transfer, unfinished" if unfinished else "transfer")
    if unfinished:
        raise SystemExit(1)


def _check(options: argparse.Namespace, extra: Sequence[str], task: Task) -> None:
    """Raise :class:`ConfigError` where options do not go together."""
    for name in options.sets or ():
        if name not in task.sets:
            near = difflib.get_close_matches(name, task.sets, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--sets takes {', '.join(task.sets)}; got {name!r}{hint}")
    if options.out is not None and options.out.suffix != ".md":
        raise ConfigError(f"the table is Markdown: --out must end in .md, got {options.out}")
    if options.task == "few_shot" and options.normalize == "none":  # would not undo what the weights tell of
        raise ConfigError(
            "few_shot leaves images in [0, 1] where the weights say nothing: leave --normalize out"
        )
    owned = {"data.root": "--root", "data.dataset": "--sets", "model.checkpoint": "--checkpoint"}
    owned |= {"model.backbone": "--backbone", "data.normalize": "--normalize"}
    for argument in extra:
        name = argument.partition("=")[0].removeprefix("--").replace(".init_args", "").removesuffix("+")
        if name in owned:
            raise ConfigError(f"give {owned[name]} in place of {argument.partition('=')[0]}")
        if task.tune and name in (*task.tune, *_SEARCH):
            raise ConfigError(
                f"{options.task} searches {' and '.join(task.tune)} on the validation images itself: leave "
                f"--{name} out, or run {task.recipe} by `fit`"
            )


def _configs(extra: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the configurations out of further options: what follows has to be laid over them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    found, rest = parser.parse_known_args(extra)
    return found.config, rest


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
    """A study of one data set, with its own metric.

    Args:
        task: The evaluation.
        name: The data set.
        shared: Options that the runs of all sets have.
        folder: Folder of the runs of all sets.
        extra: Further arguments.
    """

    def __init__(self, task: Task, name: str, shared: dict[str, Any], folder: Path, extra: list[str]) -> None:
        self.task, self.name = task, name
        self.variant = Variant(name, {"data.dataset": name}, task.tune)
        metric, _ = task.measure(name)
        study = Study(name, shared, (self.variant,), tuning=_SEARCH, tuning_metric=metric)
        super().__init__(study, folder, extra=extra)

    def _arguments(self, run: Run) -> list[str]:
        _, *options = super()._arguments(run)  # which begin with fit
        return [self.task.command, *options]

    def _do(self, run: Run) -> bool:
        """Run a run, unless another of this set has failed: without it nothing can be chosen."""
        return not self.failures and super()._do(run)

    def judged(self) -> JudgedSet:
        """Return what was found."""
        tried = self.study.tuning_runs(self.variant)
        if not all(self._finished(run) for run in tried):
            return JudgedSet(self.name)
        choice = self.choose(self.variant)
        (run,) = self.study.runs(self.variant, choice)
        if not self._finished(run):
            return JudgedSet(self.name)
        metric, _ = self.task.measure(self.name)
        best = [Record.read(self._ledger(run)).metrics[metric].last for run in tried if run.choice == choice]
        return JudgedSet(self.name, Record.read(self._ledger(run)), best[0] if best else None)

    def _score(self, run: Run) -> str:
        metric, title = self.task.measure(run.label)
        return f"{title} {100 * Record.read(self._ledger(run)).metrics[metric].last:.2f} %"


def _statistics(name: str) -> dict[str, Any]:
    """Return the options of mean and std of a name, where the data module has none for it."""
    from mmcl_lightning.datamodules.transfer import NORMALIZE

    mean, std = NORMALIZE[name]
    return {"data.mean": list(mean), "data.std": list(std)}


def _logged(tag: str) -> Callable[[str], tuple[str, str]]:
    """Return the function from a set to its metric as an evaluation logs it."""

    def measure(name: str) -> tuple[str, str]:
        metric, title = set_measure(name)
        return f"{tag}/{metric}", title

    return measure


TASKS = {
    "linear": Task(
        "transfer_linear.yaml", "fit", MANY_SHOT_SETS, _logged("logistic"), linear_table,
        "logistic regression on frozen features",
    ),
    "finetune": Task(
        "transfer_finetune.yaml", "fit", MANY_SHOT_SETS, _logged("finetune"), finetune_table,
        "all weights trained on labels, 21 trainings a set",
        {
            "model.lr": [0.1, 0.01, 0.001, 0.0001],
            "model.relative_decay": [0.0, 1e-6, 1e-5, 1e-4, 1e-3],
        },
    ),
    "few_shot": Task(
        "few_shot.yaml", "test", FEW_SHOT_SETS, lambda name: ("few_shot/accuracy", "accuracy"),
        few_shot_table, "nearest mean of a few labelled images of each class",
    ),
}  # fmt: skip
