from __future__ import annotations

import pytest
import torch
from torch import nn

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import ProjectionHead


def _layout(head: nn.Module) -> list[tuple]:
    rows: list[tuple] = []
    for layer in head.layers:
        if isinstance(layer, nn.Linear):
            rows.append(("linear", layer.in_features, layer.out_features, layer.bias is not None))
        elif isinstance(layer, nn.BatchNorm1d):
            rows.append(("norm", layer.num_features, layer.weight.requires_grad, layer.bias.requires_grad))
        else:
            rows.append((type(layer).__name__,))
    return rows


def test_imagenet_head_is_the_published_one() -> None:
    head = ProjectionHead.imagenet()
    assert _layout(head) == [
        ("linear", 2048, 2048, False),
        ("norm", 2048, True, True),
        ("ReLU",),
        ("linear", 2048, 128, False),
        ("norm", 128, True, False),
    ]
    assert head.layers[-1].bias.abs().max() == 0


def test_cifar_head_is_the_published_one() -> None:
    assert _layout(ProjectionHead.cifar()) == [
        ("linear", 2048, 512, False),
        ("norm", 512, True, True),
        ("ReLU",),
        ("linear", 512, 128, True),
    ]


def test_head_without_norms_and_with_three_layers() -> None:
    head = ProjectionHead(96, 64, 32, num_layers=3, batch_norm=False)
    assert _layout(head) == [
        ("linear", 96, 64, True),
        ("ReLU",),
        ("linear", 64, 64, True),
        ("ReLU",),
        ("linear", 64, 32, True),
    ]


def test_one_layer_is_linear() -> None:
    assert _layout(ProjectionHead(8, output_dim=3, num_layers=1)) == [("linear", 8, 3, True)]


def test_output_is_not_normalised_and_the_frozen_bias_gets_no_gradient() -> None:
    torch.manual_seed(0)
    head = ProjectionHead.imagenet(16, 16, 8)
    z = head(torch.randn(32, 16))
    assert z.shape == (32, 8)
    assert (z.norm(dim=1) - 1).abs().min() > 1e-3
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(8), atol=1e-6, rtol=0)  # the last norm's bias is 0
    z.square().sum().backward()
    missing = [name for name, p in head.named_parameters() if p.grad is None]
    assert missing == ["layers.4.bias"]


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigError, match="num_layers must be an integer >= 1, got 0"):
        ProjectionHead(8, num_layers=0)
    with pytest.raises(ShapeError, match=r"Expected representations \(B, 8\), got \(2, 9\)"):
        ProjectionHead(8)(torch.zeros(2, 9))
