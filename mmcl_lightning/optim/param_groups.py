"""Parameter groups: which parameters are decayed and adapted, decided by module type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

# The shared base of batch, synchronised batch and instance norm; torch has no public name for it.
from torch.nn.modules.batchnorm import _NormBase

from mmcl_lightning.errors import ConfigError

__all__ = ["parameter_groups"]

_NORM_TYPES = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def parameter_groups(
    modules: nn.Module | Mapping[str, nn.Module], weight_decay: float | None = None
) -> list[dict[str, Any]]:
    """Split the trainable parameters into groups with and without weight decay.

    Not decayed, and not adapted by LARS: biases, parameters of normalisation layers, and what a module
    lists in its ``no_weight_decay()`` (timm: position embeddings, class tokens). Module types decide, not
    names: the published code looks for "bn" in the name and so decays the batch norms that torchvision
    calls ``downsample.1``.

    Args:
        modules: Named modules, e.g. ``{"backbone": ..., "projection_head": ...}``; the keys name the
            groups. A bare module gets the name ``"model"``.
        weight_decay: Decay of the decayed groups, >= 0; ``None`` leaves it to the optimiser's default.

    Returns:
        Groups ``NAME`` and ``NAME_no_weight_decay`` for each key in turn, empty ones left out, each with
        ``name``, ``params``, ``weight_decay`` and ``lars_exclude``; every torch optimiser takes them.
        Each trainable parameter is in exactly one; a shared one goes to the first module that has it,
        undecayed if any owner asks for that.

    Raises:
        ConfigError: If nothing is trainable or ``weight_decay`` is not a finite number >= 0.
    """
    if weight_decay is not None and not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ConfigError(f"weight_decay must be a finite number >= 0, got {weight_decay}.")
    named = {"model": modules} if isinstance(modules, nn.Module) else dict(modules)
    undecayed = {id(p) for module in named.values() for p in _undecayed(module)}
    seen: set[int] = set()
    groups = []
    for name, module in named.items():
        decay: list[nn.Parameter] = []
        no_decay: list[nn.Parameter] = []
        for p in module.parameters():
            if p.requires_grad and id(p) not in seen:
                seen.add(id(p))
                (no_decay if id(p) in undecayed else decay).append(p)
        groups.append(_group(name, decay, weight_decay, lars_exclude=False))
        groups.append(_group(f"{name}_no_weight_decay", no_decay, 0.0, lars_exclude=True))
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ConfigError(f"No parameter of {', '.join(named) or 'the modules'} is trainable.")
    return groups


def _group(
    name: str, params: list[nn.Parameter], weight_decay: float | None, lars_exclude: bool
) -> dict[str, Any]:
    group: dict[str, Any] = {"name": name, "params": params, "lars_exclude": lars_exclude}
    return group if weight_decay is None else group | {"weight_decay": weight_decay}


def _undecayed(root: nn.Module) -> Iterator[nn.Parameter]:
    for module in root.modules():
        for name, p in module.named_parameters(recurse=False):
            # "in_proj_bias" of attention and "q_bias" of some transformers are biases too.
            if name == "bias" or name.endswith("_bias") or _is_norm(module, p):
                yield p
        listed = getattr(module, "no_weight_decay", None)
        if callable(listed):
            names = set(listed())
            yield from (p for name, p in module.named_parameters() if name in names)


def _is_norm(module: nn.Module, p: nn.Parameter) -> bool:
    # Norm layers of other libraries (timm's RmsNorm) share no base class with torch's: they are told by
    # their class name, and only for vectors, so that a "NormalizedLinear" keeps its decay.
    return isinstance(module, _NORM_TYPES) or ("norm" in type(module).__name__.lower() and p.ndim <= 1)
