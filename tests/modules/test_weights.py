"""Backbone weights from every kind of file: all of them or none, and what is said about it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from runs import FlatNet, mmcl, shapes, trainer
from torch import nn

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import export_backbone
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import backbone_from, digests, load_backbone


def checkpoint(folder: Path, **options: Any) -> tuple[str, nn.Module]:
    """A Lightning checkpoint of a module that has not been trained, and its backbone."""
    module = mmcl(**options)
    run = trainer(folder, limit_train_batches=0, max_epochs=1)
    run.fit(module, shapes())
    run.save_checkpoint(folder / "run.ckpt")
    return str(folder / "run.ckpt"), module.backbone


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_checkpoint_of_ours_tells_its_network(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, backbone="resnet18", cifar_stem=True)
    torch.manual_seed(9)
    backbone, described, report = backbone_from(path)
    assert same(backbone, trained)
    assert described.pop("preprocessing")["pixels"] == [16, 16]
    assert described == {"checkpoint": path, "backbone": "resnet18", "cifar_stem": True}
    assert report == f"{path}: 120 of 120 weights of the backbone loaded"


def test_exported_weights_are_torchvisions_without_the_classifier(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, backbone="resnet18")
    out = tmp_path / "new" / "backbone.pt"
    said = export_backbone(path, str(out))
    assert said.startswith(f"Wrote {out}: 120 tensors of resnet18; read it with mmcl_lightning.models.build")
    weights = torch.load(out, weights_only=True)
    theirs = torchvision.models.resnet18()
    missing = theirs.load_state_dict(weights, strict=False)
    assert sorted(missing.missing_keys) == ["fc.bias", "fc.weight"]
    assert missing.unexpected_keys == []
    theirs.fc = nn.Identity()
    assert same(theirs, trained)
    assert out.stat().st_size < 1.1 * sum(t.numel() * t.element_size() for t in weights.values())
    assert [p.name for p in out.parent.iterdir()] == ["backbone.pt"]
    # And back, under the name that the file itself no longer tells.
    backbone, described, _ = backbone_from(str(out), "resnet18")
    assert same(backbone, trained)
    assert described["cifar_stem"] is False
    with pytest.raises(ConfigError, match="is a folder: give the name of a file"):
        export_backbone(path, str(tmp_path))


def test_torchvisions_own_file_has_a_classifier_more(tmp_path: Path) -> None:
    whole = torchvision.models.resnet18()
    state = {k: v for k, v in whole.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "resnet18.pth")  # files of old versions have no counters
    backbone, _, report = backbone_from(str(tmp_path / "resnet18.pth"), "resnet18")
    assert report.endswith("100 of 120 weights of the backbone loaded; left out: fc.weight, fc.bias")
    whole.fc = nn.Identity()
    assert same(backbone, whole)


def test_timms_own_file_too(tmp_path: Path) -> None:
    whole = timm.create_model("resnet10t", num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "timm.pth")
    backbone, _, report = backbone_from(str(tmp_path / "timm.pth"), "timm:resnet10t")
    assert report.endswith("left out: fc.weight, fc.bias")
    assert torch.equal(backbone.conv1[0].weight, whole.conv1[0].weight)


@pytest.mark.parametrize("prefix", ["convnet.", "encoder.", "module.backbone.", "module."])
def test_files_of_other_code(prefix: str, tmp_path: Path) -> None:
    source = build_backbone("resnet18", cifar_stem=True)
    state = {f"{prefix}{key}": value for key, value in source.state_dict().items()}
    if prefix == "convnet.":  # the published code keeps a classifier that it never trains
        state |= {"convnet.fc.weight": torch.zeros(1000, 512), "projection.fc1.weight": torch.zeros(2, 2)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "other.pth.tar")
    backbone, described, _ = backbone_from(str(tmp_path / "other.pth.tar"), "resnet18")
    assert same(backbone, source)
    assert described["cifar_stem"] is True  # read off the first convolution


def test_a_key_is_never_eaten_beyond_its_prefix(tmp_path: Path) -> None:
    # str.lstrip("backbone.") would turn these into "lock" and "onv".
    torch.save({"backbone.block": torch.ones(1), "backbone.conv": torch.ones(1)}, tmp_path / "x.pt")
    assert list(read_backbone(str(tmp_path / "x.pt")).weights) == ["block", "conv"]


def test_what_does_not_fit_is_counted_and_named(tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path, backbone="resnet18", cifar_stem=True)
    with pytest.raises(ConfigError) as wrong:
        backbone_from(path, "resnet34", cifar_stem=False)
    said = str(wrong.value)
    assert "119 of its 216 weights match" in said
    assert (
        "80 missing in the file (layer1.2.conv1.weight, layer1.2.bn1.weight, layer1.2.bn1.bias, ...)" in said
    )
    assert "1 of another shape (conv1.weight)" in said
    assert said.endswith("It was trained with backbone 'resnet18', cifar_stem=True")
    assert len(said) < 500

    torch.save(dict(read_backbone(path).weights), tmp_path / "b.pt")
    with pytest.raises(ConfigError, match="first convolution is 3 wide: set cifar_stem accordingly"):
        backbone_from(str(tmp_path / "b.pt"), "resnet18", cifar_stem=False)
    with pytest.raises(ConfigError, match=r"does not say of which network it is: set --model.backbone"):
        backbone_from(str(tmp_path / "b.pt"))

    net = build_backbone("conv4")
    before = digests(net.state_dict())
    torch.save({**net.state_dict(), "block9.weight": torch.ones(2)}, tmp_path / "extra.pt")
    with pytest.raises(ConfigError, match=r"1 of the file unknown to the backbone \(block9\.weight\)"):
        load_backbone(net, read_backbone(str(tmp_path / "extra.pt")))
    assert digests(net.state_dict()) == before  # all or nothing


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        read_backbone(str(tmp_path / "nowhere.ckpt"))
    (tmp_path / "torn").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="cannot be read as weights"):
        read_backbone(str(tmp_path / "torn"))
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(ConfigError, match="holds no weights"):
        read_backbone(str(tmp_path / "empty.pt"))


def test_live_backbones(tmp_path: Path) -> None:
    path, trained = checkpoint(tmp_path, backbone=FlatNet())
    with pytest.raises(ConfigError, match=r"live object for backbone \(runs\.FlatNet\)"):
        backbone_from(path)
    backbone, described, _ = backbone_from(path, FlatNet())
    assert same(backbone, trained)
    assert described["backbone"] == {"live_object": "runs.FlatNet"}
    with pytest.raises(ConfigError, match="random weights need a network"):
        backbone_from("random")


def test_digests_tell_single_bits() -> None:
    zero = {"a": torch.zeros(3), "n": torch.tensor(4)}
    assert digests(zero) == digests({"a": torch.zeros(3), "n": torch.tensor(4)})
    assert digests(zero)["a"] != digests({"a": torch.tensor([0.0, -0.0, 0.0])})["a"]
    assert digests(zero)["n"] != digests({"n": torch.tensor(5)})["n"]
    assert len(digests({"h": torch.zeros(2, dtype=torch.bfloat16)})["h"]) == 16


class Transformer(nn.Module):
    """A backbone with a part called encoder, as torchvision's vision transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 4, 4, 4)
        self.encoder = nn.Linear(4, 4)
        self.num_features = 4


