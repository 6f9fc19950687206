"""Files of weights: whatever wrote them, which network they are of and how its images were made."""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from mmcl_lightning._checkpoints import beginning, read_file
from mmcl_lightning._structure import fault_of
from mmcl_lightning._text import plain
from mmcl_lightning.errors import ConfigError

__all__ = ["EXPORTED", "BackboneFile", "counters", "read_backbone"]

#: What stands before a backbone's keys: here and in most libraries, in a detector, in the paper's code,
#: MoCo's, others'; nothing in an exported file, even where the network has a part of such a name, as
#: transformers do.
_PREFIXES = ("backbone.", "detector.backbone.body.", "convnet.", "encoder_q.", "encoder.", "")
#: Attribute of an exported state dict, which torch saves and loads with it.
EXPORTED = "mmcl_lightning"
#: Where a file has its weights, the usual place first. DINO's files have two networks, and judge the teacher.
_CONTAINERS = ("state_dict", "model_state_dict", "model", "teacher", "student")


@dataclass(frozen=True)
class BackboneFile:
    """The weights of a backbone as they lie in a file.

    Args:
        path: The file.
        tensors: All tensors of the file.
        options: Options of the module that was saved, e.g. ``backbone`` and ``cifar_stem``; empty where
            the file has none.
        preprocessing: How images reach the network, as ``Preprocessing.to_plain`` gives it; None where the
            file does not say.
        place: Which state dict of the file this is, such as ``"teacher"``; empty for the usual one.
    """

    path: str
    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    preprocessing: dict[str, Any] | None = None

    @property
    def weights(self) -> dict[str, Tensor]:
        """Tensors under the backbone's own key names, as torchvision has them for a ResNet."""
        return next(below for prefix in _PREFIXES if (below := self._below(prefix)))

    def weights_for(self, backbone: nn.Module) -> tuple[str, dict[str, Tensor]]:
        """Return the prefix under which most weights of ``backbone`` are, and the weights below it.

        Args:
            backbone: The network that is to take them.
        """
        own, found = backbone.state_dict().keys(), Counter(dict.fromkeys(_PREFIXES, 0))
        for key in self.tensors:
            parts = key.split(".")
            for depth in range(len(parts)):
                if ".".join(parts[depth:]) in own:
                    found["".join(f"{part}." for part in parts[:depth])] += 1
        prefix = max(found, key=lambda prefix: found[prefix])  # of equals the first
        if 2 * found[prefix] < len(own) and (numbered := self._numbered(backbone)) is not None:
            return numbered
        return prefix, self._below(prefix)

    def _numbered(self, backbone: nn.Module) -> tuple[str, dict[str, Tensor]] | None:
        """Return weights whose layers are numbered, as those of a network's children in an nn.Sequential."""
        children, own = [name for name, _ in backbone.named_children()], backbone.state_dict().keys()
        for prefix in _PREFIXES:
            parts = {key: key.split(".", 1) for key in self._below(prefix)}
            layers = {key: int(first) for key, (first, *_) in parts.items() if first.isdecimal()}
            renamed = {
                f"{children[layer]}.{parts[key][1]}": self.tensors[prefix + key]
                for key, layer in layers.items() if layer < len(children) and len(parts[key]) > 1
            }  # fmt: skip
            if renamed and own <= renamed.keys() | counters(own):
                return f"{prefix}0 to {max(layers.values())}", renamed
        return None

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def read_backbone(path: str) -> BackboneFile:
    """Read the backbone out of a checkpoint or a state dict.

    Taken are the keys below ``backbone.`` (also ``convnet.``, the paper's code, ``encoder_q.``, MoCo's, or
    ``encoder.``), or all keys where none has such a prefix: an exported backbone or torchvision's own file. A
    ``module.`` of DistributedDataParallel before all keys, and what torch.compile adds, go first. Of a file
    with several networks it is the first of ``state_dict``, ``model_state_dict``, ``model``, ``teacher`` and
    ``student``.

    Args:
        path: A Lightning checkpoint, a dict with one of these, or a state dict, from ``torch.save``.

    Raises:
        ConfigError: If the file is missing or damaged, or holds no weights.
    """
    content = _read_safetensors(path) if _is_safetensors(path) else read_file(path, "weights")
    known = content if isinstance(content, dict) else {}
    places = {**{name: known[name] for name in _CONTAINERS if name in known}, "": known}
    held = {place: found for place, content in places.items() if (found := _tensors(content))}
    place, tensors = next(iter(held.items()), ("", {}))
    if not tensors:
        raise ConfigError(f"{path} holds no weights: neither a state_dict nor named tensors")
    for key, value in tensors.items():
        if (fault := fault_of(value)) is not None:
            raise ConfigError(f"{path}: the weight {plain(key)} is {fault}; use another file")
    tensors = {key.replace("_orig_mod.", ""): value for key, value in tensors.items()}  # of torch.compile
    if all(key.startswith("module.") for key in tensors):  # of DistributedDataParallel
        tensors = {key.removeprefix("module."): value for key, value in tensors.items()}
    # An exported file is a state dict, which has the rest as an attribute.
    told = known if "state_dict" in known else getattr(content, EXPORTED, {})
    told = told if isinstance(told, dict) else {}
    options, preprocessing = told.get("hyper_parameters"), told.get("preprocessing")
    return BackboneFile(
        path, tensors, dict(options) if isinstance(options, dict) else {},
        "" if place == "state_dict" else place, preprocessing if isinstance(preprocessing, dict) else None,
    )  # fmt: skip


def _is_safetensors(path: str) -> bool:
    """Whether a file begins as safetensors does: with the length of the JSON that follows, and its brace."""
    if not os.path.isfile(path):
        return str(path).endswith(".safetensors")
    begin = beginning(path, 9)
    length = int.from_bytes(begin[:8], "little")
    return begin[8:] == b"{" and length + 8 <= os.path.getsize(path)


def _read_safetensors(path: str) -> dict[str, Tensor]:
    """Read a file of safetensors as a state dict, which has what the file tells as an attribute.

    Raises:
        ConfigError: If it is missing or damaged.
    """
    from safetensors import safe_open

    if not os.path.isfile(path):
        raise ConfigError(f"there is no file {path}: give the path of an existing file")
    try:
        with safe_open(path, "pt") as file:
            weights = OrderedDict((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
            told = json.loads((file.metadata() or {}).get(EXPORTED, "{}"))
    except Exception as error:  # also of the depth of its JSON, or a type that torch lacks
        raise ConfigError(f"{path} cannot be read as weights of safetensors: it is damaged") from error
    setattr(weights, EXPORTED, told if isinstance(told, dict) else {})
    return weights


def _tensors(place: Any) -> dict[str, Tensor]:
    """Return the tensors by name of what may be a state dict."""
    named = place.items() if isinstance(place, dict) else []
    return {k: v for k, v in named if isinstance(k, str) and isinstance(v, Tensor)}


def counters(keys: Iterable[str]) -> set[str]:
    """Return the keys of batch norm's counters of batches."""
    return {key for key in keys if key.endswith("num_batches_tracked")}
