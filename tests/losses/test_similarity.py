"""What every loss on similarities has to do, shown by its equation in loops over scalars."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import BASELINES, Memory, kernel_twin, make_views, randn
from torch import Tensor

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.losses import (
    ContrastiveLoss,
    DebiasedLoss,
    DecoupledLoss,
    HCLLoss,
    HingeLoss,
    NTXentLoss,
)

every_loss = pytest.mark.parametrize("loss", BASELINES, ids=repr)
WITH_TEMPERATURE = [loss for loss in BASELINES if hasattr(loss, "temperature")]


def _with_gradients(loss: Any, *views: Tensor) -> tuple[Tensor, ...]:
    leaves = [view.detach().clone().requires_grad_() for view in views]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves)


# The equations, term by term. Every number is a scalar tensor, so that autograd gives the gradient too.


def _dot(x: list[Tensor], y: list[Tensor]) -> Tensor:
    return sum((a * b for a, b in zip(x, y, strict=True)), torch.zeros(()))


def _anchors(loss: ContrastiveLoss, z0: Tensor, z1: Tensor) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Similarity to the positive, and to each negative, of every anchor."""
    rows = [list(row / row.norm()) for row in torch.cat([z0, z1])]
    similar: Callable[[Any, Any], Tensor] = _dot
    if (gamma := getattr(getattr(loss, "kernel", None), "gamma", None)) is not None:
        similar = lambda x, y: torch.tanh(gamma * _dot(x, y))  # noqa: E731
    images = len(z0)
    for i, row in enumerate(rows):
        partner = (i + images) % (2 * images)
        others = [rows[k] for k in range(2 * images) if k not in (i, partner)]
        yield similar(row, rows[partner]), [similar(row, other) for other in others]


