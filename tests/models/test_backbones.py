from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import Conv4, build_backbone, explained, feature_dim


@pytest.mark.parametrize(("name", "width"), [("resnet18", 512), ("resnet50", 2048), ("conv4", 256)])
def test_forward_gives_the_representation(name: str, width: int) -> None:
    with torch.device("meta"):  # shapes without the arithmetic
        backbone = build_backbone(name)
        h = backbone(torch.zeros(2, 3, 32, 32))
    assert h.shape == (2, width)
    assert feature_dim(backbone) == width
    assert h.requires_grad


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet50_2"])
def test_keys_are_torchvisions_without_classifier(name: str) -> None:
    with torch.device("meta"):
        expected = set(torchvision.models.get_model(name).state_dict()) - {"fc.weight", "fc.bias"}
        assert set(build_backbone(name).state_dict()) == expected


def test_published_weights_load_with_exactly_the_classifier_left_over() -> None:
    torch.manual_seed(0)
    weights = torchvision.models.resnet18().state_dict()
    report = build_backbone("resnet18").load_state_dict(weights, strict=False)
    assert report.missing_keys == []
    assert report.unexpected_keys == ["fc.weight", "fc.bias"]


def test_random_start_is_torchvisions() -> None:
    torch.manual_seed(3)
    expected = torchvision.models.resnet18().state_dict()
    torch.manual_seed(3)
    actual = build_backbone("resnet18").state_dict()
    for key, value in actual.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)


def test_cifar_stem_keeps_32_pixels() -> None:
    backbone = build_backbone("resnet18", cifar_stem=True)
    images = torch.zeros(2, 3, 32, 32)
    after_conv1 = backbone.conv1(images)
    assert after_conv1.shape == (2, 64, 32, 32)
    assert backbone.maxpool(after_conv1).shape == (2, 64, 32, 32)
    assert backbone.conv1.bias is None
    assert backbone(images).shape == (2, 512)


def test_cifar_stem_starts_like_the_other_convolutions() -> None:
    torch.manual_seed(0)
    weight = build_backbone("resnet18", cifar_stem=True).conv1.weight
    # kaiming normal, fan_out = 64 * 9; torch's own default would be far from it (uniform, fan_in = 27).
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "cifar_stem"),
    [("resnet18", False), ("resnet18", True), ("conv4", False), ("timm:resnet10t", False)],
)
def test_other_channel_counts(name: str, cifar_stem: bool) -> None:
    backbone = build_backbone(name, cifar_stem=cifar_stem, in_channels=1)
    assert backbone(torch.zeros(2, 1, 32, 32)).shape == (2, feature_dim(backbone))


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_050"])
def test_timm_width_is_that_of_the_forward(name: str) -> None:
    with torch.device("meta"):
        backbone = build_backbone(name)
        assert backbone(torch.zeros(2, 3, 224, 224)).shape == (2, feature_dim(backbone))


def test_conv4_is_small_and_trains() -> None:
    torch.manual_seed(0)
    net = Conv4()
    assert sum(p.numel() for p in net.parameters()) < 400_000
    net(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "Did you mean 'resnet18'.*timm:NAME.*'conv4'"),
        ("timm:vit_smal_patch16_224", {}, "Did you mean .*'timm:vit_small_patch16_224'"),
        ("qqqqqq", {}, r"Unknown backbone 'qqqqqq'\. A name is a torchvision ResNet"),
        ("conv4", {"cifar_stem": True}, "cifar_stem=True works with torchvision ResNets"),
        ("timm:resnet18", {"cifar_stem": True}, "cifar_stem=True works with torchvision ResNets"),
        ("conv4", {"pretrained": True}, "no published weights for 'conv4'"),
        ("resnet18", {"pretrained": True, "cifar_stem": True}, "pretrained=True needs the stem"),
        ("resnet18", {"cifar_stem": "false"}, "cifar_stem must be True or False, got 'false'"),
        ({"name": "resnet18", "cifar_stem": None}, {}, "cifar_stem must be True or False, got None"),
        ({"name": "conv4", 1: 2}, {}, "options of a backbone have names, such as in_channels, got 1"),
        ("resnet18", {"in_channels": 0}, "in_channels must be an integer >= 1, got 0"),
    ],
)
def test_wrong_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_backbone(name, **options)


