"""Build a backbone and give it the weights of a file: strictly, and saying what matched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules.preprocessing import published_preprocessing
from mmcl_lightning.modules.resumable import restoring
from mmcl_lightning.modules.weight_files import BackboneFile, counters, read_backbone

__all__ = ["backbone_from", "digests", "given_weights", "load_backbone", "make_backbone"]

#: Parts of published files that stand beside the backbone's under the same prefix, and are left out.
_HEADS = ("fc", "projection_head", "projector", "predictor", "prototypes", "head", "mlp", "classifier")


def load_backbone(backbone: nn.Module, file: BackboneFile) -> str:
    """Load weights into a backbone, every one of them or none.

    The file may hold more in one case only: a classifier or projection head that the backbone lacks, such as
    ``fc.*`` of a torchvision ResNet or ``prototypes.*``. It may lack one thing only: batch norm's counters of
    batches, which files of old versions do not have, and which nothing reads.

    Args:
        backbone: Takes the weights, in place.
        file: Where they come from.

    Returns:
        One line: how many matched, from which part of the file, and which heads beside them were left out.

    Raises:
        ConfigError: If a weight is missing, left over or of another shape; the message counts and names them.
    """
    own, (prefix, weights) = backbone.state_dict(), file.weights_for(backbone)
    missing = [key for key in own if key not in weights and key not in counters(own)]
    left = [key for key in weights if key not in own]
    parts = {key.partition(".")[0] for key in own}
    heads = {key for key in left if (name := key.partition(".")[0]) in _HEADS and name not in parts}
    unknown = sorted(set(left) - _classifier_keys(backbone) - heads)
    shapes = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    matched = sum(key in weights for key in own) - len(shapes)
    if missing or unknown or shapes:
        problems = [
            f"{len(keys)} {what} ({_some(keys)})"
            for keys, what in (
                (missing, "missing in the file"),
                (unknown, "of the file unknown to the backbone"),
                (shapes, "of another shape"),
            )
            if keys
        ]
        raise ConfigError(
            f"{file.path} does not fit the backbone: {matched} of its {len(own)} weights match, "
            f"{', '.join(problems)}{_hint(own, file)}"
        )
    broken = [key for key in own if key in weights and not _usable(weights[key], own[key])]
    if broken:
        raise ConfigError(f"{file.path}: {_some(broken)}: not finite, or no weights in floating point")
    backbone.load_state_dict({**own, **{key: weights[key] for key in own if key in weights}})
    rest = f"; left out: {_some(left)}{f' ({len(left)})' * (len(left) > 3)}" if left else ""
    origin = ".".join(filter(None, (file.place, prefix.removesuffix("."))))
    source = "" if origin in ("", "backbone") else f" from {origin}"
    return f"{file.path}: {matched} of {len(own)} weights of the backbone loaded{source}{rest}"


def backbone_from(
    checkpoint: str,
    backbone: str | nn.Module | dict[str, Any] | None = None,
    cifar_stem: bool | None = None,
) -> tuple[nn.Module, dict[str, Any], str]:
    """Build a backbone and load its weights.

    Args:
        checkpoint: What :func:`read_backbone` reads; ``"random"`` to leave the random start; ``"pretrained"``
            for the ImageNet weights of the library that has the network.
        backbone: Name, name with options, or module; ``None`` for what the checkpoint names.
        cifar_stem: Stem of a torchvision ResNet; ``None`` for what the weights have.

    Returns:
        The backbone; the options that describe it, in plain data: ``checkpoint`` (where that is a linear
        evaluation's own, the file that it judged), ``backbone``, ``cifar_stem``, ``preprocessing`` (None
        where the file does not say); and one line about what was loaded.

    Raises:
        ConfigError: If the network is not known, or the weights do not fit it.
    """
    file = None if checkpoint in ("random", "pretrained") else read_backbone(checkpoint)
    saved = {} if file is None else file.options
    choice = saved.get("backbone") if backbone is None else backbone
    if choice is None:
        raise ConfigError(
            f"{checkpoint} does not say of which network it is: set --model.backbone, such as 'resnet50'"
            if file is not None
            else f"{checkpoint} weights need a network: set backbone, such as 'resnet50'"
        )
    if isinstance(choice, dict) and "name" in choice:
        asked = choice.get("pretrained")
        choice = {key: value for key, value in choice.items() if key != "pretrained"}  # the weights are these
        if asked and checkpoint == "random" and not restoring.get():
            raise ConfigError(
                "checkpoint is 'random', and the backbone says pretrained: set --model.checkpoint to "
                "'pretrained', or leave pretrained out"
            )
    if cifar_stem is None:
        stem = None if file is None else file.weights.get("conv1.weight")
        name = choice.get("name") if isinstance(choice, dict) else choice
        plain = isinstance(name, str) and not name.startswith("timm:")
        cifar_stem = plain and stem is not None and stem.shape[-1] == 3
    module = make_backbone(choice, cifar_stem, pretrained=checkpoint == "pretrained")
    preprocessing = None if file is None else file.preprocessing
    if file is not None:
        report = load_backbone(module, file)
    elif checkpoint == "pretrained":
        options = choice if isinstance(choice, dict) else {"name": str(choice)}
        preprocessing = published_preprocessing(options, module).to_plain()
        report = f"weights as published with {options['name']}"
    else:
        report = "the backbone keeps its random weights"
    described = choice if isinstance(choice, str | dict) else to_spec(choice)
    # A linear evaluation's own file has the backbone that it judged, unless batch norm was let to move.
    untouched = saved.get("bn_train") is False and saved.get("checkpoint")
    origin = untouched or checkpoint
    source = {"checkpoint": origin, "backbone": described, "cifar_stem": cifar_stem}
    return module, {**source, "preprocessing": preprocessing}, report


def given_weights(checkpoint: str | None) -> str:
    """Return where an evaluation's weights come from.

    Args:
        checkpoint: The option of that name.

    Raises:
        ConfigError: If it is not given.
    """
    if checkpoint is None:
        raise ConfigError(
            "an evaluation needs weights: set --model.checkpoint to the file of a pretrained backbone, or to "
            "'random' for a random start"
        )
    return os.fspath(checkpoint)


def make_backbone(
    choice: str | nn.Module | dict[str, Any], cifar_stem: bool, pretrained: bool | None = None
) -> nn.Module:
    """Return the backbone that an option describes.

    Args:
        choice: A module; its name; a mapping of its name and options; or a ``class_path`` with ``init_args``.
        cifar_stem: Stem of a torchvision ResNet for small images.
        pretrained: Whether to start from published weights, whatever the options say; None leaves it to them.

    Raises:
        ConfigError: If there is no such network, or published weights are asked for of one without a name.
    """
    if isinstance(choice, str):
        choice = {"name": choice}
    if isinstance(choice, dict) and "name" in choice:
        options = dict(choice)
        options |= {} if pretrained is None else {"pretrained": pretrained}
        return build_backbone(options, cifar_stem=cifar_stem)
    module = from_spec(choice, nn.Module, "backbone")
    if not isinstance(module, nn.Module):
        raise ConfigError(f"backbone must be a name, a name with options, or a module, got {choice!r}")
    if pretrained:
        raise ConfigError("pretrained weights are those of a network by name, such as backbone 'resnet50'")
    return module


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return 16 hex digits for each tensor, equal only where all bits are."""
    return {
        name: hashlib.sha256(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        ).hexdigest()[:16]
        for name, value in tensors.items()
    }


