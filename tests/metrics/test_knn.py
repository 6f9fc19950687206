from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import (
    KNN_PROTOCOLS,
    KNNProtocol,
    effective_k,
    knn_accuracy,
    knn_predict,
    knn_scores,
)

CLASSES = 7


def _features(num: int, dim: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    centres = torch.randn(CLASSES, dim, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (num,), generator=g)
    return centres[labels] + 1.5 * torch.randn(num, dim, generator=g), labels


def _twin(query: Tensor, bank: Tensor, labels: Tensor, k: int, T: float) -> Tensor:
    """Eq. of Wu et al. 2018, one query and one neighbour at a time, in Python floats."""

    def unit(row: list[float]) -> list[float]:
        norm = math.sqrt(sum(v * v for v in row))
        return [v / norm for v in row]

    rows = [unit(row) for row in bank.double().tolist()]
    scores = torch.zeros(len(query), CLASSES, dtype=torch.float64)
    for i, q in enumerate(query.double().tolist()):
        s = [sum(a * b for a, b in zip(unit(q), row, strict=True)) for row in rows]
        for j in sorted(range(len(s)), key=lambda j: -s[j])[:k]:
            scores[i, labels[j]] += math.exp(s[j] / T)
    return scores


def _shares(scores: Tensor) -> Tensor:
    return scores.double() / scores.double().sum(dim=1, keepdim=True)


@pytest.mark.parametrize(("k", "T"), [(1, 0.5), (10, 0.07), (50, 0.5), (120, 0.1)])
def test_equals_the_loop_written_twin(k: int, T: float) -> None:
    (bank, labels), (query, _) = _features(120), _features(30, seed=1)
    scores = knn_scores(query, bank, labels, CLASSES, k=k, temperature=T)
    assert (scores.shape, scores.dtype) == ((30, CLASSES), torch.float32)
    twin = _twin(query, bank, labels, k, T)
    torch.testing.assert_close(_shares(scores), _shares(twin), rtol=1e-4, atol=1e-6)
    assert torch.equal(scores > 0, twin > 0)


@pytest.mark.parametrize(("k", "T"), [(20, 0.07), (200, 0.5)])
def test_equals_scikit_learn(k: int, T: float) -> None:
    (bank, labels), (query, _) = _features(1000), _features(300, seed=1)
    model = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / T), metric="cosine", algorithm="brute")
    model.fit(bank.double().numpy(), labels.numpy())
    expected = torch.from_numpy(model.predict_proba(query.double().numpy()))
    scores = knn_scores(query, bank, labels, CLASSES, k=k, temperature=T)
    torch.testing.assert_close(_shares(scores), expected, rtol=1e-4, atol=1e-6)
    predicted = knn_predict(query, bank, labels, CLASSES, k=k, temperature=T)
    assert torch.equal(predicted, torch.from_numpy(model.predict(query.double().numpy())))


@pytest.mark.parametrize("chunks", [(1, 1), (7, 13), (64, 100), (1000, 37)])
def test_chunks_do_not_change_the_result_even_with_ties(chunks: tuple[int, int]) -> None:
    # Small integers: products are exact, so equal similarities abound and only the tie rule can differ.
    g = torch.Generator().manual_seed(0)
    bank = torch.randint(-2, 3, (300, 4), generator=g).float()
    query = torch.randint(-2, 3, (40, 4), generator=g).float()
    labels = torch.arange(300) % CLASSES
    labels[::5] = -1
    options = {"k": 25, "temperature": 1.0, "normalize": False}
    scores = knn_scores(
        query, bank, labels, CLASSES, **options, chunk_size=chunks[0], bank_chunk_size=chunks[1]
    )
    similarity = (query @ bank.T).masked_fill(labels < 0, -math.inf)
    expected = torch.zeros(40, CLASSES, dtype=torch.float64)
    for i, row in enumerate(similarity.tolist()):
        nearest = sorted(range(300), key=lambda j: (-row[j], j))[:25]  # equal ones in bank order
        for j in nearest:
            expected[i, labels[j]] += math.exp(row[j] - row[nearest[0]])
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-7)


