from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BOX_SOLVERS, KERNELS, SOLVERS, Given, Memory, box_optimum, kernel_twin, make_views, name
from torch import Tensor

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.kernels import RBF, Intersection, Kernel, Linear, Polynomial, Tanh
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Solver

every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=name)
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=name)
both_sides = pytest.mark.parametrize("negatives", ["both", "one"])
both_roles = pytest.mark.parametrize("symmetric", [False, True], ids=["one-sided", "symmetric"])


def _leaves(*views: Tensor) -> list[Tensor]:
    return [view.detach().clone().requires_grad_() for view in views]


def _gradients(loss: Any, z0: Tensor, z1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z0, z1 = _leaves(z0, z1)
    value = loss(z0, z1)
    return value.detach(), *torch.autograd.grad(value, (z0, z1))


def _with_frozen_alpha(loss: MMCLLoss) -> MMCLLoss:
    """The same loss with the alpha of its last call, whatever the projections."""
    frozen = copy.copy(loss)
    frozen.weights = dataclasses.replace(loss.weights, solver=Given(loss.last_duals[0].solution.alpha))
    return frozen


# The published loss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_loss.json").read_text())


def _golden_id(case: dict[str, Any]) -> str:
    return f"{case['solver']}-sigma{case['sigma_code']:g}-C{case['C']:g}-seed{case['seed']}"


def _golden_runs() -> list[Any]:
    solvers = {"inverse": [Inverse()], "pgd_converged": BOX_SOLVERS}
    return [
        pytest.param(case, solver, id=f"{name(solver)}-{_golden_id(case)}")
        for case in GOLDEN["cases"]
        for solver in solvers[case["solver"]]
    ]


@pytest.mark.parametrize("normalize", [False, True], ids=["as-given", "normalized"])
@pytest.mark.parametrize(("case", "solver"), _golden_runs())
def test_equals_the_published_loss(case: dict[str, Any], solver: Solver, normalize: bool) -> None:
    z0, z1 = (torch.tensor(view, dtype=torch.float64) for view in GOLDEN["views"][str(case["seed"])])
    C = math.inf if case["C"] == -1 else case["C"]
    loss = MMCLLoss.reference(
        kernel=RBF(gamma=1 / case["sigma_code"]), solver=solver, C=C, normalize=normalize
    )
    value, *gradients = _gradients(loss, z0, z1)
    assert value.item() == pytest.approx(case["loss"], abs=1e-7, rel=1e-7)
    alpha = loss.last_duals[0].solution.alpha
    kernel = loss.kernel(z1, z0)
    positive = -(alpha.sum(1) * kernel.diagonal()).mean()
    assert positive.item() == pytest.approx(case["pos"], rel=1e-6)
    assert (alpha * kernel).sum(1).mean().item() == pytest.approx(case["neg"], rel=1e-6)
    for z, got, expected in zip((z0, z1), gradients, (case["grad0"], case["grad1"]), strict=True):
        target = torch.tensor(expected, dtype=torch.float64)
        target = target - (target * z).sum(1, keepdim=True) * z
        if not normalize:  # the normalisation takes the radial part away by itself
            got = got - (got * z).sum(1, keepdim=True) * z
        torch.testing.assert_close(got, target, rtol=1e-6, atol=1e-7)


def test_golden_file_is_complete() -> None:
    assert len(GOLDEN["cases"]) == 36
    assert {case["C"] for case in GOLDEN["cases"]} == {-1, 100.0, 1.0, 0.3}


# The equation of the paper, in loops


def _twin(z0: Tensor, z1: Tensor, kernel: Kernel, *, exact: bool, C: float, reg: float, negatives: str,
          symmetric: bool, drop_at_bound: bool, assume_unit_diag: bool) -> float:  # fmt: skip
    k = kernel_twin(kernel)
    views = [(z / z.norm(dim=1, keepdim=True)).tolist() for z in (z0, z1)]
    images, terms = len(z0), []
    for role in (0, 1) if symmetric else (0,):
        for i in range(images):
            positive, scored = views[role][i], views[1 - role][i]
            others = [j for j in range(images) if j != i]
            Y = [views[role][j] for j in others]
            if negatives == "both":
                Y += [views[1 - role][j] for j in others]
            own = 1.0 if assume_unit_diag else k(positive, positive)
            Q = np.array([[own + k(a, b) - k(positive, a) - k(positive, b) for b in Y] for a in Y])
            Q += reg * np.eye(len(Y))
            alpha = box_optimum(Q, C) if exact else np.clip(np.linalg.solve(Q, np.full(len(Y), 2.0)), 0, C)
            if drop_at_bound:
                alpha[alpha > C * (1 - 1e-6)] = 0
            terms.append(sum(a * (k(y, scored) - k(positive, scored)) for a, y in zip(alpha, Y, strict=True)))
    return sum(terms) / len(terms)


OPTIONS = {"C": 100.0, "reg": 0.1, "drop_at_bound": False, "assume_unit_diag": False}


@every_solver
@both_sides
@both_roles
@pytest.mark.parametrize(
    "changes",
    [{}, {"C": 0.5}, {"C": 0.5, "drop_at_bound": True}, {"C": math.inf, "reg": 0.3}],
    ids=["default", "C=0.5", "drop_at_bound", "C=inf"],
)
def test_equals_the_equation_in_loops(
    solver: Solver, negatives: str, symmetric: bool, changes: dict[str, Any]
) -> None:
    options = OPTIONS | changes | {"negatives": negatives, "symmetric": symmetric}
    z0, z1 = make_views(6, 4, seed=31)
    expected = _twin(z0, z1, RBF(), exact=not isinstance(solver, Inverse), **options)
    assert MMCLLoss(RBF(), solver, **options)(3 * z0, z1).item() == pytest.approx(expected, rel=1e-6)


@every_kernel
@both_sides
@pytest.mark.parametrize("assume_unit_diag", [False, True])
def test_equals_the_equation_with_every_kernel(
    kernel: Kernel, negatives: str, assume_unit_diag: bool
) -> None:
    options = OPTIONS | {"negatives": negatives, "symmetric": False, "assume_unit_diag": assume_unit_diag}
    z0, z1 = make_views(5, 4, seed=32)
    expected = _twin(z0, z1, kernel, exact=False, **options)
    assert MMCLLoss(kernel, **options)(z0, z1).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.positive_semidefinite], ids=name)
