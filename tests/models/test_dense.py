"""Dilated ResNets: the features of before, at an eighth of the image's size."""

from __future__ import annotations

import pytest
import torch
import torchvision

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.models import build_backbone, dilate, feature_map


def test_it_is_torchvisions_dilation_on_resnet50() -> None:
    with torch.device("meta"):
        own = dilate(build_backbone("resnet50"))
        theirs = torchvision.models.resnet50(replace_stride_with_dilation=[False, True, True])
    pairs = {name: part for name, part in theirs.named_modules() if isinstance(part, torch.nn.Conv2d)}
    assert len(pairs) == 53
    for name, part in pairs.items():
        conv = own.get_submodule(name)
        for option in ("stride", "dilation", "padding", "kernel_size"):
            assert getattr(conv, option) == getattr(part, option), name


@pytest.mark.parametrize(("stem", "dilations"), [(False, [1, 2, 2, 2, 2, 4, 4, 4]), (True, [1] * 8)])
def test_the_stride_is_8_by_the_same_weights(stem: bool, dilations: list[int]) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", cifar_stem=stem).eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    images = torch.rand(1, 3, 40, 64)
    with torch.no_grad():
        maps = feature_map(dilate(dilate(backbone)), images)
    assert maps.shape == (1, 512, 5, 8)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    convs = [m for n, m in backbone.named_modules() if n.startswith(("layer3", "layer4")) and ".conv" in n]
    assert [conv.dilation[0] for conv in convs] == dilations
    with torch.no_grad():
        assert torch.allclose(backbone(images), maps.mean(dim=(2, 3)), atol=1e-5)


def test_other_networks_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"such as resnet50, and this backbone is mmcl_lightning's Conv4: pretrain a ResNet"
    ):
        dilate(build_backbone("conv4"))