def test_collapsed_features_vote_in_bank_order() -> None:
    labels = torch.tensor([3, 1, 1, 2, 2, 2])
    scores = knn_scores(torch.ones(2, 4), torch.ones(6, 4), labels, CLASSES, k=3, bank_chunk_size=4)
    assert torch.equal(scores[0], torch.tensor([0.0, 2, 0, 1, 0, 0, 0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_dtype_is_computed_in_float32(dtype: torch.dtype) -> None:
    (bank, labels), (query, _) = _features(200), _features(20, seed=1)
    bank, query = bank.to(dtype), query.to(dtype)
    scores = knn_scores(query, bank, labels, CLASSES, k=20, temperature=0.07)
    assert scores.dtype == torch.float32
    expected = knn_scores(query.float(), bank.float(), labels, CLASSES, k=20, temperature=0.07)
    assert torch.equal(scores, expected)


def test_autocast_does_not_lower_the_precision() -> None:
    (bank, labels), (query, _) = _features(200), _features(20, seed=1)
    expected = knn_scores(query, bank, labels, CLASSES, k=20, temperature=0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = knn_scores(query, bank, labels, CLASSES, k=20, temperature=0.07)
    assert torch.equal(scores, expected)


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 1e4])
def test_extreme_temperatures_stay_finite_and_keep_every_vote(temperature: float) -> None:
    (bank, labels), (query, _) = _features(50), _features(5, seed=1)
    scores = knn_scores(query, bank, labels, CLASSES, k=50, temperature=temperature)
    assert bool(scores.isfinite().all())
    assert bool((scores > 0).all())  # the weights underflow at 1e-4, the votes must not


def test_long_and_short_rows_have_the_same_cosines() -> None:
    (bank, labels), (query, _) = _features(100), _features(10, seed=1)
    expected = knn_scores(query, bank, labels, CLASSES, k=9)
    scaled = knn_scores(query * 1e-6, bank * torch.logspace(-5, 5, 100)[:, None], labels, CLASSES, k=9)
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-6)
    zeros = knn_scores(torch.zeros(1, 16), bank, labels, CLASSES, k=3)
    assert zeros.sum() == 3  # similarity 0 to all: equal votes


def test_unlabelled_rows_and_queries_are_dropped() -> None:
    (bank, labels), (query, targets) = _features(100), _features(40, seed=1)
    labels[::3], targets[::4] = -1, -1
    keep, kept = labels >= 0, targets >= 0
    got = knn_accuracy(query, targets, bank, labels, CLASSES)
    assert got == knn_accuracy(query[kept], targets[kept], bank[keep], labels[keep], CLASSES)
    assert effective_k(200, labels) == int(keep.sum())
    assert effective_k(5, labels) == 5


def test_accuracy_counts_ranks() -> None:
    # Bank: one row per class on the axes, similarities to the query fall from class 0 to class 6.
    bank, labels = torch.eye(7), torch.arange(7)
    query = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]]).repeat(7, 1)
    got = knn_accuracy(query, torch.arange(7), bank, labels, CLASSES, KNNProtocol(k=7))
    assert got == {"top1": pytest.approx(1 / 7), "top5": pytest.approx(5 / 7)}


def test_top5_ignores_classes_without_a_vote() -> None:
    bank, labels = torch.eye(7), torch.arange(7)
    query = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]]).repeat(7, 1)
    got = knn_accuracy(query, torch.arange(7), bank, labels, CLASSES, KNNProtocol(k=2))
    assert got == {"top1": pytest.approx(1 / 7), "top5": pytest.approx(2 / 7)}


def test_fewer_classes_than_five() -> None:
    bank, labels = torch.eye(2), torch.arange(2)
    got = knn_accuracy(torch.eye(2), torch.tensor([0, 0]), bank, labels, 2, KNNProtocol(k=2))
    assert got == {"top1": 0.5, "top5": 1.0}


def test_equal_scores_rank_the_lower_class_first() -> None:
    bank, labels = torch.ones(2, 3), torch.tensor([4, 2])
    assert knn_predict(torch.ones(1, 3), bank, labels, CLASSES, k=2).tolist() == [2]
    first = knn_accuracy(torch.ones(2, 3), torch.tensor([2, 4]), bank, labels, CLASSES, KNNProtocol(k=2))
    assert first == {"top1": 0.5, "top5": 1.0}


def test_presets_and_their_description() -> None:
    lines = {name: protocol.describe() for name, protocol in KNN_PROTOCOLS.items()}
    assert lines == {
        "dino": "k=20 T=0.07 cosine h",
        "instdisc": "k=200 T=0.1 cosine h",
        "mmcl_paper": "k=200 T=0.5 cosine h",
    }
    assert KNNProtocol(5, 1.0, "z", normalize=False).describe() == "k=5 T=1 dot z"
    assert all(protocol.name == name for name, protocol in KNN_PROTOCOLS.items())


@pytest.mark.parametrize("side", ["query", "bank"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_non_finite_features(side: str, value: float, normalize: bool) -> None:
    features = {"query": torch.ones(3, 2), "bank": torch.ones(4, 2)}
    features[side][1, 0] = value
    with pytest.raises(NumericalError, match=f"1 of . rows of the {side} features hold NaN"):
        knn_scores(
            **features, bank_labels=torch.zeros(4, dtype=torch.long), num_classes=2, normalize=normalize
        )


def test_wrong_shapes_and_labels() -> None:
    q, b, y = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ShapeError, match=r"got \(2, 3\) and \(4, 2\)"):
        knn_scores(q, b[:, :2], y, 3)
    with pytest.raises(ShapeError, match=r"Expected bank labels \(4,\), got \(3,\)"):
        knn_scores(q, b, y[:3], 3)
    with pytest.raises(ShapeError, match=r"Expected query labels \(2,\), got \(4,\)"):
        knn_accuracy(q, y, b, y, 3)
    with pytest.raises(ConfigError, match="num_classes=2, but the bank has label 2"):
        knn_scores(q, b, y, 2)
    with pytest.raises(ConfigError, match="num_classes=3, but a query has label 3"):
        knn_accuracy(q, torch.tensor([0, 3]), b, y, 3)
    with pytest.raises(DataError, match=r"no labelled row \(of 4\)"):
        knn_scores(q, b, torch.full((4,), -1), 3)
    with pytest.raises(DataError, match=r"no labelled row \(of 0\)"):
        knn_scores(q, b[:0], y[:0], 3)
    with pytest.raises(DataError, match="None of the 2 k-NN queries is labelled"):
        knn_accuracy(q, torch.tensor([-1, -1]), b, y, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0"),
        ({"chunk_size": 0}, "chunk_size, bank_chunk_size must be at least 1"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        knn_scores(torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.long), 1, **options)
    with pytest.raises(ConfigError, match="feature must be 'h' or 'z', got 'x'"):
        KNNProtocol(feature="x")
