"""A backbone in the formats of other libraries, which give the same h."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from runs import trainer
from torch import nn

import mmcl_lightning
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import LinearEvaluation, SimCLR, export_backbone
from mmcl_lightning.modules.export import _source
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import backbone_from, load_backbone
from mmcl_lightning.transforms import EvalTransform
from mmcl_lightning.transforms.base import statistics_of

pytestmark = pytest.mark.starts_threads

VIT = {"name": "timm:vit_tiny_patch16_224", "img_size": 32, "in_channels": 2}


def checkpoint(folder: Path, backbone: Any = "resnet18", **options: Any) -> tuple[str, nn.Module]:
    """A run's checkpoint, whose batch statistics are not those of the start."""
    torch.manual_seed(0)
    module = SimCLR(backbone=backbone, projection_head="cifar", **options)
    channels = backbone["in_channels"] if isinstance(backbone, dict) else 3
    module.backbone.train()(torch.randn(4, channels, 32, 32))
    transform = EvalTransform(36, 32, (0.5,) * channels, (0.25,) * channels)
    module.preprocessing = Preprocessing(
        transform, (32, 32), (32, 32), channels, statistics_of(transform), text="32 x 32 pixels"
    ).to_plain()
    run = trainer(folder)
    run.strategy.connect(module)
    run.save_checkpoint(folder / "run.ckpt")
    return str(folder / "run.ckpt"), module.backbone.eval()


@torch.no_grad()
def same(one: Any, other: nn.Module, channels: int = 3) -> None:
    images = torch.rand(2, channels, 32, 32)
    torch.testing.assert_close(one(images), other(images), atol=1e-5, rtol=1e-4)


def test_torchvision_and_timm(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path)
    for name in ("torchvision", "timm"):
        said = export_backbone(path, str(tmp_path / f"{name}.pt"), name)
        assert f"{name} gives the same h, " in said
    theirs = torchvision.models.resnet18()
    theirs.fc = nn.Identity()
    theirs.load_state_dict(torch.load(tmp_path / "torchvision.pt", weights_only=True))
    same(theirs.eval(), trained)
    same(timm.create_model("resnet18", num_classes=0, checkpoint_path=tmp_path / "timm.pt").eval(), trained)


def test_safetensors_go_back_in(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, cifar_stem=True)
    out = str(tmp_path / "b.safetensors")
    said = export_backbone(path, out, "safetensors")
    built = "mmcl_lightning.models.build_backbone('resnet18', cifar_stem=True)"
    assert f"with the 3x3 stem of small images; read it with {built}.load_state_dict(safetensors" in said
    assert safetensors.torch.load_file(out).keys() == trained.state_dict().keys()
    backbone, described, _ = backbone_from(out)
    same(backbone.eval(), trained)
    assert described["preprocessing"]["pixels"] == [32, 32]
    assert LinearEvaluation(out).hparams["backbone"] == "resnet18"
    Path(out).write_bytes(Path(out).read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"b\.safetensors cannot be read as weights"):
        read_backbone(out)


def test_onnx_takes_any_number_of_images(tmp_path: Path) -> None:
    import onnxruntime

    path, trained = checkpoint(tmp_path, "conv4")
    said = export_backbone(path, str(tmp_path / "b.onnx"), "onnx")
    made = "its metadata says how images are made"
    assert f"images (B, C, 32 x 32) to h; {made}; onnxruntime gives the same h" in said
    session = onnxruntime.InferenceSession(tmp_path / "b.onnx")
    told = session.get_modelmeta().custom_metadata_map
    assert told == {
        "preprocessing": "32 x 32 pixels",
        "input_size": "[3, 32, 32]",
        "mean": "[0.5, 0.5, 0.5]",
        "std": "[0.25, 0.25, 0.25]",
        "crop_mode": "center",
        "crop_pct": "0.888889",
        "interpolation": "bicubic",
    }
    images = torch.rand(5, 3, 32, 32)
    h = session.run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(h), trained(images), atol=1e-5, rtol=1e-4)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["b.onnx", "run.ckpt"]