@pytest.mark.parametrize("solver", BOX_SOLVERS, ids=name)
def test_the_optimum_equals_the_equation_with_every_kernel(kernel: Kernel, solver: Solver) -> None:
    options = OPTIONS | {"negatives": "both", "symmetric": False}
    z0, z1 = make_views(5, 4, seed=33)
    expected = _twin(z0, z1, kernel, exact=True, **options)
    assert MMCLLoss(kernel, solver, **options)(z0, z1).item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_is_minus_the_mean_decision_value_and_negative() -> None:
    z0, z1 = make_views(16, 8, seed=34)
    assert MMCLLoss()(z0, z1) < -0.1
    strangers = make_views(16, 8, seed=99)[0]
    assert MMCLLoss()(z0, z1) < MMCLLoss()(z0, strangers)


# Gradients


@every_solver
@both_sides
@both_roles
def test_no_gradient_flows_through_alpha(solver: Solver, negatives: str, symmetric: bool) -> None:
    z0, z1 = make_views(6, 4, seed=35)
    loss = MMCLLoss(solver=solver, negatives=negatives, symmetric=symmetric and negatives == "both")
    value, *gradients = _gradients(loss, z0, z1)
    assert not loss.last_duals[0].solution.alpha.requires_grad
    frozen = _with_frozen_alpha(loss)
    again, *expected = _gradients(frozen, z0, z1)
    assert torch.equal(value, again)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


