from __future__ import annotations

import math

import pytest
import torch
from helpers import make_views
from torch import Tensor

from mmcl_lightning.losses import ContrastiveLoss, DebiasedLoss, HCLLoss, NTXentLoss


def _with_gradients(loss: ContrastiveLoss, *views: Tensor) -> tuple[Tensor, ...]:
    leaves = [view.detach().clone().requires_grad_() for view in views]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves)


def _same(one: ContrastiveLoss, other: ContrastiveLoss, rtol: float = 1e-12) -> None:
    for seed, noise in ((1, 0.1), (2, 0.5), (3, 2.0)):
        views = make_views(7, 5, noise=noise, seed=seed)
        torch.testing.assert_close(
            _with_gradients(one, *views), _with_gradients(other, *views), rtol=rtol, atol=rtol
        )


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_without_false_negatives_it_is_nt_xent(temperature: float) -> None:
    _same(DebiasedLoss(temperature, tau_plus=0.0), NTXentLoss(temperature))


@pytest.mark.parametrize("tau_plus", [0.0, 0.1, 0.5])
def test_without_concentration_hcl_is_the_debiased_loss(tau_plus: float) -> None:
    _same(HCLLoss(0.3, tau_plus, beta=0.0), DebiasedLoss(0.3, tau_plus))
    _same(HCLLoss(0.3, tau_plus, beta=1e-9), DebiasedLoss(0.3, tau_plus), rtol=1e-6)


def test_with_all_concentration_only_the_nearest_negative_counts() -> None:
    z0, z1 = make_views(6, 4, seed=4)
    z = torch.cat([z0, z1])
    cosine, partner = z @ z.T, (torch.arange(12) + 6) % 12
    positive = cosine[torch.arange(12), partner]
    nearest = cosine.fill_diagonal_(-2).scatter(1, partner[:, None], -2).amax(1)
    expected = (1 + 10 * ((nearest - positive) / 0.5).exp()).log().mean()
    loss = HCLLoss(0.5, tau_plus=0.0, beta=1e5)
    assert loss(z0, z1).item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_estimate_stops_at_the_least_that_the_sum_can_be() -> None:
    """Two images opposite each other, positives in one place: n = 2, and the estimate would be negative."""
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    T, least = 0.5, 2 * math.exp(-2)
    for tau_plus in (0.1, 0.9):
        assert least > (2 * math.exp(-2) - 2 * tau_plus * math.exp(2)) / (1 - tau_plus)
        expected = math.log1p(least / math.exp(2))
        value, *gradients = _with_gradients(DebiasedLoss(T, tau_plus), z, z)
        assert value.item() == pytest.approx(expected, rel=1e-12)
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_batches_of_the_other_tests_lie_on_both_sides_of_the_least() -> None:
    """Else the equality with the loops would leave one of the two branches unseen."""
    z0, z1 = make_views(7, 5, noise=0.5, seed=2)
    z, T, tau_plus = torch.cat([z0, z1]), 0.3, 0.1
    similarity = (z @ z.T / T).exp()
    positive = similarity.diagonal(7).repeat(2)
    total = similarity.sum(1) - math.exp(1 / T) - positive
    free = (total - 12 * tau_plus * positive) / (1 - tau_plus) > 12 * math.exp(-1 / T)
    assert 0 < free.sum() < 14


@pytest.mark.parametrize("T", [0.07, 0.1])
@pytest.mark.parametrize("kind", [DebiasedLoss, HCLLoss])
def test_the_gradient_survives_single_precision_where_positives_lead(kind: type, T: float) -> None:
    """The sum over negatives is then tiny beside the positive, and 1 + tiny - 1 has no digits left."""
    views = make_views(64, 32, noise=0.2, seed=3)
    double = _with_gradients(kind(T, 0.1), *views)
    single = _with_gradients(kind(T, 0.1), *(view.float() for view in views))
    for got, wanted in zip(single[1:], double[1:], strict=True):
        assert (got.double() - wanted).norm() < 1e-4 * wanted.norm()
    assert double[0] < 1e-2


def test_more_false_negatives_make_for_a_smaller_loss_where_negatives_are_near() -> None:
    views = make_views(8, 4, classes=2, noise=1.0, seed=5)
    losses = [DebiasedLoss(0.5, tau_plus)(*views).item() for tau_plus in (0.0, 0.05, 0.1)]
    assert losses == sorted(losses, reverse=True)


def test_near_negatives_make_for_a_larger_loss_with_concentration() -> None:
    views = make_views(8, 4, seed=6)
    losses = [HCLLoss(0.5, 0.05, beta)(*views).item() for beta in (0.0, 0.5, 1.0, 2.0)]
    assert losses == sorted(losses)
