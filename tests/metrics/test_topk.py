from __future__ import annotations

import pytest
import torch

from mmcl_lightning.metrics._topk import merge_top_k, no_neighbours, split_keys

SPECIAL = [-0.0, 0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 0.5, -0.5, 1.0000001]


def test_keys_order_any_floats_and_give_them_back() -> None:
    values = torch.tensor([SPECIAL])
    index = torch.arange(len(SPECIAL)) + (1 << 31)  # beyond the range of int32
    keys = merge_top_k(no_neighbours(1, values.device), values, index, k=100)
    similarity, rows = split_keys(keys)
    expected = sorted(range(len(SPECIAL)), key=lambda j: (-SPECIAL[j], j))
    assert (rows[0] - (1 << 31)).tolist() == expected
    assert torch.equal(similarity[0], values[0, expected])


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_merging_in_any_order_is_a_stable_sort(k: int) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randint(-3, 4, (5, 20), generator=g).float()
    expected = values.sort(dim=1, descending=True, stable=True)
    chunks = [(0, 6), (6, 12), (12, 20)]
    for order in ([0, 1, 2], [2, 0, 1]):
        best = no_neighbours(5, values.device)
        for start, stop in (chunks[i] for i in order):
            best = merge_top_k(best, values[:, start:stop], torch.arange(start, stop), k)
        similarity, rows = split_keys(best)
        assert torch.equal(similarity, expected.values[:, :k])
        assert torch.equal(rows, expected.indices[:, :k])


@pytest.mark.parametrize("spread", [3, 200, 100_000])  # from ties everywhere to hardly any
@pytest.mark.parametrize("k", [1, 5, 30])
@pytest.mark.parametrize("n", [1000, 1003, 1024])
def test_wide_chunks_are_a_stable_sort_too(n: int, k: int, spread: int) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randint(-spread, spread, (40, n), generator=g).float()
    expected = values.sort(dim=1, descending=True, stable=True)
    best = merge_top_k(no_neighbours(40, values.device), values[:, :10], torch.arange(10), k)
    best = merge_top_k(best, values[:, 10:], torch.arange(10, n), k)
    similarity, rows = split_keys(best)
    assert torch.equal(similarity, expected.values[:, :k])
    assert torch.equal(rows, expected.indices[:, :k])


def test_the_best_may_be_in_any_columns() -> None:
    """The best values are all in one group, in different groups, and among the columns of no group."""
    n, k = 1003, 5
    for columns in ([0, 62, 124, 186, 248], [7, 8, 9, 10, 11], [998, 999, 1000, 1001, 1002]):
        values = torch.zeros(1, n)
        values[0, columns] = torch.arange(5.0, 0.0, -1.0)
        _, rows = split_keys(merge_top_k(no_neighbours(1, values.device), values, torch.arange(n), k))
        assert rows.tolist() == [columns]
