"""Starting from weights, and files of weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import FineTune, LinearEvaluation, SimCLR, export_backbone
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import backbone_from, load_backbone
from use_cases.cases import captured, case, command, error_of, fit, folder, tree

GROUP = "Weights"
MEAN = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def pretrained(path: str, **options: Any) -> str:
    """Pretrain for an epoch on a folder, and save."""
    tree("a", "b")
    fit(SimCLR(backbone="conv4", projection_head="cifar"), folder(**options)).save_checkpoint(path)
    return path


def saved(path: str, layout: Callable[[dict[str, Any]], Any], name: str = "resnet18") -> str:
    """Save the weights of a network in some layout."""
    torch.save(layout(build_backbone(name).state_dict()), path)
    return path


def report(path: str, name: str = "resnet18") -> str:
    """Load a file into a network and return what is said."""
    return load_backbone(build_backbone(name), read_backbone(path))


def under(prefix: str, **more: Any) -> Callable[[dict[str, Any]], Any]:
    """Return the layout of weights under a prefix, with other weights beside them."""
    return lambda state: {**{f"{prefix}{key}": value for key, value in state.items()}, **more}


HEAD = torch.zeros(8, 512)
LAYOUTS: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
    ("torchvision's own, with fc", lambda state: {**state, "fc.weight": HEAD, "fc.bias": HEAD[:, 0]}),
    (
        "MoCo: encoder_q, encoder_k",
        lambda s: {"state_dict": under("module.encoder_q.", **{"module.queue": HEAD})(s)},
    ),
    (
        "SimSiam: encoder, predictor",
        lambda s: {"state_dict": under("encoder.", **{"predictor.0.weight": HEAD})(s)},
    ),
    ("SwAV: module., prototypes", under("module.", **{"module.prototypes.weight": HEAD})),
    (
        "DINO: teacher and student",
        lambda s: {"teacher": under("backbone.")(s), "student": under("backbone.")(s)},
    ),
    ("{'model': ...}", lambda state: {"model": state}),
    ("torch.compile: _orig_mod.", under("backbone._orig_mod.")),
)
for what, layout in LAYOUTS:
    case(GROUP, f"a file of {what}", "of 120 weights of the backbone loaded")(
        lambda _, layout=layout: report(saved("a.pt", layout))
    )


@case(GROUP, "weights of another network", "of its 216 weights match")
def _(_: Path) -> str:
    return error_of(report, saved("a.pt", under("backbone.")), "resnet34")


@case(GROUP, "a new pretraining from a checkpoint, `init_from`", "24 of 24 weights of the backbone loaded")
def _(_: Path) -> str:
    path = pretrained("a.ckpt")
    with captured() as lines:
        fit(SimCLR(backbone="conv4", projection_head="cifar", init_from=path), folder())
    return next((line for line in lines() if "weights of the backbone" in line), "nothing is said")


@case(
    GROUP,
    "published weights, `backbone: {name: resnet18, pretrained: true}` (file stands for the download)",
    "True",
)
def _(_: Path) -> str:
    from torchvision.models import _api

    state, load = torchvision.models.resnet18().state_dict(), _api.load_state_dict_from_url
    _api.load_state_dict_from_url = lambda *_, **__: state
    try:
        module = SimCLR(backbone={"name": "resnet18", "pretrained": True})
    finally:
        _api.load_state_dict_from_url = load
    return (
        f"weights are the published ones: {torch.equal(module.backbone.conv1.weight, state['conv1.weight'])}"
    )


@case(GROUP, "`backbone: {name: timm:vit_tiny_patch16_224, img_size: 32, in_channels: 2}`", "h (2, 192)")
def _(_: Path) -> str:
    net = build_backbone({"name": "timm:vit_tiny_patch16_224", "img_size": 32, "in_channels": 2})
    return f"h {tuple(net(torch.zeros(2, 2, 32, 32)).shape)}"


@case(GROUP, "a ViT of 224 pixels on images of 16", "img_size: 16")
def _(_: Path) -> str:
    tree("a", "b")
    return error_of(fit, SimCLR(backbone="timm:vit_tiny_patch16_224"), folder())


@case(GROUP, "a module without num_features", "let the module have an attribute num_features")
def _(_: Path) -> str:
    return error_of(SimCLR, backbone=nn.Conv2d(3, 4, 3))


@case(GROUP, "export of a run with a compiled backbone", "_orig_mod in keys: False")
def _(_: Path) -> str:
    tree("a", "b")
    module = SimCLR(backbone="conv4", projection_head="cifar")
    module.backbone = torch.compile(module.backbone, backend="eager")
    fit(module, folder()).save_checkpoint("a.ckpt")
    export_backbone("a.ckpt", "b.pt")
    _, _, said = backbone_from("b.pt", "conv4")
    return f"_orig_mod in keys: {any('_orig_mod' in key for key in torch.load('b.pt'))}; {said}"


PREPROCESSING = "How images were made"


def judge(module: Callable[..., Any], path: str, **options: Any) -> str:
    """Evaluate, and return the protocol in words."""
    judged = module(path)
    fit(judged, folder(**{"image_size": None, "task": "classify", **options}))
    return f"images of {judged.described.rpartition('images of ')[2]}"


@case(PREPROCESSING, "linear evaluation of a folder without any size or mean", "24 x 24 pixels")
def _(_: Path) -> str:
    return judge(LinearEvaluation, pretrained("a.ckpt", image_size=24, **MEAN))


@case(PREPROCESSING, "the same from the exported backbone, without its name", "mean 0.5, 0.5, 0.5")
def _(_: Path) -> str:
    export_backbone(pretrained("a.ckpt", image_size=24, **MEAN), "b.pt")
    return judge(FineTune, "b.pt")


@case(PREPROCESSING, "another mean than the pretraining's", "--model.preprocessing data")
def _(_: Path) -> str:
    path = pretrained("a.ckpt", image_size=24, **MEAN)
    return error_of(judge, LinearEvaluation, path, mean=(0.4,) * 3, std=(0.2,) * 3)


@case(PREPROCESSING, "another size than the pretraining's", "these are of 16 x 16")
def _(_: Path) -> str:
    path = pretrained("a.ckpt", image_size=24)
    with captured() as lines:
        judge(LinearEvaluation, path, image_size=16)
    return next((line for line in lines() if "24 x 24" in line), "nothing is said")


@case(PREPROCESSING, "`embed` with an exported backbone", "h (8, 256)")
def _(_: Path) -> str:
    export_backbone(pretrained("a.ckpt", image_size=24, **MEAN), "b.pt")
    return command(
        "embed",
        "--checkpoint=b.pt",
        "--data.root=.",
        "--data.num_workers=0",
        "--accelerator=cpu",
        keep="Wrote",
    )
