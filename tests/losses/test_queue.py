from __future__ import annotations

import math

import pytest
import torch
from helpers import Memory, make_views, randn

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.losses import HardNegativeMixing, InfoNCELoss


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
    with pytest.raises(ConfigError, match=f"temperature must be a finite number > 0, got {temperature}"):
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


# Mixing of hard negatives

MIXING = HardNegativeMixing(hardest=5, pairs=7, with_query=4)


def _synthetic(q: list[float], queue: torch.Tensor, draws: object, b: int) -> list[list[float]]:
    """The synthetic negatives of query b as the paper writes them, one after the other."""

    def dot(x: list[float], y: list[float]) -> float:
        return sum(a * c for a, c in zip(x, y, strict=True))

    def mixed(share: float, x: list[float], y: list[float]) -> list[float]:
        h = [share * a + (1 - share) * c for a, c in zip(x, y, strict=True)]
        return [a / math.sqrt(dot(h, h)) for a in h]

    hardest = sorted(queue.tolist(), key=lambda n: -dot(q, n))[: MIXING.hardest]
    d = {name: getattr(draws, name)[b].tolist() for name in draws.__dataclass_fields__}  # type: ignore[attr-defined]
    found = [
        mixed(a, hardest[i], hardest[j]) for a, i, j in zip(d["share"], d["first"], d["second"], strict=True)
    ]
    return found + [
        mixed(share, q, hardest[j]) for share, j in zip(d["query_share"], d["partner"], strict=True)
    ]


@pytest.mark.parametrize("temperature", [0.07, 0.2])
def test_mixing_equals_the_equations_in_loops(temperature: float) -> None:
    queue, key = _queue(9, 4), randn(3, 4, seed=2)
    draws = MIXING.draw(3, torch.Generator().manual_seed(1))
    query = (3 * randn(3, 4, seed=1)).requires_grad_()
    terms = []
    for b in range(3):
        q, k = query[b] / query[b].norm(), key[b] / key[b].norm()
        negatives = queue.tolist() + _synthetic(q.tolist(), queue, draws, b)
        logits = torch.stack([(q * torch.tensor(n, dtype=q.dtype)).sum() for n in negatives]) / temperature
        positive = (q * k).sum() / temperature
        terms.append(-(positive.exp() / (positive.exp() + logits.exp().sum())).log())
    expected = torch.stack(terms).mean()
    expected_gradient = torch.autograd.grad(expected, query)[0]
    loss = InfoNCELoss(temperature, MIXING)
    value = loss(query, key, queue, draws)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(value, query)[0], expected_gradient, rtol=1e-10, atol=1e-12
    )
    assert loss.last_stats["negatives"].item() == 9 + 7 + 4
    plain = InfoNCELoss(temperature)
    assert value > plain(query, key, queue)
    assert loss.last_stats["contrast_top1"] == plain.last_stats["contrast_top1"]


def test_mixed_with_the_query_is_harder_than_its_negative() -> None:
    queue, query = _queue(40, 6), make_views(5, 6, count=1, seed=3)[0]
    mixing = HardNegativeMixing(hardest=10, pairs=0, with_query=20)
    draws, similarity = mixing.draw(5, torch.Generator().manual_seed(1)), query @ queue.T
    found = mixing.similarities(query, queue, similarity, draws)
    parts = similarity.topk(10, dim=1).values.gather(1, draws.partner)
    assert (found > parts).all()
    assert found.max() < 1
    assert (draws.query_share < 0.5).all()


def test_the_draws_of_processes_are_shares_of_all() -> None:
    draws = MIXING.draw(6, torch.Generator().manual_seed(1))
    assert torch.equal(draws.rows(1, 3).first, draws.first[[1, 4]])
    assert torch.equal(draws.rows(0, 2).query_share, draws.query_share[::2])


def test_opposite_parts_have_no_direction() -> None:
    queue = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    query = torch.tensor([[0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    mixing = HardNegativeMixing(hardest=2, pairs=1, with_query=0)
    draws = mixing.draw(1)
    object.__setattr__(draws, "first", torch.tensor([[0]]))
    object.__setattr__(draws, "second", torch.tensor([[1]]))
    object.__setattr__(draws, "share", torch.tensor([[0.5]]))
    value = InfoNCELoss(0.2, mixing)(query, query.detach(), queue, draws)
    value.backward()
    assert value.isfinite()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_large_queues_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, queue = randn(6, 4, seed=1), randn(6, 4, seed=2), _queue(9, 4)
    draws = MIXING.draw(6, torch.Generator().manual_seed(1))
    expected = InfoNCELoss(0.2, MIXING)(query, key, queue, draws)
    monkeypatch.setattr("mmcl_lightning.losses.mixing._PART", 2 * 7 * 4)
    assert InfoNCELoss(0.2, MIXING)(query, key, queue, draws) == expected


def test_mixing_is_checked() -> None:
    with pytest.raises(ConfigError, match="hardest must be an integer >= 1, got 0"):
        HardNegativeMixing(hardest=0)
    with pytest.raises(ConfigError, match="both 0, so there is nothing to mix"):
        HardNegativeMixing(pairs=0, with_query=0)
    with pytest.raises(ConfigError, match=r"expected mixing=HardNegativeMixing\(...\) or None, got 3"):
        InfoNCELoss(mixing=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the 5 hardest negatives, and the queue has 4"):
        InfoNCELoss(mixing=MIXING)(randn(2, 4), randn(2, 4), _queue(4, 4))
