from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import KERNELS, Memory, kernel_twin, make_views, name, randn

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.kernels import RBF, Intersection, Kernel, Linear, Polynomial, Tanh, squared_distances

every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=name)


def test_all_kernels_are_enrolled() -> None:
    own = {kind for kind in Kernel.__subclasses__() if kind.__module__.startswith("mmcl_lightning.")}
    assert {type(kernel) for kernel in KERNELS} == own  # other tests define kernels too


@every_kernel
def test_equals_its_formula(kernel: Kernel) -> None:
    x, y = randn(5, 4, seed=1), randn(7, 4, seed=2)
    value, twin = kernel(x, y), kernel_twin(kernel)
    assert value.shape == (5, 7)
    for i in range(5):
        for j in range(7):
            assert value[i, j].item() == pytest.approx(
                twin(x[i].tolist(), y[j].tolist()), rel=1e-12, abs=1e-13
            )


@every_kernel
def test_diag_is_the_diagonal(kernel: Kernel) -> None:
    x = randn(9, 5, seed=3)
    torch.testing.assert_close(kernel.diag(x), kernel(x, x).diagonal(), rtol=1e-12, atol=1e-12)


@every_kernel
def test_diag_carries_the_gradient(kernel: Kernel) -> None:
    x = randn(4, 3, seed=4).requires_grad_()
    (of_matrix,) = torch.autograd.grad(kernel(x, x).diagonal().sum(), x)
    of_diag = (
        torch.autograd.grad(kernel.diag(x).sum(), x, allow_unused=True)
        if not isinstance(kernel, RBF)
        else None
    )
    expected = torch.zeros_like(x) if of_diag is None else of_diag[0]
    torch.testing.assert_close(of_matrix, expected, rtol=1e-10, atol=1e-10)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_symmetric_and_keeps_the_dtype(kernel: Kernel, dtype: torch.dtype) -> None:
    x = torch.cat(make_views(6, 5, seed=5)).to(dtype)
    gram = kernel(x, x)
    assert gram.dtype == dtype
    torch.testing.assert_close(gram, gram.T, rtol=0, atol=10 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.positive_semidefinite], ids=name)
def test_is_positive_semidefinite_where_claimed(kernel: Kernel) -> None:
    lowest = min(
        torch.linalg.eigvalsh(kernel(x, x))[0].item() / kernel(x, x).diagonal().abs().max().item()
        for x in (randn(30, 3, seed=seed) for seed in range(6))
    )
    assert lowest > -1e-13


def test_tanh_is_rightly_not_claimed() -> None:
    x = torch.cat(make_views(8, 4, seed=21))
    assert torch.linalg.eigvalsh(Tanh(gamma=5.0)(x, x))[0] < -0.1
    assert [type(kernel) for kernel in KERNELS if not kernel.positive_semidefinite] == [Tanh, Tanh]


