from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import nn

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.optim import parameter_groups


def _names(group: dict, root: nn.Module) -> set[str]:
    by_id = {id(p): name for name, p in root.named_parameters()}
    return {by_id[id(p)] for p in group["params"]}


def test_names_order_and_options() -> None:
    modules = {
        "backbone": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        "projection_head": nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)),
    }
    groups = parameter_groups(modules, 1e-6)
    assert [(g["name"], len(g["params"]), g["weight_decay"], g["lars_exclude"]) for g in groups] == [
        ("backbone", 1, 1e-6, False),
        ("backbone_no_weight_decay", 3, 0.0, True),
        ("projection_head", 2, 1e-6, False),
        ("projection_head_no_weight_decay", 1, 0.0, True),
    ]


def test_every_norm_of_a_resnet_is_undecayed_including_downsample() -> None:
    net = torchvision.models.resnet18()
    decay, no_decay = parameter_groups({"backbone": net}, 0.1)
    assert {p.ndim for p in decay["params"]} == {2, 4}
    assert {"layer2.0.downsample.1.weight", "bn1.weight", "fc.bias"} <= _names(no_decay, net)
    counted = [id(p) for group in (decay, no_decay) for p in group["params"]]
    assert sorted(counted) == sorted(id(p) for p in net.parameters())


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.GroupNorm(2, 4),
        nn.LayerNorm((4, 2)),
        nn.RMSNorm(4),
        timm.layers.RmsNorm(4),
        timm.layers.BatchNormAct2d(4),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_normalisation_layers_are_undecayed(norm: nn.Module) -> None:
    groups = parameter_groups(nn.ModuleList([norm, nn.Linear(2, 2, bias=False)]), 0.1)
    assert [(g["name"], len(g["params"])) for g in groups] == [
        ("model", 1),
        ("model_no_weight_decay", len(list(norm.parameters()))),
    ]


def test_what_timm_lists_and_attention_biases_are_undecayed() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=1)
    decay, no_decay = parameter_groups(vit, 0.1)
    assert {"pos_embed", "cls_token", "blocks.0.norm1.weight", "blocks.0.attn.qkv.bias"} <= _names(
        no_decay, vit
    )
    assert _names(decay, vit) == {
        "patch_embed.proj.weight",
        "blocks.0.attn.qkv.weight",
        "blocks.0.attn.proj.weight",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight",
    }
    attention = nn.MultiheadAttention(4, 2)
    assert _names(parameter_groups(attention, 0.1)[1], attention) == {"in_proj_bias", "out_proj.bias"}


def test_a_class_with_norm_in_its_name_keeps_the_decay_of_its_matrix() -> None:
    class NormalizedLinear(nn.Linear):
        pass

    layer = NormalizedLinear(3, 2)
    assert _names(parameter_groups(layer, 0.1)[0], layer) == {"weight"}


def test_shared_once_and_frozen_never() -> None:
    shared = nn.Linear(3, 3, bias=False)
    frozen = nn.Linear(3, 3)
    frozen.requires_grad_(False)
    groups = parameter_groups(
        {"a": nn.Sequential(shared, frozen), "b": nn.Sequential(shared, nn.ReLU(), shared)}, 0.1
    )
    assert [(g["name"], len(g["params"])) for g in groups] == [("a", 1)]
    torch.optim.AdamW(groups, lr=1e-3)  # refuses a parameter that is in two groups


def test_errors() -> None:
    with pytest.raises(ConfigError, match="No parameter of backbone is trainable"):
        parameter_groups({"backbone": nn.ReLU()}, 0.1)
    with pytest.raises(ConfigError, match="weight_decay must be a finite number >= 0, got -1"):
        parameter_groups(nn.Linear(1, 1), -1.0)
