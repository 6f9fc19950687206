"""Which negatives count, and which of them are false: against loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers import ZOO, generator, randn

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.svm import Exact, MaxMarginDual, max_margin_dual
from mmcl_lightning.svm.negatives import (
    at_bound,
    false_negative_shares,
    false_negative_sums,
    is_support,
    ranked_negatives,
)

IMAGES = 6


def problem_of(views: int, C: float = 2.0) -> MaxMarginDual:
    points = randn(views * IMAGES, 3, seed=1)
    own = torch.arange(IMAGES)
    left_out = (own + IMAGES)[:, None] if views == 2 else None
    return max_margin_dual(points @ points.T, own, left_out, C=C)


def some_alpha(problem: MaxMarginDual) -> torch.Tensor:
    """A third zero, a third free, a third at C, zero where a candidate is no negative."""
    kind = torch.randint(3, (problem.B, problem.n), generator=generator(2))
    free = torch.rand(problem.B, problem.n, generator=generator(3), dtype=torch.float64) * problem.C * 0.9
    return torch.where(kind == 0, 0.0, torch.where(kind == 1, free + 0.01, problem.C)) * problem.keep


def shares_twin(problem: MaxMarginDual, alpha: torch.Tensor, labels: list[int]) -> dict[str, float]:
    """Shares of false negatives, pair by pair."""
    pairs = []
    for b in range(problem.B):
        anchor = labels[int(problem.excluded[b, 0]) % len(labels)]
        for j in range(problem.n):
            label = labels[j % len(labels)]
            if j not in problem.excluded[b].tolist() and anchor >= 0 and label >= 0:
                pairs.append((float(alpha[b, j]), label == anchor))
    groups = {
        "false_negative_base_rate": [(1.0, same) for _, same in pairs],
        "false_negative_share": [(1.0, same) for a, same in pairs if a > 1e-6],
        "false_negative_share_by_alpha": [(a, same) for a, same in pairs if a > 0],
        "bound_false_negative_share": [(1.0, same) for a, same in pairs if a >= problem.C - 1e-5],
    }
    return {
        name: sum(w for w, same in group if same) / sum(w for w, _ in group)
        for name, group in groups.items()
        if group
    }


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0], [0, -1, 0, 1, -1, 1], [3, -1, -1, -1, -1, -1]])
def test_shares_equal_those_counted_pair_by_pair(views: int, labels: list[int]) -> None:
    problem = problem_of(views)
    alpha = some_alpha(problem)
    found = false_negative_shares(false_negative_sums(problem, alpha, torch.tensor(labels)))
    assert found == pytest.approx(shares_twin(problem, alpha, labels))
    assert ("false_negative_share" in found) == (sum(label >= 0 for label in labels) > 1)


def test_the_positive_may_be_the_second_view() -> None:
    own = torch.arange(IMAGES)
    points = randn(2 * IMAGES, 3, seed=4)
    problem = max_margin_dual(points @ points.T, own + IMAGES, own[:, None], C=1.0)
    labels = [0, 1, 0, 1, 2, 2]
    alpha = some_alpha(problem)
    found = false_negative_shares(false_negative_sums(problem, alpha, torch.tensor(labels)))
    assert found == pytest.approx(shares_twin(problem, alpha, labels))


def test_shares_of_nothing_are_left_out() -> None:
    problem = problem_of(2, C=math.inf)
    alpha = Exact(tol=1e-9)(problem).alpha
    unlabelled = false_negative_sums(problem, alpha, torch.full((IMAGES,), -1))
    assert false_negative_shares(unlabelled) == {}
    found = false_negative_shares(false_negative_sums(problem, alpha, torch.zeros(IMAGES, dtype=torch.int64)))
    assert found == {
        "false_negative_base_rate": 1.0,
        "false_negative_share": 1.0,
        "false_negative_share_by_alpha": 1.0,
    }
    assert not at_bound(alpha, math.inf).any()


def test_sums_of_parts_add_up_to_those_of_the_whole() -> None:
    problem, labels = problem_of(2), torch.tensor([0, 1, 0, 2, 1, 0])
    alpha = some_alpha(problem)
    parts = [
        false_negative_sums(problem.select(rows), alpha[rows], labels) for rows in torch.arange(6).split(2)
    ]
    torch.testing.assert_close(sum(parts), false_negative_sums(problem, alpha, labels))


def test_labels_that_do_not_fit() -> None:
    problem = problem_of(2)
    for labels in (torch.zeros(5, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(6, 1)):
        with pytest.raises(ShapeError, match="12 candidates need labels"):
            false_negative_sums(problem, some_alpha(problem), labels)


@pytest.mark.parametrize("name", ["both views", "unequal diagonal", "C=0.3"])
def test_negatives_are_ranked_by_alpha_and_by_distance_in_the_kernels_space(name: str) -> None:
    case = ZOO[name]
    problem = case.problem()
    alpha = Exact(tol=1e-10, max_steps=20_000)(problem).alpha
    K = case.gram().tolist()
    some_outside = 0
    for b in range(problem.B):
        inside, outside = (indices.tolist() for indices in ranked_negatives(problem, alpha, b))
        p = int(problem.positive[b])
        left = [j for j in range(problem.n) if j not in problem.excluded[b].tolist()]
        distance = {j: K[p][p] + K[j][j] - 2 * K[p][j] for j in left}
        order = {j: (-round(float(alpha[b, j]), 7), round(distance[j], 9)) for j in left}
        assert inside == sorted((j for j in left if alpha[b, j] > 1e-6), key=order.__getitem__)
        others = [j for j in left if alpha[b, j] <= 1e-6]
        distances = [distance[j] for j in outside]
        assert sorted(outside) == others
        assert all(near <= far + 1e-9 for near, far in itertools.pairwise(distances))
        some_outside += len(outside) > 1
    assert some_outside
    assert is_support(alpha).any()


def test_support_vectors_of_a_tiny_box() -> None:
    """With C = 1e-7 every alpha is tiny, and those at C are support vectors all the same."""
    alpha = torch.tensor([[1e-7, 0.0, 5e-8, 1e-16], [3.0, 1e-9, 2e-6, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [[True, False, True, False], [True, False, True, False], [False] * 4]
    assert is_support(alpha).tolist() == expected
    assert is_support(alpha[0]).tolist() == expected[0]