def _mean(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum() / len(terms)


def _nt_xent(loss: NTXentLoss, p: Tensor, negatives: list[Tensor]) -> Tensor:
    T = loss.temperature
    return -((p / T).exp() / ((p / T).exp() + sum((s / T).exp() for s in negatives))).log()


def _debiased(loss: DebiasedLoss, p: Tensor, negatives: list[Tensor]) -> Tensor:
    T, tau, n = loss.temperature, loss.tau_plus, len(negatives)
    total = sum((s / T).exp() for s in negatives)
    if isinstance(loss, HCLLoss):
        weights = [(loss.beta * s / T).exp() for s in negatives]
        total = sum(w * (s / T).exp() for w, s in zip(weights, negatives, strict=True)) / (sum(weights) / n)
    estimate = (total - n * tau * (p / T).exp()) / (1 - tau)
    if estimate < n * math.exp(-1 / T):
        estimate = torch.tensor(n * math.exp(-1 / T))
    return -((p / T).exp() / ((p / T).exp() + estimate)).log()


def _hinge(loss: HingeLoss, p: Tensor, negatives: list[Tensor]) -> Tensor:
    return sum(t for s in negatives if (t := loss.margin - p + s) > 0) / len(negatives) + 0 * p


def _decoupled(loss: DecoupledLoss, pairs: list[tuple[Tensor, list[Tensor]]]) -> list[Tensor]:
    T, weights = loss.temperature, [1.0] * len(pairs)
    if loss.sigma is not None:
        raw = [math.exp(p.item() / loss.sigma) for p, _ in pairs]
        weights = [2 - w / (sum(raw) / len(raw)) for w in raw]
    sums = [sum((s / T).exp() for s in negatives) for _, negatives in pairs]
    return [total.log() - w * p / T for w, (p, _), total in zip(weights, pairs, sums, strict=True)]


#: The equation of every loss that has one anchor by anchor; a new loss needs an entry here.
FORMULAS = {NTXentLoss: _nt_xent, HingeLoss: _hinge, DebiasedLoss: _debiased, HCLLoss: _debiased}


def _twin(loss: ContrastiveLoss) -> Callable[[Tensor, Tensor], Tensor]:
    def value(z0: Tensor, z1: Tensor) -> Tensor:
        pairs = list(_anchors(loss, z0, z1))
        if isinstance(loss, DecoupledLoss):
            return _mean(_decoupled(loss, pairs))
        formula: Any = FORMULAS[type(loss)]
        return _mean([formula(loss, *pair) for pair in pairs])

    return value


@every_loss
@pytest.mark.parametrize("images", [2, 5])
def test_equals_the_equation_in_loops_with_gradients(loss: ContrastiveLoss, images: int) -> None:
    z0, z1 = 3 * randn(images, 4, seed=1), randn(images, 4, seed=2) + randn(images, 4, seed=1)
    expected = _with_gradients(_twin(loss), z0, z1)
    torch.testing.assert_close(_with_gradients(loss, z0, z1), expected, rtol=1e-10, atol=1e-12)
    assert expected[1].abs().max() > 1e-4


def test_the_twin_uses_the_kernel_it_is_to_use() -> None:
    loss = next(loss for loss in BASELINES if isinstance(loss, NTXentLoss) and "Tanh" in repr(loss))
    z0, z1 = make_views(3, 4, seed=3)
    p, _ = next(_anchors(loss, z0, z1))
    assert p.item() == pytest.approx(kernel_twin(loss.kernel)(z0[0].tolist(), z1[0].tolist()), rel=1e-12)


# Weights of positives carry no gradient by design; the twin above shows that.
@pytest.mark.parametrize("loss", [loss for loss in BASELINES if not getattr(loss, "sigma", None)], ids=repr)
def test_gradcheck(loss: ContrastiveLoss) -> None:
    z0, z1 = (view.requires_grad_() for view in make_views(4, 3, seed=4))
    assert torch.autograd.gradcheck(loss, (z0, z1))


# Values in closed form


@every_loss
def test_all_projections_in_one_point(loss: ContrastiveLoss) -> None:
    """The value of a collapsed network; with tau_plus or beta as without."""
    z = torch.ones(5, 3, dtype=torch.float64)
    value, *gradients = _with_gradients(loss, z, z)
    expected = math.log(9)
    if isinstance(loss, DecoupledLoss):
        expected = math.log(8)
    elif isinstance(loss, HingeLoss):
        expected = loss.margin
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert all(gradient.abs().max() < 1e-12 for gradient in gradients)


@every_loss
def test_the_loss_falls_where_positives_are_nearer_and_negatives_farther(loss: ContrastiveLoss) -> None:
    z0, z1 = make_views(8, 6, noise=0.7, seed=5)
    strangers = make_views(8, 6, seed=99)[0]
    assert loss(z0, z1) < loss(z0, strangers)
    steps = _with_gradients(loss, z0, z1)[1:]
    nearer = [z - 1e-3 * step for z, step in zip((z0, z1), steps, strict=True)]
    assert loss(*nearer) < loss(z0, z1)


# Numbers


@pytest.mark.parametrize("loss", WITH_TEMPERATURE, ids=repr)
@pytest.mark.parametrize("case", ["spread", "near positives", "apart", "wrong way round"])
def test_a_small_temperature_neither_overflows_nor_loses_precision(loss: ContrastiveLoss, case: str) -> None:
    """In single precision exp(1 / 0.01) is infinite, and so is the square of exp(0.5 / 0.01)."""
    z0, z1 = make_views(4, 6, noise=1e-3 if case == "near positives" else 0.7, seed=6)
    if case in ("apart", "wrong way round"):  # two images opposite each other; positives near, or far
        z0 = z0[:1] * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        z1 = (z0 if case == "apart" else -z0) + 0.1 * z1[:2]
    sharp = type(loss)(**(loss.options() | {"temperature": 0.01}))
    expected = _with_gradients(_twin(sharp), z0, z1)
    double = _with_gradients(sharp, z0, z1)
    torch.testing.assert_close(double, expected, rtol=1e-9, atol=1e-9)
    single = _with_gradients(sharp, z0.float(), z1.float())
    for got, wanted in zip(single, expected, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), wanted, rtol=2e-4, atol=2e-3)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_computed_in_single(loss: ContrastiveLoss, dtype: torch.dtype) -> None:
    z0, z1 = (view.to(dtype).requires_grad_() for view in make_views(8, 6, seed=7))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z0, z1)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(z0.float(), z1.float()))
    assert z0.grad is not None
    assert z0.grad.dtype == dtype
    assert z0.grad.isfinite().all()


