"""The columns of a report: numbers that may stand below each other, one column per metric and protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmcl_lightning.ledger import Metric, Record

__all__ = ["BESIDE_TOP1", "METRICS", "Column", "columns_of", "late_metrics", "metric_title"]

#: Metrics that a report shows by itself, in this order; other ``.../top1`` come after them.
METRICS = (
    "knn/top1", "retrieval/R1", "cv/svc_accuracy", "probe/top1", "logistic/top1", "linear/top1",
    "finetune/top1", "few_shot/accuracy", "normals/median_degrees", "detection/ap",
)  # fmt: skip
#: What data sets are judged by that are not by the top-1, and what tables call it.
BESIDE_TOP1 = {"mean_per_class": "mean per class", "map_11point": "11-point mAP"}
_TITLES = {
    "knn": "k-NN",
    "retrieval": "retrieval",
    "probe": "online probe",
    "logistic": "logistic regression",
    "linear": "linear",
    "finetune": "fine-tuned",
    "cv": "cross-validated",
    "few_shot": "few-shot",
    "normals": "surface normals,",
}
#: What the text of a protocol says of one run: which weights it judged, and what its fit came to.
_OF_A_RUN = re.compile(
    r", weights .*?(?=, images of |$)| stopped after \d+ steps|, chosen C=[^\s,]+"
    r"|, \d+ of \d+ fits stopped at \d+ steps"
)
#: Learning rate and weight decay, which are chosen for each backbone that is judged.
_CHOSEN = re.compile(r" lr=\S+ wd=[^\s,]+")

_IMAGES = ", images of "


@dataclass(frozen=True)
class Column:
    """One metric, measured in one way.

    Args:
        metric: Name of the logged metric, without the name of a further protocol: ``knn/top1``.
        protocol: How it was measured, in words, as far as that is the same in every run; empty if unknown.
        title: What a table calls it: with the protocol where the metric was measured in several ways.
    """

    metric: str
    protocol: str = ""
    title: str = ""

    def of(self, record: Record) -> Metric | None:
        """Return what a run measured in this way up to its end, or None."""
        for name, metric in record.metrics.items():
            mine = _key(record, name) == (self.metric, self.protocol)
            if mine and _reaches_the_end(record, name):
                return metric
        return None

    def texts(self, records: Iterable[Record]) -> list[str]:
        """Return the protocol in all words, each version once."""
        found: dict[str, None] = {}
        for record in records:
            for name in record.metrics:
                if _key(record, name) == (self.metric, self.protocol) and _reaches_the_end(record, name):
                    found[_OF_A_RUN.sub("", _text(record, name))] = None
        return [text for text in found if text]


def columns_of(records: Sequence[Record], metrics: Sequence[str]) -> list[Column]:
    """Return the columns that some metrics of runs need.

    Numbers of different protocols do not compare, nor do those of images that were prepared differently, so
    each has a column; ``knn/top1/dino`` of one run shares that of ``knn/top1`` of another if both were
    measured alike.

    Args:
        records: The runs.
        metrics: Logged metrics, in the order of the columns.
    """
    keys: dict[tuple[str, str], str] = {}  # with the metric that it was first seen as
    for metric in metrics:
        for record in records:
            if metric in record.metrics and _reaches_the_end(record, metric):
                keys.setdefault(_key(record, metric), metric)
    columns = []
    for (name, protocol), metric in keys.items():
        alike = [other for family, other in keys if family == name]
        words = f" ({_difference(protocol, alike)})" if len(alike) > 1 else ""
        columns.append(Column(name, protocol, metric_title(name if words else metric) + words))
    return columns


def late_metrics(records: Iterable[Record], metrics: Sequence[str]) -> list[tuple[Record, str]]:
    """Return the metrics that a run no longer measured at its end, as after a resume without a readout."""
    return [
        (record, metric)
        for record in records
        for metric in metrics
        if metric in record.metrics and not _reaches_the_end(record, metric)
    ]


def metric_title(metric: str) -> str:
    """Return what tables and plots call a logged metric."""
    place, _, name = metric.partition("/")
    name, _, protocol = (
        name.replace("svc_", "SVC ")
        .replace("top1", "top-1")
        .replace("top5", "top-5")
        .replace("_degrees", " in degrees")
        .partition("/")
    )
    name = name.upper() if place == "detection" else BESIDE_TOP1.get(name, name)
    return f"{_TITLES.get(place, place)} {name}" + (f" ({protocol})" if protocol else "")


def _key(record: Record, metric: str) -> tuple[str, str]:
    """Return the metric without the name of a protocol, and how it was measured."""
    text = _OF_A_RUN.sub("", _text(record, metric))
    if not text:
        return metric, ""
    if metric.partition("/")[0] in ("linear", "finetune"):
        text = _CHOSEN.sub("", text)
    return "/".join(metric.split("/")[:2]), text


def _text(record: Record, metric: str) -> str:
    """Return the protocol of a metric in words, with the preparation of the images where that is known."""
    names = (metric, metric.replace("best_top1", "top1").replace("top5", "top1"))
    text = next((record.protocols[name] for name in names if name in record.protocols), "")
    images = record.data.get("prepared")
    if (
        not (text and images and isinstance(images, str)) or _IMAGES in text
    ):  # as an evaluation says it itself
        return text
    return text + _IMAGES + images


def _reaches_the_end(record: Record, metric: str) -> bool:
    """Whether the last value is that of the end, as every readout's and every evaluation's should be."""
    return not _text(record, metric) or record.metrics[metric].curve[-1][1] >= record.steps


def _difference(protocol: str, alike: Sequence[str]) -> str:
    """Return the parts of a protocol that not all others have."""
    parts = _parts(protocol)
    common = set.intersection(*(set(_parts(other)) for other in alike))
    return ", ".join(part for part in parts if part not in common) or "preparation of images not recorded"


def _parts(protocol: str) -> list[str]:
    text, *images = re.split(r", (?=images (?:by|of) )", protocol, maxsplit=1)
    return text.split(", ") + images