@pytest.mark.parametrize(("backbone", "channels"), [("resnet18", 3), (VIT, 2)])
def test_a_folder_for_the_hub_tells_of_the_images(backbone: Any, channels: int, tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, backbone)
    out = tmp_path / "hub"
    assert "timm gives the same h" in export_backbone(path, str(out), "huggingface")
    theirs = timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=0).eval()
    same(theirs, trained, channels)
    assert tuple(theirs.pretrained_cfg["mean"]) == (0.5,) * channels
    assert tuple(theirs.pretrained_cfg["input_size"]) == (channels, 32, 32)
    assert theirs.pretrained_cfg["crop_pct"] == pytest.approx(32 / 36, abs=1e-6)
    with pytest.raises(ConfigError, match="hub is a folder: give the name"):
        export_backbone(path, str(out), "huggingface")


@pytest.mark.parametrize("backbone", ["resnet18", VIT, "timm:convnext_atto"])
@pytest.mark.parametrize("known", [True, False])
def test_weights_of_ones_own_are_not_said_to_be_those_of_timm(
    backbone: Any, known: bool, tmp_path: Path
) -> None:
    path, _ = checkpoint(tmp_path, backbone)
    if not known:
        content = torch.load(path)
        del content["preprocessing"]
        torch.save(content, path)
    said = export_backbone(path, str(tmp_path / "hub"), "huggingface")
    assert ("without mean and std, since the checkpoint tells of none" in said) is not known
    text = (tmp_path / "hub" / "config.json").read_text()
    content = json.loads(text)
    made = {"mean", "std", "interpolation", "crop_mode", "crop_pct"} if known else set()
    of_the_network = {"classifier", "first_conv", "fixed_input_size", "input_size", "num_classes"}
    assert set(content["pretrained_cfg"]) == of_the_network | made
    for word in ("in1k", "license", "http", "paper", "origin", "hf_hub", "ImageNet", "tag"):
        assert word not in text


@pytest.mark.parametrize("backbone", ["resnet18", VIT, {"name": "timm:resnet18", "in_channels": 2}])
def test_what_is_printed_reads_the_file(
    backbone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained = checkpoint(tmp_path, backbone)
    monkeypatch.chdir(tmp_path)
    for name in ("timm", "huggingface"):
        said = export_backbone(path, name, name)
        (call,) = re.findall(r"read it with (timm\.create_model\(.*?\));", said)
        same(eval(call, {"timm": timm}).eval(), trained, 3 if backbone == "resnet18" else 2)
    for name in ("torchvision", "safetensors"):
        said = export_backbone(path, f"{name}.pt", name)
        ((built, loaded),) = re.findall(r"read it with (mmcl.*?\))\.load_state_dict\((.*?'\))\)", said)
        names = {"mmcl_lightning": mmcl_lightning, "torch": torch, "safetensors": safetensors}
        network = eval(built, names)
        network.load_state_dict(eval(loaded, names))
        same(network.eval(), trained, 3 if backbone == "resnet18" else 2)


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_written_files_are_as_readable_as_new_ones(umask: int, tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path)
    before = os.umask(umask)
    try:
        for name in ("torchvision", "safetensors", "huggingface"):
            export_backbone(path, str(tmp_path / name), name)  # type: ignore[arg-type]
    finally:
        os.umask(before)
    files = ["torchvision", "safetensors", "huggingface/config.json", "huggingface/model.safetensors"]
    assert [oct((tmp_path / file).stat().st_mode & 0o777) for file in files] == [oct(0o666 & ~umask)] * 4


def test_the_file_of_a_network_that_torchvision_has_not_is_compared_too(tmp_path: Path) -> None:
    for name, options in (("conv4", {}), ("resnet18", {"cifar_stem": True})):
        said = export_backbone(checkpoint(tmp_path, name, **options)[0], str(tmp_path / f"{name}.pt"))
        assert "; the file gives the same h, exactly" in said
    path = checkpoint(tmp_path, {"name": "resnet18", "in_channels": 2})[0]
    said = export_backbone(path, str(tmp_path / "b.pt"))
    assert "torchvision's own takes 3 channels, and this 2; the file gives the same h" in said


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        (
            "timm",
            {"backbone": "conv4"},
            "timm has no conv4: set --format to torchvision, safetensors",
        ),
        ("huggingface", {"cifar_stem": True}, "timm has no resnet18 with the stem of small images"),
        ("tensorflow", {}, "format must be 'torchvision', 'timm'"),
    ],
)
def test_what_a_format_cannot_hold(name: Any, options: dict, match: str, tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path, **options)
    with pytest.raises(ConfigError, match=match):
        export_backbone(path, str(tmp_path / "out"), name)
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]


