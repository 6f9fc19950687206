"""When the upper bound C does nothing: the claim of docs/choosing.md."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from mmcl_lightning.kernels import RBF, Linear
from mmcl_lightning.svm import Exact, max_margin_dual

REG = 0.1


def solve(gram: torch.Tensor, C: float, anchors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return alpha and, per problem, whether Delta is non-negative in every entry."""
    problem = max_margin_dual(gram, torch.arange(anchors), C=C, reg=REG)
    ridge = REG * torch.eye(problem.negatives, dtype=gram.dtype)
    signs = torch.tensor([bool((problem.dense(b)[0] - ridge >= 0).all()) for b in range(anchors)])
    solution = Exact(tol=1e-10, max_steps=5000)(problem)
    assert solution.kkt_residual is not None
    assert solution.kkt_residual.max() <= 1e-10
    return solution.alpha, signs


@pytest.mark.parametrize("gamma", [1.0, 3.0, 30.0])
def test_no_alpha_exceeds_two_over_reg_where_delta_is_non_negative(gamma: float) -> None:
    generator = torch.Generator().manual_seed(7)
    points = F.normalize(torch.randn(40, 16, generator=generator, dtype=torch.float64), dim=1)
    gram = RBF(gamma)(points, points)
    unbounded, non_negative = solve(gram, math.inf, anchors=40)
    assert non_negative.any(), "the case says nothing"
    assert unbounded[non_negative].max() <= 2 / REG
    at_limit, _ = solve(gram, 2 / REG, anchors=40)
    torch.testing.assert_close(at_limit[non_negative], unbounded[non_negative], rtol=0, atol=1e-8)


def test_with_negative_entries_alpha_can_exceed_two_over_reg() -> None:
    """The positive between two negatives: their pulls cancel, so weight on them is cheap."""
    points = torch.tensor([[0.0], [1.0], [-0.5]], dtype=torch.float64)
    unbounded, non_negative = solve(Linear()(points, points), math.inf, anchors=1)
    assert not non_negative.any()
    # (1 + b) x - y / 2 = 2 and -x / 2 + (1 / 4 + b) y = 2 with b = 0.1
    torch.testing.assert_close(
        unbounded[0], torch.tensor([0.0, 1.7, 3.2], dtype=torch.float64) / 0.135, rtol=1e-8, atol=0
    )
    assert unbounded.max() > 2 / REG
    bounded, _ = solve(Linear()(points, points), 2 / REG, anchors=1)
    assert bounded.max() == 2 / REG
