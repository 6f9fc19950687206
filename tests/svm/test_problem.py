from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    BOX_SOLVERS,
    INDEFINITE,
    ZOO,
    Case,
    box_optimum,
    generator,
    objective,
    randn,
    solved,
    some_rows,
)
from torch import Tensor

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.svm import MaxMarginDual, max_margin_dual

every_case = pytest.mark.parametrize("case", [*ZOO.values(), INDEFINITE], ids=[*ZOO, "indefinite"])
definite_case = pytest.mark.parametrize(
    "case", [case for key, case in ZOO.items() if key != "unit diagonal assumed"],
    ids=[key for key in ZOO if key != "unit diagonal assumed"],
)  # fmt: skip


def _random(problem: MaxMarginDual, seed: int = 0) -> Tensor:
    """A point of the box with entries at both bounds and between."""
    draws = torch.rand(problem.B, problem.n, generator=generator(seed), dtype=problem.gram.dtype)
    return ((3 * draws - 1) * min(problem.C, 2.0)).clamp(0, problem.C) * problem.keep


@every_case
def test_dense_is_the_matrix_of_the_paper(case: Case) -> None:
    problem = case.problem()
    for b in some_rows(case):
        matrix, indices = problem.dense(b)
        delta, negatives = case.delta(b)
        assert indices.tolist() == negatives
        delta = delta + case.reg * np.eye(len(delta))
        np.testing.assert_allclose(
            matrix.numpy(), delta, rtol=1e-10, atol=1e-12 * case.gram().abs().max().item()
        )


@every_case
def test_matrix_free_operations_equal_the_dense_ones(case: Case) -> None:
    problem = case.problem()
    alpha = _random(problem)
    product, gradient = problem.product(alpha), problem.gradient(alpha)
    values, norms = problem.objective(alpha), problem.frobenius_norm()
    for b in range(problem.B):
        matrix, indices = problem.dense(b)
        a = alpha[b, indices]
        scale = matrix.abs().max().item() * len(a)
        torch.testing.assert_close(product[b, indices], matrix @ a, rtol=1e-10, atol=1e-11 * scale)
        torch.testing.assert_close(gradient[b, indices], matrix @ a - 2, rtol=1e-10, atol=1e-11 * scale)
        torch.testing.assert_close(
            values[b], a @ matrix @ a / 2 - 2 * a.sum(), rtol=1e-10, atol=1e-11 * scale
        )
        torch.testing.assert_close(norms[b], torch.linalg.matrix_norm(matrix), rtol=1e-9, atol=1e-12)
    off = problem.keep == 0
    assert off.sum() == problem.B * case.excluded.shape[1]
    assert not product[off].any()
    assert not gradient[off].any()


@every_case
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_solving_equals_the_dense_solve(case: Case, shift: float) -> None:
    problem = case.problem()
    if case is INDEFINITE:
        shift += 10.0  # definite from here on
    factorisation = problem.factorise(shift, require_definite=True)
    rhs = torch.randn(problem.B, problem.n, generator=generator(1), dtype=torch.float64) * problem.keep
    some, constant = factorisation.solve(rhs), factorisation.solve_constant(3.0)
    assert (factorisation.retries, factorisation.extra_ridge) == (0, 0.0)
    for b in range(problem.B):
        matrix, indices = problem.dense(b)
        matrix = matrix + shift * torch.eye(len(matrix), dtype=torch.float64)
        for answer, right in ((some, rhs[b, indices]), (constant, torch.full_like(rhs[b, indices], 3.0))):
            expected = torch.linalg.solve(matrix, right)
            torch.testing.assert_close(
                answer[b, indices], expected, rtol=1e-8, atol=1e-9 * expected.abs().max().item()
            )
    assert not some[problem.keep == 0].any()
    assert not constant[problem.keep == 0].any()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.03, 1.0])
def test_a_sparse_alpha_gives_the_product_of_a_dense_one(share: float) -> None:
    n = 600
    points = randn(n, 8, seed=4)
    problem = max_margin_dual(points @ points.T, torch.arange(5), torch.arange(5)[:, None] + 300)
    alpha = (torch.rand(5, n, generator=generator(6), dtype=torch.float64) * problem.keep).double()
    alpha *= torch.rand(5, n, generator=generator(7)) < share
    alpha[2] = 0  # a problem without any support vector
    product = problem.product(alpha)
    for b in range(5):
        matrix, indices = problem.dense(b)
        torch.testing.assert_close(product[b, indices], matrix @ alpha[b, indices], rtol=1e-10, atol=1e-9)
    single = replace(problem, gram=problem.gram.float(), diag_correction=problem.diag_correction.float())
    torch.testing.assert_close(single.product(alpha.float()).double(), product, rtol=1e-3, atol=1e-3)