@every_kernel
@pytest.mark.parametrize("normalize", [True, False])
def test_gradcheck_with_alpha_frozen(kernel: Kernel, normalize: bool) -> None:
    z0, z1 = _leaves(*make_views(4, 3, seed=36))
    loss = MMCLLoss(kernel, normalize=normalize)
    loss(z0, z1)
    assert torch.autograd.gradcheck(_with_frozen_alpha(loss), (z0, z1))


@both_sides
def test_gradients_are_finite_where_all_projections_coincide(negatives: str) -> None:
    z = torch.ones(8, 5)
    for solver in SOLVERS:
        value, *gradients = _gradients(MMCLLoss(solver=solver, negatives=negatives), z, z)
        assert value.abs() < 1e-4
        assert all(gradient.isfinite().all() for gradient in gradients)


# Precision and scale


@every_solver
def test_single_precision_agrees_with_double(solver: Solver, record_property: Any) -> None:
    for classes, noise in ((0, 0.5), (8, 0.1), (1, 0.01)):
        z0, z1 = make_views(64, 32, classes=classes, noise=noise, seed=37)
        loss = MMCLLoss(
            solver=type(solver)(**({} if isinstance(solver, Inverse) else {"tol": 1e-4, "max_steps": 5000}))
        )
        double, single = loss(z0, z1).item(), loss(z0.float(), z1.float()).item()
        error = abs(single - double) / abs(double)
        record_property(f"classes={classes}", error)
        assert error < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_computed_in_single(dtype: torch.dtype) -> None:
    z0, z1 = (view.to(dtype).requires_grad_() for view in make_views(8, 6, seed=38))
    loss = MMCLLoss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z0, z1)
    value.backward()
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert torch.equal(value, loss(z0.float(), z1.float()))
    assert z0.grad is not None
    assert z0.grad.dtype == dtype


def test_double_precision_stays() -> None:
    assert MMCLLoss()(*make_views(4, 3)).dtype == torch.float64


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e10, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_does_not_matter(scale: float, dtype: torch.dtype) -> None:
    z0, z1 = (view.to(dtype) for view in make_views(8, 6, seed=39))
    expected = MMCLLoss()(z0, z1).item()
    assert MMCLLoss()(scale * z0, z1).item() == pytest.approx(expected, rel=1e-4)


def test_large_finite_projections_are_not_called_infinite() -> None:
    z0, z1 = (2e38 * view.float().abs() for view in make_views(8, 6, seed=39))
    with pytest.raises(NumericalError) as caught:
        MMCLLoss(Linear(), normalize=False)(z0, z1)
    assert "0 of 8 rows of view 0 and 0 of 8 rows of view 1" not in str(caught.value)


# The contract with the caller


def test_candidates_are_all_views_1_then_all_views_2() -> None:
    z0, z1 = make_views(5, 4, seed=40)
    loss = MMCLLoss(normalize=False)
    loss(z0, z1)
    assert torch.equal(loss.last_duals[0].problem.positive, torch.arange(5))
    assert torch.equal(loss.last_duals[0].problem.excluded[:, 1], torch.arange(5) + 5)
    gram = RBF()(torch.cat([z0, z1]), torch.cat([z0, z1]))
    by_hand = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean() + 1 / 10
    torch.testing.assert_close(loss.last_duals[0].problem.gram, by_hand)


def test_the_roles_of_the_views_differ_unless_symmetric() -> None:
    z0, z1 = make_views(8, 5, seed=41)
    assert MMCLLoss()(z0, z1) != MMCLLoss()(z1, z0)
    for negatives in ("both", "one"):
        there, back = (MMCLLoss(negatives=negatives)(*pair) for pair in ((z0, z1), (z1, z0)))  # type: ignore[arg-type]
        symmetric = MMCLLoss(negatives=negatives, symmetric=True)(z0, z1)  # type: ignore[arg-type]
        torch.testing.assert_close(symmetric, (there + back) / 2)