def test_what_differs_is_found(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, "conv4")
    source = _source(path, None, None)
    with pytest.raises(NumericalError, match="it gives another h: it differs by 1 of the largest value"):
        source.compare(lambda images: trained(images) * 2, "it")
    with pytest.raises(NumericalError, match=r"it gives h of shape \(2, 128\), expected \(2, 256\)"):
        source.compare(lambda images: trained(images)[:, :128], "it")


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path, "conv4")
    main(["export", "--checkpoint=run.ckpt", "--format=safetensors"])
    assert capsys.readouterr().out.startswith("Wrote backbone.safetensors: 24 tensors of conv4; read it with")
    torch.save(read_backbone("run.ckpt").weights, "bare.pt")
    with pytest.raises(SystemExit):
        main(["export", "--checkpoint=bare.pt", "--format=onnx"])
    assert "bare.pt does not say of which network it is: set --backbone" in capsys.readouterr().err
    main(["export", "--checkpoint=bare.pt", "--format=onnx", "--backbone=conv4"])


def sequential(net: nn.Module) -> dict[str, torch.Tensor]:
    """A torchvision ResNet's weights as lightly's examples have them: its layers in an nn.Sequential."""
    return nn.Sequential(*list(net.children())[:-1]).state_dict()


def below(prefix: str, weights: dict[str, torch.Tensor], *others: str) -> dict[str, torch.Tensor]:
    """Weights under a prefix, with others beside them."""
    return {f"{prefix}{key}": v for key, v in weights.items()} | {key: torch.zeros(2) for key in others}


#: How the published code of MMCL, lightly's examples, solo-learn and lightning-bolts save a ResNet.
LAYOUTS = {
    "convnet": lambda net: below("convnet.", net.state_dict(), "projection.0.weight"),
    "backbone.0 to 7": lambda net: {"state_dict": below("backbone.", sequential(net), "criterion.x")},
    "loaded": lambda net: {"state_dict": below("backbone.", net.state_dict(), "projector.0.weight")},
    "encoder": lambda net: {"state_dict": below("encoder.", net.state_dict(), "projection.0.weight")},
    "online_network.encoder": lambda net: {
        "state_dict": {
            **below("online_network.encoder.", net.state_dict()),
            **below("target_network.encoder.", net.state_dict()),
        }
    },
}


@pytest.mark.parametrize(("said", "layout"), LAYOUTS.items())
def test_layouts_of_others(said: str, layout: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torchvision.models.resnet18()
    net.fc = nn.Identity()
    torch.save(layout(net), tmp_path / "theirs.pt")
    own = build_backbone("resnet18")
    report = load_backbone(own, read_backbone(str(tmp_path / "theirs.pt")))
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in own.state_dict().items())
    assert "120 of 120 weights of the backbone loaded" in report
    assert said in report


@pytest.mark.parametrize("backbone", ["s3d", "gin:7"])
def test_networks_of_clips_and_graphs(backbone: str, tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.strategy.connect(SimCLR(backbone=backbone, projection_head="moco"))
    run.save_checkpoint(tmp_path / "run.ckpt")
    path = str(tmp_path / "run.ckpt")
    for name in ("torchvision", "safetensors"):
        said = export_backbone(path, str(tmp_path / f"{name}.out"), name)  # type: ignore[arg-type]
        assert "the file gives the same h, exactly" in said
    with pytest.raises(ConfigError, match=r"timm has no .*: set --format to torchvision"):
        export_backbone(path, str(tmp_path / "timm"), "timm")
    if backbone != "s3d":  # whose 77 convolutions take the exporter long
        with pytest.raises(ConfigError, match="ONNX files take images or clips, and no graphs: set --format"):
            export_backbone(path, str(tmp_path / "b.onnx"), "onnx")
