"""What a checkpoint consists of: its parts are looked at once, as it is read, and not where one is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mmcl_lightning._text import plain
from mmcl_lightning.errors import ConfigError

if TYPE_CHECKING:
    from torch import dtype

__all__ = ["check_parts", "fault_of", "kind_of"]


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_named, value))


def _is_optimizer(value: Any) -> bool:
    if not value:  # of a module without one
        return True
    groups = value.get("param_groups")
    return (
        isinstance(value.get("state"), dict) and _are_mappings(groups) and all("params" in g for g in groups)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{1,4}(\.\d{1,4})*[\w.+-]{0,40}", value) is not None


_NAMED = (_is_named, "a mapping by name")
#: What each part must be, and that in words.
_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pytorch-lightning_version": (_is_version, "a version, such as '2.6.0'"),
    "state_dict": (_is_named, "tensors by name"),
    "current_model_state": (_is_named, "tensors by name"),
    "hyper_parameters": _NAMED,
    "datamodule_hyper_parameters": _NAMED,
    "hparams": _NAMED,
    "module_arguments": _NAMED,
    "hparams_name": (lambda value: value is None or isinstance(value, str), "a name"),
    "callbacks": (lambda value: isinstance(value, dict), "a mapping"),
    "loops": _NAMED,
    "epoch": (_is_count, "a count"),
    "global_step": (_is_count, "a count"),
    "optimizer_states": (
        lambda value: _are_mappings(value) and all(map(_is_optimizer, value)),
        "a list of states with param_groups",
    ),
    "lr_schedulers": (_are_mappings, "a list of mappings"),
    "optimizers": (
        lambda value: _are_mappings(value) and all(_are_mappings(part.get("groups")) for part in value),
        "a list of optimizers with groups",
    ),
    "preprocessing": (lambda value: value is None or _is_named(value), "a mapping by name"),
    "found_lr": (lambda value: value is None or type(value) in (int, float), "a number"),
}


def check_parts(saved: Any, path: Any) -> dict[str, Any]:
    """Return what was read of a checkpoint, if its parts are of the kinds that are written.

    Args:
        saved: What was read.
        path: The file, for the message.

    Raises:
        ConfigError: If one is not; the message names the file and the part.
    """
    if not (isinstance(saved, dict) and {"state_dict", "pytorch-lightning_version"} <= saved.keys()):
        raise ConfigError(f"{path} is no checkpoint of this package: it has no state_dict of Lightning")
    for part, (is_right, wanted) in _PARTS.items():
        if part in saved and not is_right(saved[part]):
            raise ConfigError(
                f"{path}: its part {part} should be {wanted}, and is {plain(_short(saved[part]))}: the "
                "file is damaged, or not of this package; use another one"
            )
    for part in ("state_dict", "current_model_state"):
        for key, value in saved.get(part, {}).items():
            if (fault := fault_of(value)) is not None:
                raise ConfigError(f"{path}: the weight {plain(key)} is {fault}; use another file")
    return saved


def _short(value: Any) -> str:
    """Return the beginning of what a value looks like; of a container its kind, as it may be large."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list | tuple) else repr(value)[:60]


def fault_of(value: Any) -> str | None:
    """Return what keeps a tensor from being weights, in words; None for any other, and for what is none.

    Args:
        value: Of a state dict.
    """
    import torch  # seconds, of which a command that only looks for a file has no need

    if not isinstance(value, torch.Tensor):
        return None  # a module may keep other things there
    if value.is_meta:
        return "a tensor without values"
    if value.is_quantized or value.layout != torch.strided:
        return f"a {'quantized' if value.is_quantized else value.layout} tensor, and no plain one"
    if value.numel() * value.element_size() > (held := value.untyped_storage().nbytes()):
        return f"of shape {tuple(value.shape)}, of which the file holds {held} bytes"
    return None if kind_of(value.dtype) else f"of the type {value.dtype}, which holds no weights"


def kind_of(dtype: dtype) -> str | None:
    """Return which kind of numbers a type holds; None for one that nothing can be computed with."""
    import torch

    kinds = {
        "floating point": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
        "complex": (torch.complex64, torch.complex128),
        "whole": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        "true or false": (torch.bool,),
    }
    return next((kind for kind, types in kinds.items() if dtype in types), None)
