"""Where a checkpoint that is about to be resumed differs from the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import SERVING
from mmcl_lightning.recipes import read_yaml

__all__ = ["check_weights", "differing_model", "differing_run"]

#: Options of the optimizer, with others of which a run is not resumed at all.
_REFUSED = ("lr", "lr_scaling", "lr_schedule", "optimizer", "warmup", "weight_decay")


def _own_config(checkpoint: str) -> Path:
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
        config = _own_config(checkpoint)
        raise ConfigError(
            f"{checkpoint} does not fit this model: {len(differing)} weights differ in name or shape, "
            f"the first being {differing[0]}; use the configuration that it was trained with"
            + (f", --config {config}" if config.is_file() else "")
        )


def _differing(checkpoint: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on each option that a checkpoint and the configuration have with other values.

    Args:
        checkpoint: The file.
        saved: Its options.
        given: Those that are used.
    """
    for name, value in given.items():
        if name in saved and saved[name] != value:
            differs = f"checkpoint {checkpoint}: {saved[name]}; configuration: {value}, which is used"
            yield f"{name}: {differs}"


def differing_model(checkpoint: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on each option of the model that differs, but for those that no resumed run may change.

    Args:
        checkpoint: The file.
        saved: Its options.
        given: Those that are used.
    """
    before, now = (
        {f"model.{k}": v for k, v in part.items() if not k.startswith("_") and k not in _REFUSED}
        for part in (saved, given)
    )
    return _differing(checkpoint, before, now)


def differing_run(checkpoint: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on the seed and each option of the data that differ.

    A checkpoint has none of them: they are read from the ``config.yaml`` of its run, if that lies where the
    run wrote it. Options that change how fast images come are left out.

    Args:
        checkpoint: The file.
        given: The configuration of ``fit``.
    """
    saved = None
    with contextlib.suppress(ConfigError, OSError):  # a file that somebody has changed stops no run
        saved = read_yaml(_own_config(checkpoint))
    before, now = (
        _flat({name: part[name] for name in ("seed_everything", "data") if name in part})
        for part in (saved if isinstance(saved, dict) else {}, given)
    )
    serving = {f"data.{name}" for name in SERVING}
    return _differing(checkpoint, before, {k: v for k, v in now.items() if k not in serving})


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
