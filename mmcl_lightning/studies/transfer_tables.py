"""The tables of ``mmcl transfer``, as Markdown, with the paper's values where a run is the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mmcl_lightning._text import markdown
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.paper import few_shot_value, finetune_values
from mmcl_lightning.studies.tables import markdown_table

__all__ = ["JudgedSet", "few_shot_table", "finetune_table", "linear_table", "set_measure"]


class JudgedSet(NamedTuple):
    """A data set that was asked for, and what a run found on it."""

    name: str
    record: Record | None = None
    """Of the finished run; None where there is none."""
    validation: float | None = None
    """The best of a search on validation images, where there was one."""


def set_measure(name: str) -> tuple[str, str]:
    """Return what a transfer set is judged by: the name of the metric, and what tables call it."""
    from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS  # needs torch, which --help does not
    from mmcl_lightning.modules.measures import MEASURES

    metric = TRANSFER_SETS[name].metric
    return metric, MEASURES[metric]


def linear_table(sets: Sequence[JudgedSet], weights: str, failures: Sequence[str] = ()) -> str:
    """Return the table of linear transfer as Markdown.

    Args:
        sets: The sets that were asked for.
        weights: The weights in words.
        failures: Why some have not finished.
    """
    rows = []
    for name, record, _ in sets:
        metric, title = set_measure(name)
        shown = [
            _value(record, f"logistic/{part}", form, factor)
            for part, form, factor in (
                (metric, ".2f", 100),
                ("chosen_C", ".3g", 1),
                ("validation", ".2f", 100),
            )
        ]
        rows.append([name, title, *shown, _images(name, record)])
    head = ["set", "metric", "test, %", "C", "validation, %", "images"]
    lines = [
        "# Linear transfer", "", f"Weights: {markdown(weights)}", "", markdown_table(head, rows),
        "The paper prints no values of linear many-shot transfer, only of fine-tuning: none of its values "
        f"stands beside these. {_ON_IMAGES}", "",
    ]  # fmt: skip
    return _page([*lines, *_protocols(sets, "logistic")], failures)


def finetune_table(sets: Sequence[JudgedSet], weights: str, failures: Sequence[str] = ()) -> str:
    """Return the table of transfer by fine-tuning as Markdown.

    Args:
        sets: The sets that were asked for.
        weights: The weights in words.
        failures: Why some have not finished.
    """
    rows = []
    for name, record, validation in sets:
        metric, title = set_measure(name)
        chosen = {} if record is None else _model(record)
        options = [f"{chosen[key]:g}" for key in ("lr", "relative_decay") if chosen.get(key) is not None]
        compares = record is not None and _is_the_papers_finetuning(record, name)
        rows.append([
            name, title, _value(record, f"finetune/{metric}", ".2f", 100), " / ".join(options) or "-",
            "-" if validation is None else f"{100 * validation:.2f}", _images(name, record),
            *((f"{value:.2f}" for value in finetune_values(name)) if compares else [""] * 3),
        ])  # fmt: skip
    head = ["set", "metric", "test, %", "lr / decay", "validation, %", "images"]
    lines = [
        "# Transfer by fine-tuning", "", f"Weights: {markdown(weights)}", "",
        markdown_table([*head, "paper's MMCL", "paper's best", "supervised"], rows),
        "Learning rate and weight decay, which is *decay* over the learning rate, are the first best of 20 "
        "on the validation images, after the last step; the run that is reported trained on training and "
        "validation images. The paper's columns are empty where a run is not the paper's: ResNet-50, images "
        f"of 224 pixels, 5,000 steps of 64 images, all images of the set. {_ON_IMAGES}", "",
    ]  # fmt: skip
    return _page([*lines, *_protocols(sets, "finetune")], failures)


def few_shot_table(sets: Sequence[JudgedSet], weights: str, failures: Sequence[str] = ()) -> str:
    """Return the table of few-shot transfer as Markdown.

    Args:
        sets: The sets that were asked for.
        weights: The weights in words.
        failures: Why some have not finished.
    """
    rows = []
    for name, record, _ in sets:
        found = {} if record is None else record.metrics
        values = [
            f"{100 * found[f'few_shot/{part}'].last:.2f}" for part in ("accuracy", "half_width") if found
        ]
        compares = record is not None and _is_the_papers_few_shot(record)
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
    lines += [
        f"* {name}: {markdown(record.protocols.get('few_shot/accuracy', 'unknown'))}"
        for name, record, _ in sets
        if record is not None
    ]
    return _page(lines, failures)


_ON_IMAGES = (
    "Images: training and validation + test; those marked * are not the published ones, and values of them "
    "compare with no others. What the paper calls mAP is the mean per-class accuracy but for voc2007."
)


def _value(record: Record | None, metric: str, form: str, factor: float = 1) -> str:
    found = None if record is None else record.metrics.get(metric)
    return "-" if found is None else f"{factor * found.last:{form}}"


def _images(name: str, record: Record | None) -> str:
    """Return how many images there were, with a mark where the set has others."""
    if record is None:
        return "-"
    train, test = _counts(record)
    return f"{train:,} + {test:,}" + ("" if _is_whole(name, record) else " *")


def _counts(record: Record) -> tuple[int, int]:
    shown = record.data.get("fingerprint") or {}
    train, test = (int(str(shown.get(use, "0")).split(" ")[0]) for use in ("bank", "query"))
    return train, test


def _is_whole(name: str, record: Record) -> bool:
    from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS

    train, validation, test = TRANSFER_SETS[name].sizes
    return _counts(record) == (train + (validation or 0), test)


def _protocols(sets: Sequence[JudgedSet], tag: str) -> list[str]:
    """Return a line on how each set was judged, and its images were made."""
    return [
        f"* {name}: {markdown(record.protocols.get(f'{tag}/{set_measure(name)[0]}', 'unknown'))}; "
        f"{markdown(record.data.get('prepared', ''))}"
        for name, record, _ in sets
        if record is not None
    ]


def _page(lines: Sequence[str], failures: Sequence[str]) -> str:
    """Return lines as a page, which ends with what is missing."""
    missing = ["", "Missing:", "", *(f"* {markdown(failure)}" for failure in failures)] if failures else []
    return "\n".join([*lines, *missing]) + "\n"


def _model(record: Record) -> dict[str, object]:
    return (record.config.get("model") or {}).get("init_args") or {}


def _is_the_papers_few_shot(record: Record) -> bool:
    """Whether a run is one of the paper's few-shot runs, but for its weights."""
    protocol = record.protocols.get("few_shot/accuracy", "")
    usual = protocol.startswith("5-way 20-shot, 15 queries a class, 600 episodes") and "224 x 224" in protocol
    return usual and _model(record).get("backbone") == "resnet50"


def _is_the_papers_finetuning(record: Record, name: str) -> bool:
    """Whether a run is one of the paper's of a set, but for its weights."""
    protocol = record.protocols.get(f"finetune/{set_measure(name)[0]}", "")
    usual = protocol.startswith("many_shot: ") and ", batch 64, 5000 steps, all weights trained" in protocol
    images = str(record.data.get("prepared", ""))
    same = "crop=224" in images and not _model(record).get("cifar_stem")
    return usual and same and _model(record).get("backbone") == "resnet50" and _is_whole(name, record)
