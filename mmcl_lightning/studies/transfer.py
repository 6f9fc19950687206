"""``mmcl transfer``: judge one backbone on the data sets of the paper's transfer tables."""

from __future__ import annotations

import argparse
import difflib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcl_lightning._files import whole_text
from mmcl_lightning._text import markdown, say
from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules.measures import MEASURES
from mmcl_lightning.studies.command import run_stoppable
from mmcl_lightning.studies.study import Run, Study, Variant
from mmcl_lightning.studies.sweep import Sweep
from mmcl_lightning.studies.tables import markdown_table

__all__ = ["linear_table", "transfer"]

_NAMED = ("random", "pretrained")  # weights that are no file


def transfer(arguments: list[str]) -> None:
    """Run a transfer evaluation on every set, one process each, and write the table.

    Raises:
        SystemExit: With code 1 if a set failed.
    """
    options, extra = _parser().parse_known_args(arguments)
    for name in options.sets:
        if name not in TRANSFER_SETS:
            near = difflib.get_close_matches(name, TRANSFER_SETS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--sets takes {', '.join(TRANSFER_SETS)}; got {name!r}{hint}")
    if options.out is not None and options.out.suffix != ".md":
        raise ConfigError(f"the table is Markdown: --out must end in .md, got {options.out}")
    weights = _weights(options.checkpoint, options.backbone)
    shared = {
        "config": "transfer_linear.yaml", "model.checkpoint": options.checkpoint,
        "model.backbone": options.backbone, "data.normalize": options.normalize,
    }  # fmt: skip
    names = [name for name in TRANSFER_SETS if name in options.sets]
    study = Study(
        f"{options.task}_{weights}",
        {name: value for name, value in shared.items() if value is not None},
        tuple(Variant(name, {"data.dataset": name}) for name in names),
    )
    folder = options.runs / "transfer" / study.name
    work = _Transfer(study, folder, extra=["--data.root", options.root, *extra])
    run_stoppable(work)
    found = {name: record for name in names if (record := work.record(name)) is not None}
    out = options.out or folder / "TRANSFER.md"
    text = linear_table(found, names, f"{options.checkpoint} ({weights})", work.failures)
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
    parser.add_argument("task", choices=["linear"], help="logistic regression on frozen features")
    parser.add_argument("--checkpoint", required=True, metavar="PATH", help="weights, as model.checkpoint")
    parser.add_argument("--backbone", metavar="NAME", help="the network, where the weights do not say it")
    parser.add_argument("--root", default="data", metavar="PATH", help="folder of all data sets (data)")
    parser.add_argument(
        "--sets", nargs="+", default=list(TRANSFER_SETS), metavar="NAME",
        help=f"(all: {' '.join(TRANSFER_SETS)})",
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

    def record(self, name: str) -> Record | None:
        """Return the record of a set, or None where its run has not finished."""
        variant = next(variant for variant in self.study.variants if variant.name == name)
        (run,) = self.study.runs(variant, {})
        return Record.read(self._ledger(run)) if self._finished(run) else None

    def _score(self, run: Run) -> str:
        record, metric = Record.read(self._ledger(run)), TRANSFER_SETS[run.label].metric
        return f"{MEASURES[metric]} {100 * record.metrics[f'logistic/{metric}'].last:.2f} %"


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
    rows = [[name, MEASURES[TRANSFER_SETS[name].metric], *"----"] for name in names if name not in records]
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
        protocol = record.protocols.get(f"logistic/{TRANSFER_SETS[name].metric}", "unknown")
        lines.append(f"* {name}: {markdown(protocol)}; {markdown(record.data.get('prepared', ''))}")
    if failures:
        lines += ["", "Missing:", "", *(f"* {markdown(failure)}" for failure in failures)]
    return "\n".join(lines) + "\n"


def _cells(name: str, record: Record) -> list[str]:
    of_set = TRANSFER_SETS[name]

    def value(metric: str, form: str, factor: float = 1) -> str:
        found = record.metrics.get(f"logistic/{metric}")
        return "-" if found is None else f"{factor * found.last:{form}}"

    shown = record.data.get("fingerprint") or {}
    counts = [int(str(shown.get(use, "0")).split(" ")[0]) for use in ("bank", "query")]
    train, validation, test = of_set.sizes
    mark = "" if counts == [train + (validation or 0), test] else " *"
    return [
        MEASURES[of_set.metric], value(of_set.metric, ".2f", 100), value("chosen_C", ".3g"),
        value("validation", ".2f", 100), f"{counts[0]:,} + {counts[1]:,}{mark}",
    ]  # fmt: skip