@every_case
def test_select_equals_the_rows(case: Case) -> None:
    problem = case.problem()
    alpha, rows = _random(problem), torch.tensor(some_rows(case)[::-1])
    part = problem.select(rows)
    assert (part.B, part.n) == (len(rows), problem.n)
    assert torch.equal(part.positive, problem.positive[rows])
    torch.testing.assert_close(
        part.product(alpha[rows]), problem.product(alpha)[rows], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(part.frobenius_norm(), problem.frobenius_norm()[rows], rtol=1e-12, atol=1e-12)
    mask = torch.zeros(problem.B, dtype=torch.bool).scatter_(0, rows, True)
    assert torch.equal(problem.select(mask).excluded, problem.excluded[rows.sort().values])
    if case is not INDEFINITE:
        whole, picked = problem.factorise(), problem.factorise().select(rows)
        rhs = alpha * problem.keep
        torch.testing.assert_close(picked.solve(rhs[rows]), whole.solve(rhs)[rows], rtol=1e-9, atol=1e-9)


@every_case
def test_residual_is_zero_only_at_the_optimum(case: Case) -> None:
    problem = case.problem()
    best = solved(case, BOX_SOLVERS[-1]).alpha
    assert (problem.kkt_residual(best) <= problem.rounding(best).clamp_min(1e-10)).all()
    moved = problem.clip(best + 0.1 * problem.keep)
    assert (problem.kkt_residual(moved) > 1e-4).all()
    assert torch.equal(problem.kkt_residual(moved, problem.gradient(moved)), problem.kkt_residual(moved))


@every_case
def test_residual_equals_its_formula(case: Case) -> None:
    problem = case.problem()
    alpha = _random(problem, seed=2)
    residual = problem.kkt_residual(alpha)
    for b in some_rows(case):
        matrix, indices = problem.dense(b)
        a = alpha[b, indices]
        unit = a.max()
        moved = (a - unit * (matrix @ a - 2)).clamp(0, case.C)
        expected = (a - moved).abs().max() / unit if unit > 0 else torch.tensor(2.0, dtype=torch.float64)
        torch.testing.assert_close(residual[b], expected, rtol=1e-9, atol=1e-11)


@every_case
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_residual_does_not_depend_on_the_scale_of_the_kernel(case: Case, scale: float) -> None:
    problem = case.problem()
    alpha = _random(problem)
    scaled = replace(
        problem,
        gram=scale * problem.gram,
        diag_correction=scale * problem.diag_correction,
        reg=scale * problem.reg,
        C=problem.C / scale,
    )
    expected = problem.kkt_residual(alpha)
    torch.testing.assert_close(scaled.kkt_residual(alpha / scale), expected, rtol=1e-9, atol=1e-12)


@every_case
def test_rounding_covers_the_error_in_single_precision(case: Case) -> None:
    problem = case.problem(torch.float32)
    double = replace(problem, gram=problem.gram.double(), diag_correction=problem.diag_correction.double())
    alpha = _random(problem, seed=3)
    error = (problem.gradient(alpha) - double.gradient(alpha.double())).abs().amax(1)
    assert (error <= problem.rounding(alpha)).all()
    assert (problem.rounding(alpha) <= 1e-3 * (problem.gram.abs().max() * alpha.sum(1) + 2)).all()


@definite_case
def test_gap_bounds_the_distance_from_the_optimum(case: Case) -> None:
    problem = case.problem()
    best = solved(case, BOX_SOLVERS[-1]).alpha
    optimum = problem.objective(best)
    for seed in range(3):
        alpha = _random(problem, seed)
        distance = problem.objective(alpha) - optimum
        assert (problem.duality_gap(alpha) >= distance - 1e-8 * optimum.abs()).all()
        assert (distance > 0).all()
    assert problem.duality_gap(best).abs().max() < 1e-8 * optimum.abs().max()


def test_gap_of_a_stationary_point_is_zero_without_ridge_and_bound() -> None:
    problem = replace(ZOO["both views"], reg=0.0, C=math.inf).problem()
    alpha = _random(problem)
    assert not problem.duality_gap(alpha, torch.zeros_like(alpha)).any()


@pytest.mark.parametrize("C", [1.0, math.inf])
def test_gap_without_a_ridge(C: float) -> None:
    case = replace(ZOO["both views"], reg=0.0, C=C)
    problem = case.problem()
    alpha = _random(problem)
    gradient, gap = problem.gradient(alpha), problem.duality_gap(alpha)
    for b in range(problem.B):
        expected = 0.0  # the minimum over the box of the tangent, entry by entry
        for j in problem.keep[b].nonzero().squeeze(1):
            g, a = gradient[b, j].item(), alpha[b, j].item()
            expected += g * a if g > 0 else -g * (C - a)
        assert gap[b].item() == pytest.approx(expected)


def test_gap_without_ridge_or_bound_is_finite_where_no_gradient_is_negative() -> None:
    problem = replace(ZOO["both views"], reg=0.0, C=math.inf).problem()
    alpha = 50 * problem.keep
    gradient = problem.gradient(alpha)
    rows = (gradient >= 0).all(1)
    assert rows.any()
    torch.testing.assert_close(problem.duality_gap(alpha)[rows], (gradient * alpha).sum(1)[rows])


@every_case
def test_signed_weights_sum_to_zero(case: Case) -> None:
    problem = case.problem()
    alpha = _random(problem)
    weights = problem.signed_weights(alpha)
    torch.testing.assert_close(weights.sum(1), torch.zeros(problem.B, dtype=torch.float64), rtol=0, atol=1e-9)
    assert torch.equal(weights.gather(1, problem.positive[:, None]).squeeze(1), -alpha.sum(1))


def test_clip_is_the_nearest_point_of_the_box() -> None:
    problem = ZOO["C=1.0"].problem()
    clipped = problem.clip(torch.full((problem.B, problem.n), 7.0, dtype=torch.float64))
    assert torch.equal(clipped, problem.keep)
    assert not problem.clip(-torch.ones_like(clipped)).any()


def test_sizes() -> None:
    problem = ZOO["three views"].problem()
    assert (problem.B, problem.n, problem.negatives) == (6, 18, 15)
    assert torch.equal(problem.excluded, torch.tensor([[b, b + 6, b + 12] for b in range(6)]))
    assert torch.equal(problem.keep.sum(1), torch.full((6,), 15.0, dtype=torch.float64))


def test_adding_a_constant_to_the_kernel_changes_nothing() -> None:
    """Which is why the matrix may be kept centred."""
    case = ZOO["both views"]
    gram, positive, other = case.gram(), case.excluded[:, 0], case.excluded[:, 1:]
    plain, shifted = (max_margin_dual(g, positive, other) for g in (gram, gram + 5))
    alpha = _random(plain)
    torch.testing.assert_close(plain.product(alpha), shifted.product(alpha), rtol=1e-9, atol=1e-9)


def test_assume_unit_diag_puts_one_for_the_positive() -> None:
    case = ZOO["unit diagonal assumed"]
    true, assumed = replace(case, assume_unit_diag=False), case
    matrix, _ = assumed.problem().dense(2)
    other, _ = true.problem().dense(2)
    own = case.gram()[2, 2].item()
    assert own == pytest.approx(0.64)
    torch.testing.assert_close(matrix - other, torch.full_like(matrix, 1 - own))


def test_oracle_agrees_with_the_gradient() -> None:
    """The oracle of the solvers itself meets the optimality conditions."""
    for case in (ZOO["both views"], ZOO["C=0.3"]):
        matrix = case.problem().dense(0)[0].numpy()
        alpha = box_optimum(matrix, case.C)
        gradient = matrix @ alpha - 2
        assert np.abs(alpha - np.clip(alpha - gradient, 0, case.C)).max() < 1e-9
        assert objective(matrix, alpha) < 0


EYE = torch.eye(4, dtype=torch.float64)
ZERO_ONE = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (
            lambda: max_margin_dual(torch.ones(3, 4), ZERO_ONE),
            ShapeError,
            r"gram must be square, got \(3, 4\)",
        ),
        (lambda: max_margin_dual(EYE, ZERO_ONE[None]), ShapeError, r"shape \(B,\) with B >= 1, got \(1, 2\)"),
        (lambda: max_margin_dual(EYE, ZERO_ONE, ZERO_ONE), ShapeError, r"shape \(2, m - 1\), got \(2,\)"),
        (lambda: max_margin_dual(EYE, ZERO_ONE, ZERO_ONE[:1, None]), ShapeError, r"got \(1, 1\)"),
        (
            lambda: max_margin_dual(EYE[:2, :2], ZERO_ONE, 1 - ZERO_ONE[:, None]),
            ShapeError,
            "leave no negative",
        ),
        (lambda: max_margin_dual(EYE, ZERO_ONE, C=0.0), ConfigError, "C must be a number > 0, got 0.0"),
        (lambda: max_margin_dual(EYE, ZERO_ONE, C=-1.0), ConfigError, "C must be a number > 0, got -1.0"),
        (lambda: max_margin_dual(EYE, ZERO_ONE, C=math.nan), ConfigError, "got nan"),
        (
            lambda: max_margin_dual(EYE, ZERO_ONE, reg=-0.1),
            ConfigError,
            "reg must be a finite number >= 0, got -0.1",
        ),
        (lambda: max_margin_dual(EYE, ZERO_ONE, reg=math.inf), ConfigError, "got inf"),
    ],
)
def test_arguments_are_checked(build: type, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        build()


def test_autocast_does_not_round_the_product() -> None:
    problem = ZOO["clustered, B=64"].problem(torch.float32)
    alpha = torch.rand(problem.B, problem.n) * problem.keep
    expected = problem.product(alpha)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(problem.product(alpha), expected)
