"""Neighbours and near duplicates are those of a loop over all pairs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.neighbours import near_duplicates, nearest_neighbours, search


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Rows of any length, of which some are nearly or exactly alike; blocks are small."""
    monkeypatch.setattr(search, "CHUNK_SIZE", 7)
    monkeypatch.setattr(search, "BANK_CHUNK_SIZE", 11)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)
    x[20:26] = 3 * x[5]  # seven copies but for their length
    x[30] = x[6] + 0.05 * torch.randn(6, generator=generator)
    x[31] = 0.5 * x[7] + 0.01 * torch.randn(6, generator=generator)
    return x


@pytest.mark.parametrize("k", [1, 4, 39, 60])
def test_neighbours_are_those_of_a_loop(rows: torch.Tensor, k: int) -> None:
    unit = F.normalize(rows.double(), dim=1)
    queries = torch.tensor([5, 6, 25, 0, 39, 31, 7, 8, 9])
    similarity, index = nearest_neighbours(rows, queries, k)
    assert similarity.shape == index.shape == (9, min(k, 39))
    for query, values, others in zip(queries.tolist(), similarity, index.tolist(), strict=True):
        expected = sorted(((float(unit[query] @ unit[j]), j) for j in range(40) if j != query), reverse=True)
        torch.testing.assert_close(
            values.double(), torch.tensor([s for s, _ in expected[:k]]).double(), rtol=0, atol=1e-6
        )
        assert query not in others
        assert len(set(others)) == len(others)
    copies = index[queries.tolist().index(25)][: min(k, 6)].tolist()
    assert set(copies) <= {5, 20, 21, 22, 23, 24}


@pytest.mark.parametrize("k", [1, 3, 39])
@pytest.mark.parametrize("threshold", [0.9, 0.999, 1.0])
def test_near_duplicates_are_those_of_a_loop(rows: torch.Tensor, k: int, threshold: float) -> None:
    unit = F.normalize(rows.double(), dim=1)
    for queries in (torch.arange(40), torch.tensor([6, 25])):
        found = near_duplicates(rows, queries, *nearest_neighbours(rows, queries, k), threshold)
        expected = {
            (i, j): float(unit[i] @ unit[j])
            for i in range(40)
            for j in range(i + 1, 40)
            if unit[i] @ unit[j] >= threshold - 1e-6 and (i in queries or j in queries)
        }
        pairs, values = found
        assert {tuple(pair) for pair in pairs.tolist()} == expected.keys()
        assert len(pairs) == len(expected)
        assert values.tolist() == pytest.approx([expected[tuple(p)] for p in pairs.tolist()], abs=1e-6)
        assert values.tolist() == sorted(values.tolist(), reverse=True)


def test_a_collapsed_network_has_too_many_pairs() -> None:
    rows, queries = torch.ones(700, 4), torch.arange(700)  # 244,650 pairs
    assert near_duplicates(rows, queries, *nearest_neighbours(rows, queries), 0.98) is None


def test_what_cannot_be_searched() -> None:
    with pytest.raises(DataError, match="there is 1 image, which has no neighbour"):
        nearest_neighbours(torch.ones(1, 3), torch.tensor([0]))
    with pytest.raises(ShapeError, match=r"Expected representations \(N, F\), got \(2, 3, 4\)"):
        nearest_neighbours(torch.ones(2, 3, 4), torch.tensor([0]))
    with pytest.raises(NumericalError, match="1 of 2 rows of the h features hold NaN"):
        nearest_neighbours(torch.tensor([[1.0], [torch.nan]]), torch.tensor([0]))
    with pytest.raises(ConfigError, match="k must be an integer >= 1, got 0"):
        nearest_neighbours(torch.ones(2, 3), torch.tensor([0]), 0)
    similarity, index = nearest_neighbours(torch.eye(3), torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"duplicates must be a finite number in \(0, 1\], got 98"):
        near_duplicates(torch.eye(3), torch.tensor([0]), similarity, index, 98)
