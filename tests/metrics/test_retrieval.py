"""R@k against a loop, with ties of classes, missing labels and banks smaller than k."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import recall_at_k

Q, N, F = 37, 60, 8


def features(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, F, generator=generator, dtype=torch.float64) + 3
    return x.float(), torch.randint(0, 7, (rows,), generator=generator)


def looped(x: Tensor, y: Tensor, bank: Tensor, labels: Tensor, k: int, center: bool) -> float:
    if center:
        x, bank = x - x.mean(0), bank - bank.mean(0)
    hits = 0
    for row, label in zip(x.double(), y.tolist(), strict=True):
        cosine = torch.stack([torch.dot(row, other) / (row.norm() * other.norm()) for other in bank.double()])
        hits += label in labels[cosine.argsort(descending=True)[:k]].tolist()
    return hits / len(x)


@pytest.mark.parametrize("center", [True, False])
def test_equals_a_loop(center: bool) -> None:
    (x, y), (bank, labels) = features(0, Q), features(1, N)
    ks = (1, 3, 10, 59, 60, 500)
    found = recall_at_k(x, y, bank, labels, ks, center=center)
    assert found == {k: looped(x, y, bank, labels, k, center) for k in ks}
    assert 0 < found[1] < found[3] < found[10]


def test_rows_without_a_label_do_not_count() -> None:
    (x, y), (bank, labels) = features(0, Q), features(1, N)
    y[::3], labels[::4] = -1, -1
    known = recall_at_k(x[y >= 0], y[y >= 0], bank[labels >= 0], labels[labels >= 0])
    assert recall_at_k(x, y, bank, labels) == known


def test_tiny_features_of_an_untrained_network() -> None:
    (x, y), (bank, labels) = features(0, Q), features(1, N)
    assert recall_at_k(x * 1e-12, y, bank * 1e-12, labels) == recall_at_k(x, y, bank, labels)


def test_wrong_arguments() -> None:
    (x, y), (bank, labels) = features(0, Q), features(1, N)
    with pytest.raises(ConfigError, match="ks must be an integer >= 1"):
        recall_at_k(x, y, bank, labels, (1, 0))
    with pytest.raises(ShapeError, match=r"got \(37, 8\) and \(60, 7\)"):
        recall_at_k(x, y, bank[:, :7], labels)
    with pytest.raises(DataError, match="0 queries and 60 of the bank"):
        recall_at_k(x, -torch.ones_like(y), bank, labels)
    bank[3] = torch.nan
    with pytest.raises(NumericalError, match="rows of the bank features"):
        recall_at_k(x, y, bank, labels)
