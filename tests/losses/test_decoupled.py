from __future__ import annotations

import math

import pytest
import torch
from helpers import make_views, randn

from mmcl_lightning.losses import DecoupledLoss, NTXentLoss


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("angle", [0.3, 1.0, 2.0])
def test_nt_xent_is_its_softplus(temperature: float, angle: float) -> None:
    """Anchor by anchor NT-Xent is log(1 + exp(decoupled)); here all four anchors are alike."""
    z0 = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    z1 = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64) * z0[:, :1]
    decoupled = DecoupledLoss(temperature)(z0, z1).item()
    negatives = math.exp(-1 / temperature) + math.exp(-math.cos(angle) / temperature)
    assert decoupled == pytest.approx(math.log(negatives) - math.cos(angle) / temperature, rel=1e-12)
    assert NTXentLoss(temperature)(z0, z1).item() == pytest.approx(math.log1p(math.exp(decoupled)), rel=1e-12)


def test_wide_weights_are_equal_ones() -> None:
    views = make_views(6, 4, noise=1.0, seed=1)
    plain = DecoupledLoss(0.2)(*views)
    torch.testing.assert_close(DecoupledLoss(0.2, sigma=1e9)(*views), plain, rtol=1e-8, atol=0)
    assert abs(DecoupledLoss(0.2, sigma=0.5)(*views) - plain) > 0.01


def test_positives_equally_near_are_weighed_alike() -> None:
    z0, across = make_views(6, 4, seed=2)[0], randn(6, 4, seed=3)
    across = across - (across * z0).sum(1, keepdim=True) * z0
    z1 = 0.8 * z0 + 0.6 * across / across.norm(dim=1, keepdim=True)  # every positive at cosine 0.8
    torch.testing.assert_close(DecoupledLoss(0.2, sigma=0.1)(z0, z1), DecoupledLoss(0.2)(z0, z1))


def test_far_positives_count_for_more() -> None:
    z0 = make_views(2, 6, seed=4)[0]
    z1 = torch.stack([z0[0], -z0[1]])  # one positive at cosine 1, one at -1
    T, sigma = 0.5, 0.8
    near = 2 - 2 * math.exp(1 / sigma) / (math.exp(1 / sigma) + math.exp(-1 / sigma))
    far = 2 - near
    assert near < 1 < far
    difference = DecoupledLoss(T, sigma)(z0, z1) - DecoupledLoss(T)(z0, z1)
    assert difference.item() == pytest.approx(-((near - 1) * 1 + (far - 1) * -1) / (2 * T), rel=1e-9)
