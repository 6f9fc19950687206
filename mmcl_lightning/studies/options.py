"""The options of runs, as flat names, and those in which runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcl_lightning.ledger import NOT_HASHED, SERVING

__all__ = ["flat_options", "training_part", "varying"]

#: Callbacks that watch and keep: a run trains with them as without, those of earlier versions included.
_WATCHING = {
    "Embedding", "Health", "HealthPanel", "KNN", "LearningRateMonitor", "Ledger", "LinearProbe",
    "LogisticReadout", "LogisticRegression", "ModelCheckpoint", "OnlineKNN", "OnlineLinearProbe", "Readouts",
    "ResumableCheckpoint", "RichProgressBar", "SVCCrossValidation", "SupportVectorGrid",
    "TQDMProgressBar", "Throughput",
}  # fmt: skip
#: Options of the trainer and of the data that change what is seen or how fast, and not what comes out.
_SHOWING = {
    "check_val_every_n_epoch", "enable_model_summary", "enable_progress_bar", "limit_val_batches",
    "log_every_n_steps", "logger", "num_sanity_val_steps", "val_check_interval",
}  # fmt: skip


def training_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without what only reads, shows or keeps: readouts, logging, checkpoints.

    Args:
        config: Configuration of a run, as its record has it.
    """
    kept = {name: part for name, part in config.items() if name != "readouts"}
    trainer, data = kept.get("trainer") or {}, kept.get("data")
    if isinstance(trainer, dict):
        callbacks = [part for part in trainer.get("callbacks") or [] if _class_name(part) not in _WATCHING]
        trainer = {name: value for name, value in trainer.items() if name not in _SHOWING}
        kept["trainer"] = {**trainer, "callbacks": callbacks}
    if isinstance(data, dict) and isinstance(data.get("init_args"), dict):
        options = {name: value for name, value in data["init_args"].items() if name not in SERVING}
        kept["data"] = {**data, "init_args": options}
    return kept


def flat_options(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the options of a configuration under dotted names, but for what is no option of the run.

    Of a list of parts, as callbacks are, each has its class in its name: ``trainer.callbacks.EarlyStopping``.
    """
    parts: dict[str, Any] = {}
    if isinstance(config, list) and all(_class_name(part) for part in config):
        for part in config:
            name = f"{prefix}.{_class_name(part)}"
            parts |= {name: True} | flat_options(part.get("init_args") or {}, name)
        return parts
    if not isinstance(config, dict):
        return {prefix: config}
    for name, part in config.items():
        if name == "backbone" and isinstance(part, str):  # one with options is a mapping
            part = {"name": part}
        if prefix or name not in NOT_HASHED:
            parts |= flat_options(part, f"{prefix}.{name}" if prefix else name)
    return parts


def varying(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the options, as dotted names, in which configurations differ."""
    flat = [flat_options(config) for config in configs]
    names = dict.fromkeys(name for options in flat for name in options)
    return [name for name in names if len({str(options.get(name)) for options in flat}) > 1]


def _class_name(part: Any) -> str:
    """Return the class that a part of a configuration names; empty for what names none."""
    path = part.get("class_path") if isinstance(part, dict) else None
    return str(path or "").rpartition(".")[2]
