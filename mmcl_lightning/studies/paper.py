"""The paper's value for a run, where the run is one of the paper's."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from mmcl_lightning.ledger import Record

__all__ = ["few_shot_value", "finetune_values", "paper_value"]

_LINEAR_EPOCHS, _KNN_EPOCHS = 400, 200
_GRAPH_EPOCHS, _GRAPH_BATCH = 20, 128
_KNN = "k=200 T=0.5 cosine h"  # how its k-NN accuracies were measured


def paper_value(record: Record, metric: str, protocol: str = "") -> float | None:
    """Return what the paper prints for a run, a share in [0, 1], or ``None`` where it has no such run.

    A run counts as the paper's only with its data set at full size, the same network, batch size and epochs:
    ``linear/top1`` of a ResNet-50 pretrained for 400 epochs, or ``knn/top1`` of one for 200, and
    ``cv/svc_accuracy`` of a GIN of graphs pretrained for 20.

    Args:
        record: Record of a pretraining run or of a linear evaluation.
        metric: Name of the logged metric.
        protocol: How it was measured, in words; empty if that is unknown.
    """
    if metric == "knn/top1" and protocol and not protocol.startswith(_KNN):
        return None
    origin = record.pretraining or {
        "method": record.method, "config": record.config, "epochs": record.epochs, "loss": record.loss
    }  # fmt: skip
    config, method = origin["config"], str(origin["method"])
    data, model = _options(config, "data"), _options(config, "model")
    data_class = str(config.get("data", {}).get("class_path", "")).rpartition(".")[2]
    subset = data.get("train_subset") or data.get("test_subset") or data.get("validation_subset")
    backbone = str(model.get("backbone"))
    if subset or not (backbone == "resnet50" or backbone.startswith("gin:")):
        return None
    tables = _tables()
    loss, _, solver = method.partition(", ")
    batch, value = data.get("batch_size"), None
    if backbone != "resnet50":
        counts = metric == "cv/svc_accuracy" and origin["epochs"] == _GRAPH_EPOCHS and batch == _GRAPH_BATCH
        value = tables["graph"].get(loss, {}).get(data.get("name")) if counts else None
        return None if value is None else value / 100
    if metric == "linear/top1" and record.pretraining and origin["epochs"] == _LINEAR_EPOCHS:
        value = tables["linear"].get(data_class, {}).get(loss, {}).get(batch)
        if batch == 256:
            value = tables["linear_by_solver"].get(data_class, {}).get(solver, None if solver else value)
    elif metric == "knn/top1" and origin["epochs"] == _KNN_EPOCHS and batch == 256:
        name = _kernel(origin.get("loss"), model) if loss == "MMCL" else loss
        value = tables["knn"].get(data_class, {}).get(name)
    return None if value is None else value / 100


def _options(config: dict[str, Any], part: str) -> dict[str, Any]:
    options = config.get(part, {}).get("init_args") or {}
    assert isinstance(options, dict)
    return options


def _kernel(loss: dict[str, Any] | None, model: dict[str, Any]) -> str:
    """Name of the kernel of the loss; records of an earlier version have it in the model's options alone."""
    criterion = (loss or model.get("criterion") or {}).get("init_args") or model
    kernel = criterion.get("kernel") or {}
    return str(kernel.get("class_path", "RBF")).rpartition(".")[2]


def few_shot_value(method: str, name: str) -> tuple[float, float] | None:
    """Return what the paper prints for a set of its few-shot tables, in percent: accuracy and half-width.

    Args:
        method: ``"MMCL"`` or ``"supervised"``.
        name: The data set.
    """
    found = _tables()["few_shot"][method].get(name)
    return None if found is None else (found[0], found[1])


def finetune_values(name: str) -> tuple[float, float, float]:
    """Return what the paper prints for a set fine-tuned: of MMCL, the best of its methods, and supervised.

    Args:
        name: The data set.
    """
    rows = {method: values[name] for method, values in _tables()["finetune"].items()}
    return rows["MMCL"], max(rows.values()), rows["supervised"]


def _tables() -> Any:
    return yaml.safe_load(resources.files(__package__ or "").joinpath("paper.yaml").read_text())
