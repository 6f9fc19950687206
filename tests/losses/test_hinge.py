from __future__ import annotations

import pytest
import torch
from helpers import make_views

from mmcl_lightning.losses import HingeLoss


@pytest.mark.parametrize(("margin", "expected"), [(0.5, 0.0), (1.0, 0.0), (1.5, 0.5)])
def test_orthogonal_images_with_positives_in_one_place(margin: float, expected: float) -> None:
    z = torch.eye(4, dtype=torch.float64)
    assert HingeLoss(margin)(z, z).item() == pytest.approx(expected)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.0])
def test_is_half_the_triplet_loss_on_squared_distances(margin: float) -> None:
    z0, z1 = make_views(6, 4, noise=1.0, seed=1)
    z = torch.cat([z0, z1])
    distances = torch.cdist(z, z).square()
    triplets = [
        (distances[i, (i + 6) % 12] - distances[i, k] + 2 * margin).clamp_min(0)
        for i in range(12)
        for k in range(12)
        if k % 6 != i % 6
    ]
    assert HingeLoss(margin)(z0, z1).item() == pytest.approx(torch.stack(triplets).mean().item() / 2)


def test_a_negative_that_is_far_enough_gets_no_gradient() -> None:
    z0 = torch.eye(3, dtype=torch.float64).requires_grad_()
    HingeLoss(0.5)(z0, z0.detach()).backward()
    assert z0.grad is not None
    assert torch.equal(z0.grad, torch.zeros(3, 3, dtype=torch.float64))