def test_a_network_with_a_part_called_encoder(tmp_path: Path) -> None:
    network, path = Transformer(), str(tmp_path / "b.pt")
    for prefix in ("", "backbone.", "encoder.", "module.", "_orig_mod.", "module._orig_mod.backbone."):
        torch.save({prefix + key: value for key, value in network.state_dict().items()}, path)
        other = Transformer()
        source = " from encoder" if prefix == "encoder." else ""
        said = load_backbone(other, read_backbone(path))
        assert said.endswith(f"4 of 4 weights of the backbone loaded{source}")
        assert all(torch.equal(other.state_dict()[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    state = build_backbone("conv4").state_dict()
    key = next(iter(state))
    state[key][0] = value
    torch.save(state, tmp_path / "b.pt")
    with pytest.raises(ConfigError, match=rf"b.pt: {key}: not finite"):
        load_backbone(build_backbone("conv4"), read_backbone(str(tmp_path / "b.pt")))
    with pytest.raises(ConfigError, match=f"{key} is not finite"):
        export_backbone(str(tmp_path / "b.pt"), str(tmp_path / "c.pt"))
    assert not (tmp_path / "c.pt").exists()


def test_an_export_does_not_overwrite_its_source(tmp_path: Path) -> None:
    path = tmp_path / "b.pt"
    torch.save(build_backbone("conv4").state_dict(), path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="is the checkpoint itself"):
        export_backbone(str(path), str(tmp_path / "x" / ".." / "b.pt"))
    assert path.read_bytes() == before


def test_what_is_no_weight_is_passed_over(tmp_path: Path) -> None:
    state = build_backbone("conv4").state_dict()
    counters = {key: value.float() for key, value in state.items() if key.endswith("num_batches_tracked")}
    odd = {0: torch.zeros(1), "words": ["a"]}
    content = {"state_dict": {**state, **counters, **odd}, "hyper_parameters": ["a"]}
    torch.save(content, tmp_path / "b.pt")
    assert "24 of 24 weights" in load_backbone(build_backbone("conv4"), read_backbone(str(tmp_path / "b.pt")))
    torch.save({"state_dict": state, "hyper_parameters": {"backbone": 5}}, tmp_path / "b.pt")
    with pytest.raises(ConfigError, match="backbone must be a name, a name with options, or a module, got 5"):
        backbone_from(str(tmp_path / "b.pt"))


def test_what_is_too_large_for_the_backbone_is_refused(tmp_path: Path) -> None:
    state = {
        key: value.double() if value.is_floating_point() else value
        for key, value in build_backbone("conv4").state_dict().items()
    }
    key = next(iter(state))
    state[key][0] = 1e300
    torch.save(state, tmp_path / "b.pt")
    with pytest.raises(ConfigError, match=rf"{key}: not finite"):
        load_backbone(build_backbone("conv4"), read_backbone(str(tmp_path / "b.pt")))


MLP = {"fc.0.weight": torch.zeros(4, 4), "fc.2.bias": torch.zeros(4)}


@pytest.mark.parametrize(
    ("wrap", "head", "origin"),
    [
        # MoCo: queries and keys have the same names, and the queries' network is the one that is judged.
        (lambda own, other: {"state_dict": _under("module.encoder_q.", own | MLP)
                             | _under("module.encoder_k.", other | MLP) | {"module.queue": torch.zeros(2)}},
         "fc.0.weight, fc.2.bias", "encoder_q"),
        # SimSiam, and what torch.compile and DistributedDataParallel add.
        (lambda own, other: {"state_dict": _under("module.encoder.", own | MLP)
                             | {"module.predictor.0.weight": torch.zeros(2)}},
         "fc.0.weight, fc.2.bias", "encoder"),
        (lambda own, other: {"state_dict": _under("backbone._orig_mod.", own)}, "", ""),
        # SwAV: heads beside the backbone under one prefix.
        (lambda own, other: _under("module.", own | {"projection_head.0.weight": torch.zeros(2),
                                                     "prototypes.weight": torch.zeros(2)}),
         "projection_head.0.weight, prototypes.weight", ""),
        (lambda own, other: {"model": own | {"fc.weight": torch.zeros(2), "fc.bias": torch.zeros(2)}},
         "fc.weight, fc.bias", "model"),
        # DINO: the student has other weights.
        (lambda own, other: {"student": _under("module.backbone.", other),
                             "teacher": _under("backbone.", own) | {"head.0.weight": torch.zeros(2)}},
         "", "teacher.backbone"),
        (lambda own, other: _under("online_network.encoder.net.", own)
         | _under("target_network.encoder.net.", other), "", "online_network.encoder.net"),
    ],
)  # fmt: skip
def test_published_layouts_are_known_by_their_keys(wrap: Any, head: str, origin: str, tmp_path: Path) -> None:
    own, other = (build_backbone("resnet18").state_dict() for _ in range(2))
    torch.save(wrap(own, other), tmp_path / "theirs.pth")
    backbone, _, report = backbone_from(str(tmp_path / "theirs.pth"), "resnet18")
    found = backbone.state_dict()
    assert all(torch.equal(found[key], value) for key, value in own.items())
    assert (
        f"{len(own)} of {len(own)} weights of the backbone loaded{f' from {origin}' if origin else ''}"
        in report
    )
    assert origin or "loaded from" not in report
    assert report.endswith(f"; left out: {head}") if head else "left out" not in report


def _under(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}{key}": value for key, value in state.items()}


def test_a_part_that_is_no_head_is_still_refused(tmp_path: Path) -> None:
    state = build_backbone("resnet18").state_dict() | {"layer5.weight": torch.zeros(2)}
    torch.save(state, tmp_path / "theirs.pth")
    with pytest.raises(ConfigError, match=r"1 of the file unknown to the backbone \(layer5\.weight\)"):
        backbone_from(str(tmp_path / "theirs.pth"), "resnet18")