class _Flat(nn.Module):
    """A user's own network: no num_features, dropout, batch norm, one part frozen on purpose."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.frozen = nn.BatchNorm2d(3).eval()
        self.drop = nn.Dropout()
        self.linear = nn.Linear(3 * side * side, 17)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return self.linear(self.drop(self.frozen(self.norm(x))).flatten(1))


@pytest.mark.parametrize("side", [32, 224])
def test_width_of_an_unknown_module_is_found_without_a_trace(side: int) -> None:
    torch.manual_seed(0)
    net = _Flat(side).train()
    net.frozen.eval()
    before, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    assert feature_dim(net) == 17
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert (net.training, net.norm.training, net.frozen.training) == (True, True, False)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Conv2d(3, 4, 3), r"gave shape \(2, 4, 30, 30\)"),
        (nn.Linear(5, 5), "224 pixels: RuntimeError"),
    ],
)
def test_width_that_cannot_be_found(net: nn.Module, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"let the module have an attribute num_features.*{reason}"):
        feature_dim(net)


class _Wrapped(nn.Module):
    """A user's own network around another one, with a check of its own or a step that turns images grey."""

    def __init__(self, net: nn.Module, before: Any) -> None:
        super().__init__()
        self.net, self.before = net, before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.before(x))


def _bright(x: torch.Tensor) -> torch.Tensor:
    assert x.max() > 1, "images of size 32 are brighter"
    return x


def _out_of_memory(x: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("out of memory: max_split_size_mb")


IMAGES = torch.zeros(2, 3, 32, 32)


@pytest.mark.parametrize(
    ("net", "images", "message"),
    [
        (
            build_backbone("resnet18", in_channels=4),
            IMAGES,
            "have 3 channels, and .* first layer takes 4: set",
        ),
        (
            nn.Conv2d(3, 4, 40),
            IMAGES,
            r"does not take images of 32 x 32 pixels \(Calculated padded input size",
        ),
        (
            build_backbone("timm:vit_tiny_patch16_224", img_size=64),
            IMAGES,
            r"images of 32 x 32 pixels \(Input height \(32\) doesn't match model \(64\)",
        ),
    ],
)
def test_images_that_do_not_fit_are_explained(net: nn.Module, images: torch.Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message), explained(net, images):
        net(images)


@pytest.mark.parametrize(
    ("net", "images", "kind", "message"),
    [
        (_Wrapped(nn.Conv2d(3, 4, 3), _bright), IMAGES, AssertionError, "are brighter"),
        (_Wrapped(nn.Conv2d(1, 4, 3), _out_of_memory), IMAGES, torch.OutOfMemoryError, "max_split_size"),
        (_Wrapped(nn.Conv2d(3, 4, 3), lambda x: x + torch.ones(7)), IMAGES, RuntimeError, "size of tensor a"),
        (build_backbone("resnet18"), IMAGES[:1], ValueError, "Expected more than 1 value per channel"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(5, 4, 3)), IMAGES, RuntimeError, "to have 5 channels"),
    ],
    ids=["own check", "memory", "own bug", "one image", "a layer within"],
)
def test_other_errors_of_a_network_stay_as_they_are(
    net: nn.Module, images: torch.Tensor, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught, explained(net, images):
        net(images)
    assert not isinstance(caught.value, ShapeError)


def test_errors_of_what_stands_beside_the_network_stay_as_they_are() -> None:
    net = build_backbone("conv4", in_channels=1)
    with pytest.raises(RuntimeError, match="Kernel size") as caught, explained(net, IMAGES):
        nn.Conv2d(256, 4, 40)(torch.zeros(2, 256, 4, 4))
    assert not isinstance(caught.value, ShapeError)
