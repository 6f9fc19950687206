from __future__ import annotations

import math

import pytest
import torch
from helpers import ZOO, Case, make_views, solved, some_rows
from torch import Tensor

from mmcl_lightning.kernels import RBF
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Status


def _published_twin(
    case: Case, start: Tensor, step_size: float | None, steps: int, tol: float
) -> tuple[Tensor, int]:
    """The published loop: dense matrices, Nesterov, one stop for the whole batch. t starts at 1."""
    deltas, rows = [], []
    for b in range(case.images):
        matrix, indices = case.problem().dense(b)
        deltas.append(matrix)
        rows.append(start[b, indices])
    alpha, ahead, t, taken = rows, rows, 1.0, 0
    for _ in range(steps):
        taken += 1
        following = (math.sqrt(t**4 + 4 * t**2) - t**2) / 2
        weight = t * (1 - t) / (t**2 + following)
        new, new_ahead, changes = [], [], []
        for delta, a, y in zip(deltas, alpha, ahead, strict=True):
            size = 1 / torch.linalg.matrix_norm(delta, "fro").item() if step_size is None else step_size
            moved = (y - size * (delta @ y - 2)).clamp(0, case.C)
            new.append(moved)
            new_ahead.append(moved + weight * (moved - a))
            changes.append(((moved - a) / (a + 1e-7)).abs())
        alpha, ahead, t = new, new_ahead, following
        if torch.cat(changes).mean() < tol:
            break
    return torch.stack(alpha), taken


@pytest.mark.parametrize("key", ["one view", "both views", "C=0.3", "rank-deficient linear"])
@pytest.mark.parametrize("step_size", [None, 1e-3])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 1000])
def test_reference_follows_the_published_loop(key: str, step_size: float | None, steps: int) -> None:
    case, changes = ZOO[key], {} if step_size is None else {"step_size": step_size}
    solver = ProjectedGradient.reference(max_steps=steps, **changes)
    problem = case.problem()
    draws = torch.randn(problem.B, problem.n, generator=torch.Generator().manual_seed(0))
    start = draws.double().relu().clamp(max=case.C) * problem.keep
    expected, taken = _published_twin(case, start, step_size, steps, tol=0.01)
    solution = solver(problem)
    got = torch.stack([solution.alpha[b, problem.keep[b] > 0] for b in range(problem.B)])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    assert solution.steps.tolist() == [taken] * problem.B
    assert solution.kkt_residual is None


def test_reference_is_the_published_setting() -> None:
    solver = ProjectedGradient.reference()
    assert (solver.step_size, solver.nesterov, solver.restart, solver.start) == (
        "frobenius",
        True,
        False,
        "random",
    )
    assert (solver.max_steps, solver.tol, solver.stop) == (1000, 0.01, "relative_change")
    assert ProjectedGradient.reference(step_size=1e-3).step_size == 1e-3


def test_published_rule_can_stop_at_the_random_start_and_says_so() -> None:
    """What the published CIFAR runs (steps of 1e-3, gamma 1/50) do on spread features: protocol note 13."""
    case = Case(make_views(256, 128, count=1, seed=22)[0], RBF(gamma=1 / 50), 256)
    problem = case.problem()
    solution = ProjectedGradient.reference(step_size=1e-3)(problem)
    assert solution.status == Status.STALLED
    assert "stop='kkt'" in solution.status.value
    assert solution.steps.max() <= 3
    assert problem.kkt_residual(solution.alpha).min() > 0.1


def test_published_rule_stops_at_a_fixed_point() -> None:
    solution = ProjectedGradient.reference(start="inverse")(ZOO["all equal"].problem())
    assert (solution.status, solution.steps.tolist()) == (Status.STALLED, [1] * 8)


@pytest.mark.parametrize("step_size", ["lipschitz", "frobenius", 0.02])
@pytest.mark.parametrize(("nesterov", "restart"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("start", ["random", "zero", "inverse"])
def test_every_variant_finds_the_optimum(
    step_size: str | float, nesterov: bool, restart: bool, start: str
) -> None:
    case = ZOO["both views"]
    solver = ProjectedGradient(
        tol=1e-7, max_steps=50_000, step_size=step_size, nesterov=nesterov, restart=restart, start=start
    )  # type: ignore[arg-type]
    solution = solver(case.problem())
    assert solution.status == Status.CONVERGED
    torch.testing.assert_close(
        solution.alpha, solved(case, Exact(tol=1e-10, max_steps=20_000)).alpha, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("key", ["large gamma", "all equal", "two anchors, one view"])
def test_starting_from_the_answer_takes_no_step(key: str) -> None:
    """Here the inverse needs no clipping, so it is the optimum."""
    solution = ProjectedGradient(start="inverse", tol=1e-8)(ZOO[key].problem())
    assert solution.steps.max() == 0
    assert torch.equal(solution.alpha, Inverse()(ZOO[key].problem()).alpha)


def test_random_start_is_the_published_one() -> None:
    problem = ZOO["C=0.3"].problem()
    alpha = ProjectedGradient(max_steps=1, step_size=1e-300, seed=3, tol=0.0, nesterov=False)(problem).alpha
    draws = torch.randn(8, 16, generator=torch.Generator().manual_seed(3)).double()
    assert torch.equal(alpha, draws.clamp(0, 0.3) * problem.keep)


def test_every_call_draws_the_same_start() -> None:
    solver, problem = ProjectedGradient(max_steps=2), ZOO["both views"].problem()
    first = solver(problem).alpha
    torch.randn(3)
    assert torch.equal(solver(problem).alpha, first)
    assert not torch.equal(ProjectedGradient(max_steps=2, seed=1)(problem).alpha, first)


@pytest.mark.parametrize("max_steps", [1, 5, 400])
@pytest.mark.parametrize(("first", "count"), [(0, 3), (2, 4), (5, 3)])
def test_random_start_does_not_depend_on_the_sharding(max_steps: int, first: int, count: int) -> None:
    problem, solver = ZOO["both views"].problem(), ProjectedGradient(max_steps=max_steps)
    whole = solver(problem)
    part = solver(problem.select(torch.arange(first, first + count)))
    torch.testing.assert_close(part.alpha, whole.alpha[first : first + count], rtol=1e-10, atol=1e-12)
    assert torch.equal(part.steps, whole.steps[first : first + count])


@pytest.mark.parametrize("key", ZOO)
def test_lipschitz_step_is_close_to_the_largest_eigenvalue(key: str) -> None:
    problem = ZOO[key].problem()
    steps = ProjectedGradient()._step_size(problem).squeeze(1)
    for b in some_rows(ZOO[key]):
        largest = torch.linalg.eigvalsh(problem.dense(b)[0])[-1]
        assert 0.8 < steps[b] * largest < 1.02
