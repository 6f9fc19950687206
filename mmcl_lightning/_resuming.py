"""Where a checkpoint that is about to be resumed differs from the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import SERVING
from mmcl_lightning.recipes import read_yaml

__all__ = ["check_weights", "differing_data", "differing_options", "own_config"]

#: Options of the optimizer, with others of which a run is not resumed at all.
_REFUSED = ("lr", "lr_scaling", "lr_schedule", "optimizer", "warmup", "weight_decay")


def own_config(checkpoint: str) -> Path:
    """Return where the configuration lies of the run that wrote a checkpoint, if it is still there."""
    return Path(checkpoint).parent.parent / "config.yaml"


def check_weights(checkpoint: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise :class:`ConfigError` if weights differ in name or shape.

    Args:
        checkpoint: The file.
        saved: Its weights.
        own: Those of the model.
    """
    differing = sorted(
        key for key in saved.keys() | own.keys()
        if key not in own or key not in saved or own[key].shape != saved[key].shape
    )  # fmt: skip
    if differing:
        config = own_config(checkpoint)
        raise ConfigError(
            f"{checkpoint} does not fit this model: {len(differing)} weights differ in name or shape, "
            f"the first being {differing[0]}; use the configuration that it was trained with"
            + (f", --config {config}" if config.is_file() else "")
        )


def differing_options(
    checkpoint: str, saved: Mapping[str, Any], given: Mapping[str, Any], place: str = "model"
) -> Iterator[str]:
    """Yield a line on each option that a checkpoint and the configuration have with other values.

    Args:
        checkpoint: The file.
        saved: Its options.
        given: Those that are used.
        place: What the names of the options begin with.
    """
    for name, value in given.items():
        if name in saved and not name.startswith("_") and name not in _REFUSED and saved[name] != value:
            differs = f"checkpoint {checkpoint}: {saved[name]}; configuration: {value}, which is used"
            yield f"{place}.{name}: {differs}"


def differing_data(checkpoint: str, data: Mapping[str, Any]) -> list[str]:
    """Return a line on each option of the data that the run of a checkpoint had with another value.

    A checkpoint has none of them: they are read from the ``config.yaml`` of its run, if that lies where the
    run wrote it. Options that change how fast images come are left out.

    Args:
        checkpoint: The file.
        data: ``class_path`` and ``init_args`` of the configuration.
    """
    config = own_config(checkpoint)
    before = (read_yaml(config) or {}).get("data") if config.is_file() else None
    if not isinstance(before, dict):
        return []
    saved, given = _flat(before), {k: v for k, v in _flat(data).items() if k not in SERVING}
    return list(differing_options(checkpoint, saved, given, "data"))


def _flat(options: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested options by their names on the command line, which leave out ``init_args``."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        full = above if name == "init_args" else f"{above}.{name}".lstrip(".")
        if isinstance(value, Mapping):
            flat |= _flat(value, full)
        else:
            flat[full] = list(value) if isinstance(value, tuple) else value
    return flat
