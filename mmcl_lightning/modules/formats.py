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
from mmcl_lightning.models import GIN
from mmcl_lightning.models.video import S3D
from mmcl_lightning.modules.weight_files import EXPORTED, BackboneFile
from mmcl_lightning.transforms import EvalTransform
from mmcl_lightning.transforms.base import as_pair

__all__ = ["FORMATS", "Format", "Source"]

#: What timm's description of its weights says of the network alone.
_OF_THE_NETWORK = ("classifier", "first_conv", "fixed_input_size")
_CLIP = (8, 64, 64)  # frames and pixels
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
        """Return the options of timm that the network differs by from timm's own of its name."""
        given, ours = self.file.options.get("backbone"), ("name", "pretrained", "in_channels", "cifar_stem")
        own = {} if self.channels() == 3 else {"in_chans": self.channels()}
        return own | ({k: v for k, v in given.items() if k not in ours} if isinstance(given, dict) else {})

    def built(self) -> str:
        """Return the call that builds the network."""
        choice = self.file.options.get("backbone")
        given = choice if isinstance(choice, dict) else {}
        options = {k: v for k, v in given.items() if k not in ("name", "pretrained", "cifar_stem")}
        if self.cifar_stem:
            options["cifar_stem"] = True
        said = ", ".join([repr(self.name), *(f"{name}={value!r}" for name, value in options.items())])
        return f"mmcl_lightning.models.build_backbone({said})"

    def made(self) -> dict[str, Any]:
        """Return what is known of how images are made, under timm's names; ``{}`` where nothing is."""
        found = self.preprocessing
        if found is None:
            return {}
        told: dict[str, Any] = {"input_size": [found.channels, *(found.pixels or self.images(1).shape[2:])]}
        if found.statistics is not None:
            mean, std = found.statistics or ((0.0,) * found.channels, (1.0,) * found.channels)
            told |= {"mean": list(mean), "std": list(std)}
        if isinstance(found.transform, EvalTransform):
            resize, crop = found.transform.resize, found.transform.crop
            told |= {"interpolation": "bicubic", "crop_mode": "center"}
            if isinstance(resize, int) and isinstance(crop, int):
                told["crop_pct"] = round(crop / resize, 6)
        return told

    def images(self, count: int) -> Any:
        """Return images of noise of the size and channels that the network is for; or clips, or graphs."""
        if isinstance(self.network, S3D):
            return torch.randn(count, 3, *_CLIP, generator=torch.Generator().manual_seed(0))
        if isinstance(self.network, GIN):
            return _rings(count, self.network.in_features)
        found = self.preprocessing
        small = self.cifar_stem or self.name == "conv4"
        usual = as_pair(self.options().get("img_size", 32 if small else 224))
        size = (found.pixels if found else None) or usual
        return torch.randn(count, self.channels(), *size, generator=torch.Generator().manual_seed(0))

    def channels(self) -> int:
        """Return the channels of an image."""
        first = next((part for part in self.known().modules() if isinstance(part, nn.Conv2d)), None)
        return 3 if first is None else first.in_channels

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
        how = f"to {worst:.1g} of the largest value" if worst else "exactly"
        return f"{what} gives the same h, {how}"


def _rings(count: int, features: int) -> Any:
    """Return a batch of small graphs with features of noise."""
    from torch_geometric.data import Batch, Data

    generator = torch.Generator().manual_seed(0)
    nodes = torch.arange(5)
    edges = torch.stack([nodes, nodes.roll(1)])
    return Batch.from_data_list(
        [Data(x=torch.randn(5, features, generator=generator), edge_index=edges) for _ in range(count)]
    )


def _torchvision(source: Source, out: Path) -> str:
    write_file(source.state(), out)
    if source.network is None:
        return f"read it with torch.load({out.name!r})"
    read = f"read it with {source.built()}.load_state_dict(torch.load({out.name!r}))"
    theirs, what = copy.deepcopy(source.network), "the file"
    if not source.cifar_stem and isinstance(source.network, torchvision.models.ResNet):
        if (channels := source.channels()) == 3:
            theirs, what = torchvision.models.get_model(source.name), "torchvision"
            theirs.fc = nn.Identity()
            read += f", or torchvision.models.{source.name}() with strict=False, since the file has no fc"
        else:
            read += f"; torchvision's own takes 3 channels, and this {channels}"
    theirs.load_state_dict(torch.load(out, weights_only=True))
    return f"{read}; {source.compare(theirs.eval(), what)}"