@every_solver
def test_symmetric_takes_every_solver_at_any_number_of_steps(solver: Solver) -> None:
    z0, z1 = make_views(6, 4, seed=41)
    short = solver if isinstance(solver, Inverse) else type(solver)(max_steps=3)
    loss = MMCLLoss(solver=short, symmetric=True)
    loss(z0, z1)
    assert loss.last_duals[0].solution.alpha.shape == (12, 12)


@every_solver
@both_sides
def test_any_batch_size_in_any_call(solver: Solver, negatives: str) -> None:
    loss = MMCLLoss(solver=solver, negatives=negatives)
    for images in (8, 2, 11, 3):
        z0, z1 = make_views(images, 4, seed=42)
        assert loss(z0, z1) == MMCLLoss(solver=solver, negatives=negatives)(z0, z1)


def test_permuting_the_images_changes_nothing() -> None:
    z0, z1 = make_views(8, 5, seed=43)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(MMCLLoss()(z0[order], z1[order]), MMCLLoss()(z0, z1))


def test_reference_preset() -> None:
    loss = MMCLLoss.reference(C=7.0)
    assert (loss.negatives, loss.assume_unit_diag, loss.symmetric, loss.C) == ("one", True, False, 7.0)


def test_median_width_is_taken_from_the_candidates() -> None:
    z0, z1 = make_views(8, 5, seed=44)
    kernel = RBF(gamma="median")
    for negatives, candidates in (("both", torch.cat([z0, z1])), ("one", z0)):
        fixed = MMCLLoss(kernel.fit(candidates), negatives=negatives)  # type: ignore[arg-type]
        torch.testing.assert_close(MMCLLoss(kernel, negatives=negatives)(z0, z1), fixed(z0, z1))  # type: ignore[arg-type]
    MMCLLoss(kernel)(z0, z1)
    assert kernel.gamma == "median"


