from __future__ import annotations

import math

import pytest
import torch
from helpers import Memory, make_views, randn

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.kernels import RBF, Polynomial, Tanh
from mmcl_lightning.losses import NTXentLoss


def _twin(z0: torch.Tensor, z1: torch.Tensor, temperature: float) -> float:
    """Equation 1 of the SimCLR paper, in Python floats."""
    rows = torch.cat([z0, z1]).tolist()
    rows = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in rows]
    images, total = len(z0), 0.0
    for i in range(2 * images):
        logits = [sum(a * b for a, b in zip(rows[i], row, strict=True)) / temperature for row in rows]
        partner = (i + images) % (2 * images)
        below = sum(math.exp(value) for k, value in enumerate(logits) if k != i)
        total -= math.log(math.exp(logits[partner]) / below)
    return total / (2 * images)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("images", [2, 7])
def test_equals_the_equation_in_loops(temperature: float, images: int) -> None:
    z0, z1 = 3 * randn(images, 5, seed=1), randn(images, 5, seed=2)
    assert NTXentLoss(temperature)(z0, z1).item() == pytest.approx(_twin(z0, z1, temperature), rel=1e-12)


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(
        NTXentLoss(0.3), (randn(4, 3, seed=5).requires_grad_(), randn(4, 3).requires_grad_())
    )


def test_statistics_equal_their_definition() -> None:
    z0, z1 = make_views(9, 4, noise=1.0, seed=6)
    loss = NTXentLoss(0.2)
    loss(z0, z1)
    z = torch.cat([z0, z1])
    cosine, partner = z @ z.T, (torch.arange(18) + 9) % 18
    cosine.fill_diagonal_(-2)
    hits = (cosine.argmax(1) == partner).double().mean()
    assert 0 < hits < 1
    assert loss.last_stats["contrast_top1"].item() == pytest.approx(hits.item())
    assert loss.last_stats["positive_similarity"].item() == pytest.approx((z0 * z1).sum(1).mean().item())
    assert loss.last_stats["negatives"].item() == 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_computed_in_single(dtype: torch.dtype) -> None:
    z0, z1 = (view.to(dtype) for view in make_views(8, 6, seed=7))
    loss = NTXentLoss(0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z0, z1)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(z0.float(), z1.float()))


def test_scale_and_order_do_not_matter() -> None:
    z0, z1 = make_views(8, 6, seed=8)
    expected, order = NTXentLoss()(z0, z1), torch.arange(8).flip(0)
    torch.testing.assert_close(NTXentLoss()(1e3 * z0, 1e-3 * z1), expected)
    torch.testing.assert_close(NTXentLoss()(z1, z0), expected)
    torch.testing.assert_close(NTXentLoss()(z0[order], z1[order]), expected)
    unnormalised = NTXentLoss(normalize=False)
    torch.testing.assert_close(unnormalised(z0, z1), expected)
    assert unnormalised(2 * z0, z1) != expected


def test_any_batch_size_in_any_call() -> None:
    loss = NTXentLoss()
    for images in (8, 2, 5):
        views = make_views(images, 4, seed=9)
        assert loss(*views) == NTXentLoss()(*views)


def test_memory_grows_with_the_square_of_the_batch() -> None:
    peaks = []
    for images in (48, 96):
        z0, z1 = (view.float().requires_grad_() for view in make_views(images, 4, seed=10))
        with Memory() as memory:
            NTXentLoss()(z0, z1).backward()
        assert memory.largest <= 4 * (2 * images) ** 2
        peaks.append(memory.peak)
    assert peaks[1] <= 4.5 * peaks[0]


def test_the_kernel_is_the_similarity() -> None:
    views = make_views(6, 4, noise=1.0, seed=11)
    cosine = NTXentLoss(0.3)(*views)
    torch.testing.assert_close(NTXentLoss(0.3, kernel=Polynomial(1, offset=0.0))(*views), cosine)
    # tanh(x) is x where x is small
    nearly = NTXentLoss(0.3e-4, kernel=Tanh(gamma=1e-4))(*views)
    torch.testing.assert_close(nearly, cosine, rtol=1e-7, atol=0)
    assert abs(NTXentLoss(0.3, kernel=Tanh(gamma=1.0))(*views) - cosine) > 0.01


def test_the_median_width_is_taken_from_the_candidates() -> None:
    views = make_views(6, 4, noise=1.0, seed=12)
    kernel = RBF(gamma="median")
    expected = NTXentLoss(kernel=kernel.fit(torch.cat(views)))(*views)
    assert NTXentLoss(kernel=kernel)(*views) == expected


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_is_checked(temperature: float) -> None:
    with pytest.raises(ConfigError, match=f"temperature must be a finite number > 0, got {temperature}"):
        NTXentLoss(temperature)


def test_input_is_checked() -> None:
    with pytest.raises(ShapeError, match="at least 2 images per batch, got 1"):
        NTXentLoss()(torch.ones(1, 3), torch.ones(1, 3))
    with pytest.raises(ShapeError, match=r"got \(2, 3\) and \(2, 4\)"):
        NTXentLoss()(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(NumericalError, match="1 of 2 rows of view 0 and 0 of 2 rows of view 1"):
        NTXentLoss()(torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1))
