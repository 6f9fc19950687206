"""The formats in which a backbone is written for other projects, each read back and compared."""

from __future__ import annotations

import copy
import importlib.util
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, nn

from mmcl_lightning._checkpoints import write_file
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.modules.weight_files import EXPORTED, BackboneFile

__all__ = ["FORMATS", "Format", "Source"]

_TOLERANCE = 1e-4  # of h, relative to its largest value: other libraries add in another order


@dataclass(frozen=True)
class Source:
    """A backbone that is to be written.

    Args:
        file: Its weights and options.
        network: The network with them, in evaluation mode; None where the file does not say which it is.
        name: Its name, such as ``"resnet50"`` or ``"timm:vit_small_patch16_224"``; empty for a module.
        cifar_stem: Whether it has the stem for small images.
    """

    file: BackboneFile
    network: nn.Module | None
    name: str
    cifar_stem: bool

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images reach it, where the file says so."""
        plain = self.file.preprocessing
        return None if plain is None else Preprocessing.from_plain(plain)

    def state(self) -> OrderedDict[str, Tensor]:
        """Return the weights, with an attribute that tells of network and images."""
        weights = OrderedDict((key, value.contiguous().clone()) for key, value in self.file.weights.items())
        setattr(weights, EXPORTED, self.told())
        return weights

    def told(self) -> dict[str, Any]:
        """Return what is known of network and images, in plain data."""
        options = {
            name: self.file.options[name] for name in ("backbone", "cifar_stem") if name in self.file.options
        }
        return {"hyper_parameters": options, "preprocessing": self.file.preprocessing}

    def options(self) -> dict[str, Any]:
        """Return the options of a timm network besides its name and channels, such as ``img_size``."""
        given, ours = self.file.options.get("backbone"), ("name", "pretrained", "in_channels", "cifar_stem")
        return {k: v for k, v in given.items() if k not in ours} if isinstance(given, dict) else {}

    def images(self, count: int) -> Tensor:
        """Return images of noise of the size and the channels that the network is for."""
        found = self.preprocessing
        small = self.cifar_stem or self.name == "conv4"
        size = (found.pixels if found else None) or ((32, 32) if small else (224, 224))
        first = next((part for part in self.known().modules() if isinstance(part, nn.Conv2d)), None)
        channels = 3 if first is None else first.in_channels
        return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(0))

    def known(self) -> nn.Module:
        """Return the network.

        Raises:
            ConfigError: If the file does not say which it is.
        """
        if self.network is None:
            raise ConfigError(f"{self.file.path} does not say of which network it is: set --backbone")
        return self.network

    def compare(self, other: Callable[[Tensor], Any], what: str) -> str:
        """Say that another network gives the same h for two images, and for three.

        Raises:
            NumericalError: If it does not.
        """
        worst = 0.0
        for count in (2, 3):
            images = self.images(count)
            with torch.no_grad():
                h, theirs = self.known()(images), torch.as_tensor(other(images))
            if h.shape != theirs.shape:
                raise NumericalError(
                    f"{what} gives h of shape {tuple(theirs.shape)}, expected {tuple(h.shape)}"
                )
            worst = max(worst, float((h - theirs).abs().max() / h.abs().max().clamp_min(1e-12)))
        if not worst <= _TOLERANCE:
            raise NumericalError(f"{what} gives another h: it differs by {worst:.1g} of the largest value")
        return f"{what} gives the same h (differences up to {worst:.1g} of the largest value)"


def _torchvision(source: Source, out: Path) -> str:
    write_file(source.state(), out)
    read = f"read it with torch.load({out.name!r})"
    if source.network is None or source.cifar_stem or source.name not in torchvision.models.list_models():
        return read
    theirs = torchvision.models.get_model(source.name)
    theirs.fc = nn.Identity()
    if (channels := source.images(1).shape[1]) != 3:
        return f"{read}; torchvision's own takes 3 channels, and this {channels}"
    theirs.load_state_dict(torch.load(out, weights_only=True))
    return f"{read}; {source.compare(theirs.eval(), 'torchvision')}"


def _timm(source: Source, out: Path) -> str:
    write_file(source.state(), out)
    name = _timm_name(source)
    theirs = _timm_model(source, name, checkpoint_path=str(out))
    said = f"timm.create_model({name!r}, num_classes=0, checkpoint_path={out.name!r})"
    return f"read it with {said}; {source.compare(theirs, 'timm')}"


def _safetensors(source: Source, out: Path) -> str:
    from safetensors.torch import load_file, save_file

    plain = json.dumps(source.told())
    save_file(dict(source.state()), out, metadata={"format": "pt", EXPORTED: plain})
    read = f"read it with safetensors.torch.load_file({out.name!r})"
    if source.network is None:
        return read
    theirs = copy.deepcopy(source.network)
    theirs.load_state_dict(load_file(out))
    return f"{read}; {source.compare(theirs, 'the file')}"


def _onnx(source: Source, out: Path) -> str:
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        torch.onnx.export(
            source.known(), (source.images(2),), out, dynamo=True, verbose=False, external_data=False,
            input_names=["images"], output_names=["h"], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Any:
        return session.run(None, {"images": images.numpy()})[0]

    size = " x ".join(map(str, source.images(1).shape[2:]))
    return f"images (B, C, {size}) to h; {source.compare(run, 'onnxruntime')}"


def _huggingface(source: Source, out: Path) -> str:
    from timm.models import save_for_hf

    model, found = _timm_model(source, _timm_name(source)), source.preprocessing
    model.load_state_dict(source.file.weights)
    arguments = {"in_chans": source.images(1).shape[1], **source.options()}
    data = {"input_size": tuple(source.images(1).shape[1:]), "crop_pct": 1.0, "interpolation": "bicubic"}
    if found is not None and found.transform is not None:
        channels = found.channels
        data |= {"mean": tuple(found.transform.mean or (0.0,) * channels)}
        data |= {"std": tuple(found.transform.std or (1.0,) * channels)}
    save_for_hf(
        model, str(out), model_config={"num_classes": 0}, model_args=arguments, safe_serialization=True,
        data_config=data,
    )  # fmt: skip
    theirs = timm_network(f"local-dir:{out}")
    said = f"read it with timm.create_model('local-dir:{out.name}', pretrained=True, num_classes=0)"
    unknown = "" if "mean" in data else ", whose mean and std are timm's own, since the file tells of none"
    return f"a folder for the Hugging Face hub{unknown}; {said}; {source.compare(theirs, 'timm')}"


def timm_network(name: str) -> nn.Module:
    """Return a network of timm with the weights and options that lie under a name."""
    import timm

    model: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    return model.eval()


class Format(NamedTuple):
    """A way to write a backbone."""

    write: Callable[[Source, Path], str]
    """Writes it to a path that does not exist, and says how to read it."""
    default: str
    """Name of what is written, if none is given."""
    needs: tuple[str, ...] = ()
    """Packages of the extra ``export``."""


#: By name.
FORMATS = {
    "torchvision": Format(_torchvision, "backbone.pt"),
    "timm": Format(_timm, "backbone.pt"),
    "safetensors": Format(_safetensors, "backbone.safetensors", ("safetensors",)),
    "onnx": Format(_onnx, "backbone.onnx", ("onnx", "onnxruntime", "onnxscript")),
    "huggingface": Format(_huggingface, "backbone"),
}


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return those of some packages that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def _timm_name(source: Source) -> str:
    """Return timm's name of the network.

    Raises:
        ConfigError: If timm has no such network.
    """
    import timm

    source.known()
    name = source.name.removeprefix("timm:")
    if source.cifar_stem or not name or not timm.is_model(name):
        what = (
            f"{source.name or 'this network'}{' with the stem of small images' if source.cifar_stem else ''}"
        )
        raise ConfigError(f"timm has no {what}: set --format to torchvision, safetensors or onnx")
    return name


def _timm_model(source: Source, name: str, checkpoint_path: str = "") -> nn.Module:
    """Return timm's network of the channels and options of a source."""
    import timm

    channels = source.images(1).shape[1]
    model: nn.Module = timm.create_model(
        name, num_classes=0, in_chans=channels, checkpoint_path=checkpoint_path, **source.options()
    )
    return model.eval()