@pytest.mark.parametrize(
    ("views", "error", "match"),
    [
        (
            (torch.ones(1, 4), torch.ones(1, 4)),
            ShapeError,
            "at least 2 images per batch, got 1: raise batch_size",
        ),
        ((torch.ones(4, 4), torch.ones(4, 3)), ShapeError, r"got \(4, 4\) and \(4, 3\)"),
        ((torch.ones(4, 4), torch.ones(5, 4)), ShapeError, r"got \(4, 4\) and \(5, 4\)"),
        ((torch.ones(4), torch.ones(4)), ShapeError, r"got \(4,\) and \(4,\)"),
        ((torch.ones(4, 4), torch.ones(4, 4).double()), ShapeError, "got torch.float32 and torch.float64"),
        ((torch.ones(4, 4).int(), torch.ones(4, 4).int()), ShapeError, "floating dtype, got torch.int32"),
    ],
)
def test_shapes_are_checked(views: tuple[Tensor, Tensor], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        MMCLLoss()(*views)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_projections_that_are_not_finite_raise(bad: float, normalize: bool) -> None:
    z0, z1 = torch.ones(4, 3), torch.ones(4, 3)
    z1[1, 2] = z1[3, 0] = bad
    with pytest.raises(
        NumericalError, match=r"not finite: 0 of 4 rows of view 0 and 2 of 4 rows of view 1.*learning rate"
    ):
        MMCLLoss(normalize=normalize)(z0, z1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"C": 0.0}, "C must be a number > 0, got 0.0"),
        ({"C": -1}, "C must be a number > 0, got -1: .inf for no upper bound"),
        ({"reg": -0.1}, "reg must be a finite number >= 0, got -0.1"),
        ({"negatives": "all"}, "negatives must be 'both' or 'one', got 'all'"),
        ({"kernel": "rbf"}, "kernel"),
        ({"solver": "exact"}, "solver"),
    ],
)
def test_options_are_checked(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        MMCLLoss(**options)


@pytest.mark.parametrize("kernel", [Tanh(gamma=5.0)], ids=name)
def test_an_indefinite_kernel(kernel: Kernel) -> None:
    z0, z1 = make_views(8, 4, seed=21)
    assert MMCLLoss(kernel)(z0, z1).isfinite()
    assert MMCLLoss(kernel, ProjectedGradient(), C=1.0)(z0, z1).isfinite()
    with pytest.raises(NumericalError, match=r"Tanh\(gamma=5.0"):
        MMCLLoss(kernel, Exact(), C=1.0)(z0, z1)
    with pytest.raises(ConfigError, match="needs a finite C"):
        MMCLLoss(kernel, Exact(), C=math.inf)(z0, z1)


@pytest.mark.parametrize("kernel", [Polynomial(), Intersection()], ids=name)
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_a_diagonal_set_to_one_may_make_problems_that_are_not_convex(kernel: Kernel, spread: float) -> None:
    # Near the start of training all images look alike and k(x, x) > 1: the best is then every alpha at C, and
    # an exact solver that returned zeros would train nothing.
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(128, generator=generator)
    z0, noise = base + spread * torch.randn(2, 64, 128, generator=generator)
    z1 = z0 + 0.5 * (noise - base)
    values = {}
    for solver in (Exact(), ProjectedGradient()):
        loss = MMCLLoss.reference(kernel=kernel, solver=solver)
        loss(z0, z1)
        assert not loss.last_duals[0].problem.convex
        (dual,) = loss.last_duals
        values[type(solver)] = dual.problem.objective(dual.solution.alpha).mean().item()
        with pytest.raises(ConfigError, match=r"needs a finite C for .* with assume_unit_diag"):
            MMCLLoss.reference(kernel=kernel, solver=solver, C=math.inf)(z0, z1)
    assert values[Exact] == pytest.approx(values[ProjectedGradient], rel=0.02)
    for right in (MMCLLoss(kernel, Exact()), MMCLLoss.reference(kernel=RBF(), solver=Exact())):
        right(z0, z1)
        assert right.last_duals[0].problem.convex


# Options between steps


def test_set_option() -> None:
    loss = MMCLLoss(RBF(), Exact())
    loss.set_option("C", 3.0)
    loss.set_option("reg", 0.5)
    loss.set_option("drop_at_bound", True)
    loss.set_option("kernel.gamma", 0.2)
    loss.set_option("solver.max_steps", 7)
    assert (loss.C, loss.reg, loss.drop_at_bound) == (3.0, 0.5, True)
    assert (loss.kernel, loss.solver) == (RBF(gamma=0.2), Exact(max_steps=7))
    z0, z1 = make_views(6, 4, seed=45)
    twin = MMCLLoss(RBF(gamma=0.2), Exact(max_steps=7), 3.0, 0.5, drop_at_bound=True)
    assert loss(z0, z1) == twin(z0, z1)


def test_set_option_takes_the_alias_of_the_width() -> None:
    loss = MMCLLoss(RBF(gamma=1.0))
    loss.set_option("kernel.sigma2", 5.0)
    assert loss.kernel == RBF(sigma2=5.0)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("C", 0.0, "C must be a number > 0"),
        ("reg", -1.0, "reg must be"),
        ("kernel.gamma", -1.0, "gamma must be"),
        ("solver.max_steps", 0, "max_steps"),
        ("kernel.width", 1.0, "'kernel.width' is no option of this loss; there are C, reg, .*kernel.gamma"),
        ("gamma", 1.0, "'gamma' is no option"),
        ("kernel", RBF(), "'kernel' is no option"),
        ("negatives", "one", "'negatives' is no option"),
    ],
)
def test_set_option_checks(path: str, value: Any, match: str) -> None:
    loss = MMCLLoss(RBF(), Exact())
    with pytest.raises(ConfigError, match=match):
        loss.set_option(path, value)
    assert (loss.C, loss.reg, loss.kernel, loss.solver) == (100.0, 0.1, RBF(), Exact())


# Statistics


