"""What holds for every solver over the problem zoo, and against two independent oracles."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    BOX_SOLVERS,
    INDEFINITE,
    SOLVERS,
    ZOO,
    Case,
    box_optimum,
    generator,
    name,
    objective,
    solved,
    some_rows,
)
from sklearn.svm import SVC

from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.kernels import Intersection
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Solver, Status, max_margin_dual

every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=name)
box_solver = pytest.mark.parametrize("solver", BOX_SOLVERS, ids=name)
every_case = pytest.mark.parametrize("case", ZOO.values(), ids=ZOO.keys())
every_bound = pytest.mark.parametrize("C", [0.3, 1.0, 1e3, math.inf])
ORACLE_CASES = ["one view", "both views", "three views", "duplicate negatives", "rank-deficient linear"]


def test_all_solvers_are_enrolled() -> None:
    own = {kind for kind in Solver.__subclasses__() if kind.__module__.startswith("mmcl_lightning.")}
    assert {type(solver) for solver in SOLVERS} == own  # other tests define solvers too


@box_solver
@every_case
def test_equals_bounded_least_squares(case: Case, solver: Solver) -> None:
    alpha = solved(case, solver).alpha
    for b in some_rows(case):
        matrix, indices = (part.numpy() for part in case.problem().dense(b))
        expected, got = box_optimum(matrix, case.C), alpha[b, indices].numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        assert objective(matrix, got) == pytest.approx(objective(matrix, expected), rel=1e-9)


@box_solver
@every_bound
@pytest.mark.parametrize("key", ORACLE_CASES)
def test_equals_bounded_least_squares_for_every_bound(key: str, C: float, solver: Solver) -> None:
    test_equals_bounded_least_squares(replace(ZOO[key], C=C), solver)


@box_solver
@every_bound
@pytest.mark.parametrize("key", ORACLE_CASES)
def test_equals_scikit_learn(key: str, C: float, solver: Solver) -> None:
    """The primal picture: one positive that must not be missed, negatives with slack."""
    case = replace(ZOO[key], C=C)
    alpha, gram = solver(case.problem()).alpha, case.gram().numpy()
    b = case.images // 2
    p, (_, negatives) = int(case.excluded[b, 0]), case.delta(b)
    order = [p, *negatives]
    K = gram[np.ix_(order, order)] + np.diag([0.0] + [case.reg] * len(negatives))
    labels = np.array([1] + [-1] * len(negatives))
    bound = 1e6 if math.isinf(C) else C
    weights = np.array([1e9] + [1.0] * len(negatives))
    machine = SVC(kernel="precomputed", C=bound, tol=1e-12).fit(K, labels, sample_weight=weights)
    expected = np.zeros(len(order))
    expected[machine.support_] = np.abs(machine.dual_coef_[0])
    np.testing.assert_allclose(alpha[b, negatives].numpy(), expected[1:], rtol=1e-6, atol=1e-6)
    assert expected[0] == pytest.approx(alpha[b].sum().item(), rel=1e-6)


@every_case
def test_inverse_equals_dense_solve_and_clip(case: Case) -> None:
    problem, solution = case.problem(), solved(case, Inverse())
    assert (solution.status, solution.steps.tolist()) == (Status.TRUNCATED, [0] * problem.B)
    for b in range(problem.B):
        matrix, indices = problem.dense(b)
        expected = torch.linalg.solve(matrix, torch.full((len(matrix),), 2.0, dtype=torch.float64)).clamp(
            0, case.C
        )
        torch.testing.assert_close(solution.alpha[b, indices], expected, rtol=1e-8, atol=1e-8)


@box_solver
@every_case
def test_objectives_are_ordered_as_in_proposition_1(case: Case, solver: Solver) -> None:
    """Unconstrained <= box optimum <= clipped inverse."""
    problem = case.problem()
    optimum, clipped = (problem.objective(solved(case, s).alpha) for s in (solver, Inverse()))
    free = problem.objective(problem.factorise().solve_constant(2.0))
    slack = 1e-9 * optimum.abs()
    assert (free <= optimum + slack).all()
    assert (optimum <= clipped + slack).all()


def test_the_clipped_inverse_is_no_optimum() -> None:
    """Otherwise the ordering above would hold trivially."""
    case = ZOO["clustered, B=64"]
    optimum, clipped = (case.problem().objective(solved(case, s).alpha) for s in (BOX_SOLVERS[0], Inverse()))
    assert ((clipped - optimum) / optimum.abs()).max() > 0.05


@every_solver
@every_case
def test_alpha_is_in_the_box_and_zero_off_the_negatives(case: Case, solver: Solver) -> None:
    problem, solution = case.problem(), solved(case, solver)
    alpha = solution.alpha
    assert alpha.shape == (problem.B, problem.n)
    assert ((alpha >= 0) & (alpha <= case.C)).all()
    assert not alpha[problem.keep == 0].any()
    assert (solution.steps.shape, solution.steps.dtype) == ((problem.B,), torch.int64)
    assert (solution.retries, solution.extra_ridge) == (0, 0.0)
    assert not alpha.requires_grad


@every_solver
@every_case
def test_a_batch_equals_the_stack_of_its_problems(case: Case, solver: Solver) -> None:
    whole = solved(case, solver).alpha
    scale = whole.max().item()
    for b in some_rows(case):
        single = max_margin_dual(
            case.gram(), case.excluded[b : b + 1, 0], case.excluded[b : b + 1, 1:], C=case.C, reg=case.reg,
            assume_unit_diag=case.assume_unit_diag, rows=torch.tensor([b]), total_rows=case.images,
        )  # fmt: skip
        alpha = solver(single).alpha
        torch.testing.assert_close(alpha[0], whole[b], rtol=1e-7, atol=1e-8 * scale)


@every_solver
@every_case
def test_permuting_the_candidates_permutes_alpha(case: Case, solver: Solver) -> None:
    order = torch.randperm(len(case.points), generator=generator(5))
    places = order.argsort()
    excluded = places[case.excluded]
    problem = max_margin_dual(
        case.gram()[order][:, order], excluded[:, 0], excluded[:, 1:], C=case.C, reg=case.reg,
        assume_unit_diag=case.assume_unit_diag,
    )  # fmt: skip
    torch.testing.assert_close(
        solver(problem).alpha, solved(case, solver).alpha[:, order], rtol=1e-6, atol=1e-7
    )


@box_solver
@pytest.mark.parametrize("key", ["both views", "C=0.3", "rank-deficient linear", "clustered, B=64"])
@pytest.mark.parametrize(("tol", "max_steps"), [(1e-1, 1), (1e-1, 30), (1e-3, 3), (1e-4, 40), (1e-6, 500)])
def test_converged_means_that_the_residual_is_within_tol(
    solver: Solver, key: str, tol: float, max_steps: int
) -> None:
    problem = ZOO[key].problem()
    solution = dataclasses.replace(solver, tol=tol, max_steps=max_steps)(problem)  # type: ignore[type-var]
    residual = problem.kkt_residual(solution.alpha)
    assert solution.kkt_residual is not None
    torch.testing.assert_close(solution.kkt_residual, residual, rtol=1e-8, atol=1e-10)
    assert (solution.status == Status.CONVERGED) == bool((solution.kkt_residual <= tol).all())
    assert solution.status in (Status.CONVERGED, Status.MAX_STEPS)
    assert solution.steps.max() <= max_steps


@box_solver
def test_one_step_is_not_enough_and_says_so(solver: Solver) -> None:
    problem = ZOO["clustered, B=64"].problem()
    solution = dataclasses.replace(solver, max_steps=1)(problem)  # type: ignore[type-var]
    assert solution.status == Status.MAX_STEPS
    assert "raise max_steps" in solution.status.value
    assert solution.steps.max() == 1
    assert problem.kkt_residual(solution.alpha).max() > 1e-3


@pytest.mark.parametrize("solver", [s for s in BOX_SOLVERS if "fixed" not in name(s)], ids=name)
def test_finished_problems_take_fewer_steps(solver: Solver) -> None:
    checked_often = dataclasses.replace(solver, check_every=1)  # type: ignore[type-var]
    steps = checked_often(dataclasses.replace(ZOO["clustered, B=64"], C=0.05).problem()).steps
    assert 0 <= steps.min() < steps.max()


@box_solver
@every_case
def test_default_options_find_the_optimum_in_single_precision(case: Case, solver: Solver) -> None:
    problem = case.problem(torch.float32)
    default = dataclasses.replace(solver, tol=type(solver)().tol)  # type: ignore[attr-defined, type-var]
    solution = default(problem)
    assert solution.alpha.dtype == torch.float32
    exactly = (solution.kkt_residual <= default.tol).all()  # type: ignore[attr-defined, operator]
    assert solution.status == (Status.CONVERGED if exactly else Status.ROUNDED)
    double = case.problem()
    best = double.objective(solved(case, solver).alpha)
    excess = (double.objective(solution.alpha.double()) - best) / best.abs()
    assert excess.max() < 1e-3


@every_case
@pytest.mark.parametrize(
    "solver", [Inverse(), Exact(max_steps=5_000), Exact(max_steps=600, path="fixed")], ids=name
)
def test_single_precision_agrees_with_double(case: Case, solver: Solver, record_property) -> None:
    single = solver(case.problem(torch.float32)).alpha.double()
    double = solved(case, solver).alpha
    problem = case.problem()
    # Relative to the size of the objective's linear term: for Inverse the two terms nearly cancel in places.
    difference = problem.objective(single) - problem.objective(double)
    error = (difference / (2 * double.sum(1))).abs().max().item()
    distance = ((single - double).norm(dim=1) / double.norm(dim=1)).max().item()
    record_property("objective", error)
    record_property("alpha", distance)
    assert error < 1e-4
    assert distance < (1e-4 if isinstance(solver, Inverse) else 1e-3)  # tol is 1e-4 of a unit of alpha


def test_no_gradient_is_recorded() -> None:
    points = ZOO["both views"].points.clone().requires_grad_()
    problem = max_margin_dual(points @ points.T, torch.arange(8))
    for solver in SOLVERS:
        assert not solver(problem).alpha.requires_grad


# Failure paths


def test_factorisation_falls_back_to_double_precision() -> None:
    # Integers, so that the kernel matrix and its means are exact in single precision too.
    points = torch.randint(-60, 60, (16, 3), generator=generator(3)).float()
    problems = [max_margin_dual(p @ p.T, torch.arange(4), C=1.0, reg=1e-5) for p in (points, points.double())]
    single, double = (problem.factorise() for problem in problems)
    assert (double.retries, double.extra_ridge) == (0, 0.0)
    assert (single.retries, single.extra_ridge) == (1, 0.0)
    scale = double.inverse.abs().max().item()
    torch.testing.assert_close(single.inverse.double(), double.inverse, rtol=0, atol=1e-5 * scale)
    solution = Inverse()(problems[0])
    assert (solution.retries, solution.extra_ridge) == (1, 0.0)
    assert solution.alpha.isfinite().all()


@every_solver
def test_duplicates_without_a_ridge(solver: Solver) -> None:
    """Delta is singular: Inverse has to add a ridge and says so; the optimum exists in a bounded box."""
    problem = replace(ZOO["duplicate negatives"], reg=0.0).problem()
    solution = dataclasses.replace(solver, tol=1e-6)(problem) if hasattr(solver, "tol") else solver(problem)  # type: ignore[type-var]
    assert solution.alpha.isfinite().all()
    if isinstance(solver, Inverse):
        assert solution.retries >= 1
        assert 0 < solution.extra_ridge < 1e-4
        again = replace(ZOO["duplicate negatives"], reg=solution.extra_ridge)
        torch.testing.assert_close(solution.alpha, Inverse()(again.problem()).alpha, rtol=1e-6, atol=1e-6)
    else:
        assert solution.status == Status.CONVERGED


def test_inverse_of_an_indefinite_kernel_equals_the_dense_one() -> None:
    problem = INDEFINITE.problem()
    solution = Inverse()(problem)
    assert solution.retries == 2
    assert solution.extra_ridge == 0.0
    for b in range(problem.B):
        matrix, indices = problem.dense(b)
        assert torch.linalg.eigvalsh(matrix)[0] < -1
        expected = torch.linalg.solve(matrix, torch.full((len(matrix),), 2.0, dtype=torch.float64)).clamp(
            0, 1
        )
        torch.testing.assert_close(solution.alpha[b, indices], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("path", ["adaptive", "fixed"])
def test_exact_names_the_kernel_that_it_cannot_factorise(path: str) -> None:
    with pytest.raises(
        NumericalError, match=r"not positive definite for Tanh\(gamma=5.0.*ProjectedGradient with a finite C"
    ):
        Exact(path=path)(INDEFINITE.problem())  # type: ignore[arg-type]


@box_solver
def test_an_indefinite_kernel_needs_a_bound(solver: Solver) -> None:
    with pytest.raises(ConfigError, match=r"needs a finite C for Tanh\(gamma=5.0"):
        solver(replace(INDEFINITE, C=math.inf).problem())


def test_projected_gradient_solves_an_indefinite_problem() -> None:
    problem = INDEFINITE.problem()
    solution = ProjectedGradient()(problem)
    assert solution.status == Status.CONVERGED
    assert problem.kkt_residual(solution.alpha).max() <= 1e-3


@box_solver
def test_intersection_and_its_diagonal(solver: Solver) -> None:
    case = replace(ZOO["both views"], kernel=Intersection())
    test_equals_bounded_least_squares(case, solver)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Exact(max_steps=0), "max_steps must be an integer >= 1, got 0"),
        (lambda: Exact(check_every=0), "check_every .* got 0"),
        (lambda: Exact(max_steps=1.5), "max_steps .* got 1.5"),  # type: ignore[arg-type]
        (lambda: Exact(max_steps=True), "max_steps .* got True"),
        (lambda: Exact(tol=math.inf), "tol .* got inf"),
        (lambda: ProjectedGradient(seed=2**70), "seed must be an integer of 64 bits, got 118"),
        (lambda: ProjectedGradient(seed=1.5), "seed .* got 1.5"),  # type: ignore[arg-type]
        (lambda: ProjectedGradient(step_size=1e300), "step_size .* got 1e[+]300"),
        (lambda: ProjectedGradient(nesterov="no"), "nesterov must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: Exact(tol=-1.0), "tol must be a finite number >= 0, got -1.0"),
        (lambda: Exact(tol=math.nan), "tol must be a finite number >= 0, got nan"),
        (lambda: Exact(rho=0.0), "rho must be a finite number > 0 or 'auto', got 0.0"),
        (lambda: Exact(rho=math.inf), "rho .* got inf"),
        (lambda: Exact(rho="large"), "rho .* got 'large'"),  # type: ignore[arg-type]
        (lambda: Exact(relaxation=2.0), r"relaxation must be a finite number in \[1, 2\), got 2.0"),
        (lambda: ProjectedGradient(max_steps=0), "max_steps .* got 0"),
        (lambda: ProjectedGradient(tol=-1.0), "tol must be a finite number >= 0"),
        (
            lambda: ProjectedGradient(step_size=0.0),
            "step_size must be .* or 'lipschitz' or 'frobenius', got 0.0",
        ),
        (
            lambda: ProjectedGradient(step_size="auto"),
            "step_size must be .* got 'auto'",
        ),  # type: ignore[arg-type]
        (
            lambda: ProjectedGradient(start="warm"),
            "start must be 'random', 'zero' or 'inverse', got 'warm'",
        ),  # type: ignore[arg-type]
        (lambda: ProjectedGradient(stop="never"), "stop must be 'kkt' or 'relative_change'"),  # type: ignore[arg-type]
    ],
)
def test_options_are_checked(build: type, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


@every_solver
def test_solvers_are_frozen_values(solver: Solver) -> None:
    assert dataclasses.replace(solver) == solver  # type: ignore[type-var]
    assert eval(repr(solver)) == solver
    with pytest.raises(dataclasses.FrozenInstanceError):
        solver.tol = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4, 1e9])
@pytest.mark.parametrize("key", ["both views", "clustered, B=64", "rank-deficient linear"])
@box_solver
def test_converged_is_the_optimum_whatever_the_scale_of_the_kernel(
    solver: Solver, key: str, scale: float
) -> None:
    """An alpha of 1e-8 is as well solved as one of 1: nothing is compared with an absolute number."""
    case = ZOO[key]
    best = solved(case, BOX_SOLVERS[0]).alpha
    problem = max_margin_dual(
        (scale * case.gram()).float(), case.excluded[:, 0], case.excluded[:, 1:],
        C=case.C / scale, reg=scale * case.reg,
    )  # fmt: skip
    solution = dataclasses.replace(solver, tol=type(solver)().tol)(problem)  # type: ignore[attr-defined, type-var]
    assert solution.status in (Status.CONVERGED, Status.ROUNDED)
    optimum = case.problem().objective(best)
    excess = case.problem().objective(scale * solution.alpha.double()) - optimum
    assert (excess <= 1e-3 * optimum.abs()).all()


@pytest.mark.parametrize("C", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@box_solver
def test_a_tiny_box_is_not_mistaken_for_convergence(solver: Solver, dtype: torch.dtype, C: float) -> None:
    problem = dataclasses.replace(ZOO["clustered, B=64"], C=C).problem(dtype)
    solution = solver(problem)
    assert solution.status == Status.CONVERGED
    # Every product with Delta is far below the gradient 2 at zero, so every alpha is at C.
    assert (problem.product(torch.full_like(solution.alpha, C) * problem.keep).abs().max() < 2) or C > 1e-3
    if C < 1e-3:
        torch.testing.assert_close(solution.alpha, C * problem.keep, rtol=1e-2, atol=0.0)


def test_a_problem_without_a_minimum_is_not_solved() -> None:
    problem = max_margin_dual(torch.zeros(6, 6), torch.arange(6), C=math.inf, reg=0.0)
    for solver in (Exact(), Exact(path="fixed"), ProjectedGradient()):
        assert solver(problem).status == Status.MAX_STEPS


@pytest.mark.parametrize("path", ["adaptive", "fixed"])
def test_what_rounding_hides_is_no_convergence(path: str) -> None:
    """Negatives equal to their anchor, with a small ridge: single precision cannot tell how far alpha is."""
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).repeat(4, 1)
    loss = MMCLLoss(solver=Exact(path=path), reg=1e-3, C=1e4)  # type: ignore[arg-type]
    loss(z, z.clone())
    solution = loss.last_duals[0].solution
    assert solution.status in (Status.ROUNDED, Status.MAX_STEPS)
    assert solution.kkt_residual.max() > 3e-4  # type: ignore[union-attr]
    value = loss(z.double(), z.double().clone()).item()
    assert loss.last_duals[0].solution.status == Status.CONVERGED
    assert value == pytest.approx(-4 / 3, rel=1e-3)
