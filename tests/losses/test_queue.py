from __future__ import annotations

import math

import pytest
import torch
from helpers import Memory, make_views, randn

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.losses import InfoNCELoss


def _queue(rows: int, dim: int, seed: int = 9) -> torch.Tensor:
    return make_views(rows, dim, count=1, seed=seed)[0]


def _twin(query: torch.Tensor, key: torch.Tensor, queue: torch.Tensor, temperature: float) -> torch.Tensor:
    """Equation 1 of the MoCo paper, entry by entry, with gradient to the query."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(query)):
        q_length = sum(x * x for x in query[b]) ** 0.5
        k_length = sum(x * x for x in key[b].tolist()) ** 0.5
        q = [x / q_length for x in query[b]]
        k = [x / k_length for x in key[b].tolist()]
        positive = (sum(x * y for x, y in zip(q, k, strict=True)) / temperature).exp()
        below = positive
        for row in queue.tolist():
            below = below + (sum(x * y for x, y in zip(q, row, strict=True)) / temperature).exp()
        total = total - (positive / below).log()
    return total / len(query)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 2.0])
@pytest.mark.parametrize(("images", "rows"), [(1, 1), (3, 7)])
def test_value_and_gradient_equal_the_equation_in_loops(temperature: float, images: int, rows: int) -> None:
    key, queue = randn(images, 4, seed=2), _queue(rows, 4)
    results = []
    for loss in (InfoNCELoss(temperature), lambda q, k, n: _twin(q, k, n, temperature)):
        query = (3 * randn(images, 4, seed=1)).requires_grad_()
        value = loss(query, key, queue)
        results.append((value.detach(), torch.autograd.grad(value, query)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-14)


def test_orthogonal_negatives_in_closed_form() -> None:
    query = torch.eye(3, dtype=torch.float64)[:1]
    queue = torch.eye(3, dtype=torch.float64)[1].repeat(5, 1)
    assert InfoNCELoss(0.2)(query, 7 * query, queue).item() == pytest.approx(math.log1p(5 * math.exp(-5.0)))


def test_gradcheck() -> None:
    queue = _queue(5, 3)
    assert torch.autograd.gradcheck(
        lambda q, k: InfoNCELoss(0.3)(q, k, queue),
        (randn(4, 3, seed=5).requires_grad_(), randn(4, 3)),
    )


def test_no_gradient_reaches_keys_and_queue() -> None:
    query, key, queue = (randn(4, 3, seed=seed).requires_grad_() for seed in range(3))
    InfoNCELoss()(query, key, queue).backward()
    assert query.grad is not None
    assert key.grad is None
    assert queue.grad is None


def test_statistics_equal_their_definition() -> None:
    query, key = make_views(9, 4, noise=1.0, seed=6)
    queue = _queue(6, 4)
    loss = InfoNCELoss(0.2)
    assert loss.last_stats == {}
    loss(query, key, queue)
    positive = (query * key).sum(1)
    hits = (positive > (query @ queue.T).amax(1)).double().mean()
    assert 0 < hits < 1
    assert loss.last_stats["contrast_top1"].item() == pytest.approx(hits.item())
    assert loss.last_stats["positive_similarity"].item() == pytest.approx(positive.mean().item())
    assert loss.last_stats["negatives"].item() == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_computed_in_single(dtype: torch.dtype) -> None:
    query, key = (view.to(dtype) for view in make_views(8, 6, seed=7))
    queue, loss = _queue(16, 6).float(), InfoNCELoss(0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(query, key, queue)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(query.float(), key.float(), queue))


def test_scale_and_order_do_not_matter() -> None:
    query, key = make_views(8, 6, seed=8)
    queue, order = _queue(16, 6), torch.arange(8).flip(0)
    expected = InfoNCELoss()(query, key, queue)
    torch.testing.assert_close(InfoNCELoss()(1e3 * query, 1e-3 * key, queue), expected)
    torch.testing.assert_close(InfoNCELoss()(query[order], key[order], queue.flip(0)), expected)


def test_no_array_is_larger_than_queries_times_queue() -> None:
    query, key = (view.float().requires_grad_() for view in make_views(48, 4, seed=10))
    queue = _queue(200, 4).float()
    with Memory() as memory:
        InfoNCELoss()(query, key, queue).backward()
    assert memory.largest == 4 * 48 * 200


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_is_checked(temperature: float) -> None:
    with pytest.raises(ConfigError, match=f"temperature must be > 0, got {temperature}"):
        InfoNCELoss(temperature)


def test_input_is_checked() -> None:
    loss, z, queue = InfoNCELoss(), torch.ones(2, 3), torch.ones(4, 3)
    with pytest.raises(ShapeError, match=r"got \(2, 3\) and \(2, 4\)"):
        loss(z, torch.ones(2, 4), queue)
    with pytest.raises(ShapeError, match=r"queue must have shape \(K, 3\) with K >= 1, got \(4, 2\)"):
        loss(z, z, torch.ones(4, 2))
    with pytest.raises(ShapeError, match=r"K >= 1, got \(0, 3\)"):
        loss(z, z, torch.ones(0, 3))
    with pytest.raises(ShapeError, match=r"key must have a floating dtype, got torch\.int64"):
        loss(z, z.long(), queue)
    with pytest.raises(NumericalError, match="1 of 2 queries and 0 of 2 keys"):
        loss(torch.tensor([[1.0, 0.0, 0.0], [math.nan, 0.0, 0.0]]), z, queue)
    with pytest.raises(NumericalError, match="although all projections are finite"):
        loss(z, z, torch.full((4, 3), math.inf))