def _timm(source: Source, out: Path) -> str:
    write_file(source.state(), out)
    name = _timm_name(source)
    options = source.options()
    theirs = timm_network(name, checkpoint_path=str(out), **options)
    given = {"num_classes": 0, "checkpoint_path": out.name, **options}
    said = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in given.items())])
    return f"read it with timm.create_model({said}); {source.compare(theirs, 'timm')}"


def _safetensors(source: Source, out: Path) -> str:
    from safetensors.torch import load_file, save_file

    plain = json.dumps(source.told())
    save_file(dict(source.state()), out, metadata={"format": "pt", EXPORTED: plain})
    loaded = f"safetensors.torch.load_file({out.name!r})"
    if source.network is None:
        return f"read it with {loaded}"
    read = f"read it with {source.built()}.load_state_dict({loaded})"
    theirs = copy.deepcopy(source.network)
    theirs.load_state_dict(load_file(out))
    return f"{read}; {source.compare(theirs, 'the file')}"


def _onnx(source: Source, out: Path) -> str:
    import onnx
    import onnxruntime

    if isinstance(source.known(), GIN):
        raise ConfigError("ONNX files take images or clips, and no graphs: set --format to safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        torch.onnx.export(
            source.known(), (source.images(2),), out, dynamo=True, verbose=False, external_data=False,
            input_names=["images"], output_names=["h"], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Any:
        return session.run(None, {"images": images.numpy()})[0]

    size, found = " x ".join(map(str, source.images(1).shape[2:])), source.preprocessing
    if found is not None:
        made = {k: v if isinstance(v, str) else json.dumps(v) for k, v in source.made().items()}
        model = onnx.load(out)
        onnx.helper.set_model_props(model, {"preprocessing": found.text, **made})
        onnx.save(model, out)
    where = "nothing says how images are made" if found is None else "its metadata says how images are made"
    return f"images (B, C, {size}) to h; {where}; {source.compare(run, 'onnxruntime')}"


def _huggingface(source: Source, out: Path) -> str:
    from timm.models import save_for_hf

    model = timm_network(_timm_name(source), **source.options())
    model.load_state_dict(source.file.weights)
    save_for_hf(
        model, str(out), model_config={"num_classes": 0}, model_args=source.options(),
        safe_serialization=True, data_config=source.made(),
    )  # fmt: skip
    _tell_of_these_weights(out / "config.json", source)
    theirs = timm_network(f"local-dir:{out}", pretrained=True)
    said = f"read it with timm.create_model('local-dir:{out.name}', pretrained=True, num_classes=0)"
    unknown = "" if "mean" in source.made() else ", without mean and std, since the checkpoint tells of none"
    return f"a folder for the Hugging Face hub{unknown}; {said}; {source.compare(theirs, 'timm')}"


def _tell_of_these_weights(config: Path, source: Source) -> None:
    """Leave out of timm's file what timm says of its own weights: whence, under which licence, how judged."""
    content = json.loads(config.read_text(encoding="utf-8"))
    told = content["pretrained_cfg"]
    kept = {name: told[name] for name in _OF_THE_NETWORK if name in told}
    size = {"input_size": list(source.images(1).shape[1:])}
    content["pretrained_cfg"] = {**kept, **size, **source.made(), "num_classes": 0}
    config.write_text(json.dumps(content, indent=2), encoding="utf-8")


def timm_network(name: str, **options: Any) -> nn.Module:
    """Return a network of timm without a classifier."""
    import timm

    model: nn.Module = timm.create_model(name, num_classes=0, **options)
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
        others = (
            "torchvision or safetensors"
            if isinstance(source.network, GIN)
            else "torchvision, safetensors or onnx"
        )
        raise ConfigError(f"timm has no {what}: set --format to {others}")
    return name