def _usable(value: Tensor, own: Tensor) -> bool:
    """Whether a tensor of a file can be what the backbone has; counters of batches are not read."""
    if not own.is_floating_point():
        return True
    return value.is_floating_point() and bool(value.to(own.dtype).isfinite().all())


def _classifier_keys(backbone: nn.Module) -> set[str]:
    """Keys of the classifier that a backbone was made without, in the library that defines the network."""
    names = ["fc"] if isinstance(getattr(backbone, "fc", None), nn.Identity) else []
    known = (getattr(backbone, "pretrained_cfg", None) or {}).get("classifier") or ()  # timm
    names += [known] if isinstance(known, str) else list(known)
    return {f"{name}.{part}" for name in names for part in ("weight", "bias")}


def _hint(own: dict[str, Tensor], file: BackboneFile) -> str:
    """Say what probably went wrong."""
    name = file.options.get("backbone")
    stem = {key: value.shape for key, value in file.weights.items() if key == "conv1.weight"}
    if isinstance(name, str):
        return f". It was trained with backbone {name!r}, cifar_stem={bool(file.options.get('cifar_stem'))}"
    if "conv1.weight" in stem and "conv1.weight" in own and stem["conv1.weight"] != own["conv1.weight"].shape:
        return f". Its first convolution is {stem['conv1.weight'][-1]} wide: set cifar_stem accordingly"
    return ". Set backbone to the network that the file was trained with"


def _some(keys: Iterable[str], count: int = 3) -> str:
    listed = list(keys)
    return ", ".join(listed[:count]) + (", ..." if len(listed) > count else "")