@both_sides
@pytest.mark.parametrize("C", [0.4, 100.0])
@every_solver
def test_statistics_equal_their_definition(negatives: str, C: float, solver: Solver) -> None:
    z0, z1 = make_views(7, 4, seed=46)
    loss = MMCLLoss(solver=solver, C=C, negatives=negatives)
    assert loss.last_stats == {}
    loss(z0, z1)
    problem, solution, stats = loss.last_duals[0].problem, loss.last_duals[0].solution, loss.last_stats
    assert problem is not None
    assert solution is not None
    N = 12 if negatives == "both" else 6
    support, bound, margins, residuals, gaps, top = 0, 0, [], [], [], 0.0
    for b in range(7):
        matrix, indices = problem.dense(b)
        a = solution.alpha[b, indices]
        support += int((a > 1e-6).sum())
        bound += int((a > C * (1 - 1e-6)).sum())
        delta = matrix - 0.1 * torch.eye(N, dtype=torch.float64)
        margins.append(1 / (a @ delta @ a).sqrt().item())
        residuals.append(((a - (a - a.max() * (matrix @ a - 2)).clamp(0, C)).abs() / a.max()).max().item())
        best = box_optimum(matrix.numpy(), C)
        value, optimum = ((x @ matrix.numpy() @ x / 2 - 2 * x.sum()) for x in (a.numpy(), best))
        gaps.append((value - optimum) / abs(value))
        top = max(top, a.max().item())
    assert stats["sv_fraction"].item() == pytest.approx(support / (7 * N))
    assert stats["bound_fraction"].item() == pytest.approx(bound / (7 * N))
    assert stats["free_fraction"].item() == pytest.approx((support - bound) / (7 * N))
    assert stats["margin"].item() == pytest.approx(np.mean(margins))
    assert stats["kkt_residual"].item() == pytest.approx(max(residuals), abs=1e-9)
    assert stats["duality_gap"].item() >= np.mean(gaps) - 1e-9
    assert stats["alpha_max"].item() == pytest.approx(top)
    assert stats["steps"].item() == pytest.approx(solution.steps.double().mean().item())
    assert (stats["negatives"].item(), stats["retries"].item()) == (N, 0)
    assert all(value.ndim == 0 and not value.requires_grad for value in stats.values())


def test_statistics_describe_the_solution_also_where_the_bound_is_dropped() -> None:
    z0, z1 = make_views(8, 5, seed=47)
    plain, dropped = MMCLLoss(solver=Exact(), C=0.3), MMCLLoss(solver=Exact(), C=0.3, drop_at_bound=True)
    assert plain(z0, z1) != dropped(z0, z1)
    assert plain.last_stats["bound_fraction"] > 0
    for key, value in plain.last_stats.items():
        assert dropped.last_stats[key].item() == value.item(), key


# Memory


@every_solver
@both_roles
@pytest.mark.parametrize("kernel", [RBF(), Intersection(), Polynomial()], ids=name)
def test_peak_memory_grows_with_the_square_of_the_batch(
    solver: Solver, symmetric: bool, kernel: Kernel
) -> None:
    short = solver if isinstance(solver, Inverse) else dataclasses.replace(solver, tol=1e-4, max_steps=10)
    width = 12 if "fixed" in name(solver) else 8  # bytes: three step lengths, or a kernel matrix in float64
    peaks = []
    for images in (48, 96):
        z0, z1 = _leaves(*(view.float() for view in make_views(images, 4, seed=48)))
        loss = MMCLLoss(kernel, short, symmetric=symmetric)
        with Memory() as memory:
            loss(z0, z1).backward()
        n = 2 * images
        assert memory.largest <= width * n * n
        assert memory.largest < 4 * images * n * n / 12  # far from one matrix per anchor
        assert memory.peak >= 2 * 4 * n * n  # the kernel matrix and its inverse or gradient were seen
        peaks.append(memory.peak)
    assert peaks[1] <= 4.5 * peaks[0]


def test_the_last_problem_is_freed_by_the_next_call() -> None:
    loss = MMCLLoss()
    loss(*make_views(8, 4))
    first = loss.last_duals[0].problem
    loss(*make_views(4, 4))
    assert loss.last_duals[0].problem is not first
    assert loss.last_duals[0].problem.B == 4