@every_loss
def test_memory_grows_with_the_square_of_the_batch(loss: ContrastiveLoss) -> None:
    peaks = []
    for images in (48, 96):
        z0, z1 = (view.float().requires_grad_() for view in make_views(images, 4, seed=8))
        with Memory() as memory:
            loss(z0, z1).backward()
        assert memory.largest <= 4 * (2 * images) ** 2
        peaks.append(memory.peak)
    assert peaks[1] <= 4.5 * peaks[0]


# The contract with the caller


@every_loss
def test_scale_and_order_do_not_matter(loss: ContrastiveLoss) -> None:
    z0, z1 = make_views(8, 6, seed=9)
    expected, order = loss(z0, z1), torch.arange(8).flip(0)
    torch.testing.assert_close(loss(1e3 * z0, 1e-3 * z1), expected)
    torch.testing.assert_close(loss(z1, z0), expected)
    torch.testing.assert_close(loss(z0[order], z1[order]), expected)
    as_given = type(loss)(**(loss.options() | {"normalize": False}))
    torch.testing.assert_close(as_given(z0, z1), expected)
    assert as_given(2 * z0, z1) != expected


@every_loss
def test_any_batch_size_in_any_call(loss: ContrastiveLoss) -> None:
    for images in (8, 2, 5):
        views = make_views(images, 4, seed=10)
        assert loss(*views) == copy.deepcopy(loss)(*views)


@every_loss
def test_statistics_equal_their_definition(loss: ContrastiveLoss) -> None:
    z0, z1 = make_views(9, 4, noise=1.0, seed=11)
    fresh = type(loss)(**loss.options())
    assert fresh.last_stats == {}
    fresh(z0.requires_grad_(), z1)
    pairs = list(_anchors(loss, z0, z1))
    hits = sum(p >= max(negatives) for p, negatives in pairs) / len(pairs)
    assert 0 < hits < 1
    stats = fresh.last_stats
    assert set(stats) == {"positive_similarity", "contrast_top1", "negatives"}
    assert not any(value.requires_grad for value in stats.values())
    assert stats["contrast_top1"].item() == pytest.approx(float(hits))
    assert stats["positive_similarity"].item() == pytest.approx(_mean([p for p, _ in pairs]).item())
    assert stats["negatives"].item() == len(pairs[0][1]) == fresh.negatives_per_anchor(9) == 16


@every_loss
def test_input_is_checked(loss: ContrastiveLoss) -> None:
    with pytest.raises(ShapeError, match="at least 2 images per batch, got 1"):
        loss(torch.ones(1, 3), torch.ones(1, 3))
    with pytest.raises(ShapeError, match=r"got \(2, 3\) and \(2, 4\)"):
        loss(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(NumericalError, match="1 of 2 rows of view 0 and 0 of 2 rows of view 1"):
        loss(torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1))


@pytest.mark.parametrize("kind", [NTXentLoss, DebiasedLoss, HCLLoss, DecoupledLoss])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_temperature_is_checked(kind: Any, temperature: float) -> None:
    with pytest.raises(ConfigError, match=f"temperature must be a finite number > 0, got {temperature}"):
        kind(temperature)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: DebiasedLoss(tau_plus=1.0), r"tau_plus must be a finite number in \[0, 1\), got 1.0"),
        (lambda: DebiasedLoss(tau_plus=-0.1), "got -0.1"),
        (lambda: HCLLoss(tau_plus=math.nan), "got nan"),
        (lambda: HCLLoss(beta=-1.0), "beta must be a finite number >= 0, got -1.0"),
        (lambda: HCLLoss(beta=math.inf), "beta must be a finite number >= 0, got inf"),
        (
            lambda: DecoupledLoss(sigma=0.0),
            "sigma must be a finite number > 0 or None for equal weights, got 0.0",
        ),
        (lambda: HingeLoss(0.0), "margin must be a finite number > 0, got 0.0"),
        (lambda: HingeLoss(math.inf), "margin must be a finite number > 0, got inf"),
        (lambda: NTXentLoss(kernel="tanh"), r"expected a Kernel object.*Tanh\(gamma=1.0\).*got 'tanh'"),
    ],
)
def test_options_are_checked(build: Callable[[], ContrastiveLoss], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


@every_loss
def test_options_build_the_loss_again(loss: ContrastiveLoss) -> None:
    again = type(loss)(**loss.options())
    assert repr(again) == repr(loss)
    views = make_views(6, 4, seed=12)
    assert again(*views) == loss(*views)