@every_kernel
def test_gradcheck(kernel: Kernel) -> None:
    x, y = randn(4, 3, seed=6).requires_grad_(), randn(5, 3, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(kernel, (x, y))


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diagonal_is_right_in_either_precision(kernel: Kernel, dtype: torch.dtype) -> None:
    x = torch.cat(make_views(6, 5, seed=5)).to(dtype)
    torch.testing.assert_close(
        kernel(x, x).diagonal(), kernel.diag(x), rtol=0, atol=10 * torch.finfo(dtype).eps
    )


def test_narrow_kernels_have_a_diagonal_of_one_in_single_precision() -> None:
    x = torch.cat(make_views(8, 6, seed=2)).float()
    assert torch.equal(RBF(gamma=1e3)(x, x).diagonal(), torch.ones(16))


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_at_identical_points(kernel: Kernel, dtype: torch.dtype) -> None:
    x = randn(1, 6, seed=8).to(dtype).expand(5, 6).clone().requires_grad_()
    kernel(x, x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@every_kernel
def test_is_a_frozen_value(kernel: Kernel) -> None:
    field = dataclasses.fields(kernel)[0].name if dataclasses.fields(kernel) else "anything"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kernel, field, 3)
    copy = dataclasses.replace(kernel)
    assert copy == kernel
    assert hash(copy) == hash(kernel)
    assert eval(repr(kernel)) == kernel  # the repr can be pasted


@every_kernel
def test_fit_without_data_dependence_is_the_kernel_itself(kernel: Kernel) -> None:
    assert kernel.fit(randn(6, 3)) == kernel


@every_kernel
@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ((4, 3), (4, 2), r"\(4, 3\) and \(4, 2\)"),
        ((4,), (4, 3), r"\(4,\) and \(4, 3\)"),
        ((4, 3), (2, 4, 3), r"\(4, 3\) and \(2, 4, 3\)"),
    ],
)
def test_shapes_are_checked(kernel: Kernel, x: tuple[int, ...], y: tuple[int, ...], match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        kernel(torch.zeros(x), torch.zeros(y))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: RBF(gamma=0.0), "gamma must be a finite number > 0 or 'median', got 0.0"),
        (lambda: RBF(gamma=-1.0), "gamma .* got -1.0"),
        (lambda: RBF(gamma=float("nan")), "gamma .* got nan"),
        (lambda: RBF(gamma=float("inf")), "gamma .* got inf"),
        (lambda: RBF(gamma="mean"), "or 'median', got 'mean'"),  # type: ignore[arg-type]
        (lambda: RBF(sigma2=0.0), "sigma2 must be a number > 0, got 0.0"),
        (lambda: RBF(sigma2=-2.0), "sigma2 must be a number > 0, got -2.0"),
        (lambda: RBF(gamma=1.0, sigma2=1.0), "not both: gamma=1.0, sigma2=1.0"),
        (lambda: Polynomial(degree=0), "degree must be an integer >= 1, got 0"),
        (lambda: Polynomial(degree=2.5), "degree .* got 2.5"),  # type: ignore[arg-type]
        (lambda: Polynomial(gamma=0.0), "gamma must be a finite number > 0, got 0.0"),
        (lambda: Polynomial(offset=-1.0), "offset must be a finite number >= 0, got -1.0"),
        (lambda: Polynomial(gamma=math.inf), "gamma .* got inf"),
        (lambda: Polynomial(degree="3"), "degree .* got '3'"),  # type: ignore[arg-type]
        (lambda: RBF(gamma=True), "gamma .* got True"),
        (lambda: Tanh(gamma=-1.0), "gamma must be a finite number > 0, got -1.0"),
        (lambda: Tanh(offset=math.nan), "offset must be a finite number > -inf, got nan"),
    ],
)
def test_options_are_checked(build: type, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


def test_sigma2_is_an_alias() -> None:
    assert RBF(sigma2=5.0) == RBF(gamma=0.1)
    assert RBF(sigma2=0.5) == RBF()
    assert dataclasses.replace(RBF(sigma2=5.0), gamma=2.0) == RBF(gamma=2.0)


@pytest.mark.parametrize("gamma", [2, np.float64(2), np.float32(2)], ids=["int", "float64", "float32"])
def test_any_number_serves_as_width(gamma: float) -> None:
    x = randn(4, 3, seed=9)
    torch.testing.assert_close(RBF(gamma=gamma)(x, x), RBF(gamma=2.0)(x, x))


@pytest.mark.parametrize("points", [2, 6, 7, 40])
def test_median_heuristic(points: int) -> None:
    x = randn(points, 5, seed=10)
    squares = sorted(
        sum((a - b) ** 2 for a, b in zip(p, q, strict=True))
        for i, p in enumerate(x.tolist())
        for q in x.tolist()[:i]
    )
    median = squares[(len(squares) - 1) // 2]  # of an even number, the lower one
    assert median <= np.median(squares) * (1 + 1e-12)
    assert RBF(gamma="median").fit(x).gamma == pytest.approx(1 / (2 * median), rel=1e-12)
    if len(squares) % 2:
        assert median == pytest.approx(np.median(squares))


def test_median_heuristic_of_many_points_is_taken_from_a_sample() -> None:
    x = randn(3000, 4, seed=11)
    whole = np.median(torch.nn.functional.pdist(x).square().numpy())
    assert RBF(gamma="median").fit(x).gamma == pytest.approx(1 / (2 * whole), rel=0.05)


def test_median_heuristic_fills_in_at_the_call() -> None:
    x, y = randn(3, 4, seed=12), randn(6, 4, seed=13)
    kernel = RBF(gamma="median")
    fitted = kernel.fit(y)
    assert fitted == RBF(fitted.gamma)
    torch.testing.assert_close(kernel(x, y), fitted(x, y), rtol=1e-12, atol=0)
    assert torch.equal(kernel.diag(x), torch.ones(3, dtype=torch.float64))
    assert repr(kernel.fit_on_device(y)) == repr(fitted)
    assert kernel.fit_on_device(y).gamma == torch.tensor(fitted.gamma, dtype=torch.float64)


@pytest.mark.parametrize("points", [1, 5])
def test_median_heuristic_without_a_scale_takes_one(points: int) -> None:
    assert RBF(gamma="median").fit(torch.ones(points, 4)).gamma == 1.0


def test_median_heuristic_knows_a_small_scale() -> None:
    x = randn(8, 4, seed=14)
    gamma = RBF(gamma="median").fit(x).gamma
    assert RBF(gamma="median").fit(1e-3 * x).gamma == pytest.approx(1e6 * gamma)


def test_squared_distances_of_nearly_equal_points() -> None:
    x = (1 + 1e-4 * randn(20, 8, seed=15)).float()
    exact = torch.cdist(x.double(), x.double()).square()
    # |x|^2 + |y|^2 - 2 x.y without the shift is off by 1e-6 here, a hundred times the distance.
    torch.testing.assert_close(
        squared_distances(x, x).double(), exact, rtol=0, atol=1e-6 * exact.max().item()
    )
    assert (squared_distances(x, x) >= 0).all()


def test_intersection_stores_nothing_per_coordinate() -> None:
    n, m, D = 40, 50, 64
    x, y = randn(n, D, seed=16).requires_grad_(), randn(m, D, seed=17).requires_grad_()
    with Memory() as memory:
        Intersection()(x, y).sum().backward()
    assert memory.largest <= 8 * max(n * m, n * D, m * D)
    assert memory.largest >= 8 * n * m  # the result itself was seen


def test_linear_ignores_nothing() -> None:
    x = torch.tensor([[1.0, -2.0]])
    assert Linear()(x, x).item() == 5.0
    assert Intersection()(x, x).item() == 1.0
