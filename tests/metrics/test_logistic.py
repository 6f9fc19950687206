from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import randn
from sklearn.linear_model import LogisticRegression as Reference

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.metrics import LogisticModel, fit_logistic, logistic_path


def _data(n: int = 120, width: int = 6, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.arange(n) % classes
    return randn(n, width, seed=1) + randn(classes, width, seed=2)[targets], targets


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_equals_scikit_learn(C: float, classes: int) -> None:
    x, y = _data(classes=classes)
    # Of two classes scikit-learn has one vector w; here w1 = -w0 = w / 2, with half the penalty.
    reference = Reference(C=2 * C if classes == 2 else C, tol=1e-10, max_iter=10_000)
    reference.fit(x.numpy(), y.numpy())
    model = fit_logistic(x, y, classes, C, gtol=1e-8, ftol=0, max_iter=5000)
    expected = reference.predict_proba(x.numpy())
    np.testing.assert_allclose(model.scores(x).softmax(1).numpy(), expected, atol=2e-5)
    if classes > 2:
        np.testing.assert_allclose(model.weight.numpy(), reference.coef_, atol=1e-4)


def test_single_precision_ends_near_double() -> None:
    x, y = _data()
    double, single = (fit_logistic(x, y, 4, C=0.5, dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert (double.weight.dtype, single.weight.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(single.weight.double(), double.weight, rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match=r"dtype must be torch.float64 or torch.float32, got torch.int64"):
        fit_logistic(x, y, 4, dtype=torch.int64)


def test_the_gradient_is_zero_at_the_fit() -> None:
    x, y = _data()
    model = fit_logistic(x, y, 4, C=0.5, gtol=1e-9, ftol=0, max_iter=5000)
    weight, bias = model.weight.clone().requires_grad_(), model.bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ weight.T + bias, y, reduction="sum")
    (loss + weight.square().sum() / (2 * 0.5)).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 1e-6


def test_a_start_from_the_fit_takes_no_step_and_few_steps_are_said() -> None:
    x, y = _data()
    model = fit_logistic(x, y, 4)
    assert model.converged
    assert fit_logistic(x, y, 4, start=model).steps <= 1
    short = fit_logistic(x, y, 4, max_iter=2)
    assert (short.steps, short.converged) == (2, False)


def test_a_class_without_examples_and_single_precision() -> None:
    x, y = _data(classes=3)
    model = fit_logistic(x.float(), y, 5)
    assert model.weight.dtype == torch.float64
    assert model.scores(x.float()).argmax(1).max() <= 2


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"C": 0.0}, ConfigError, "C must be a finite number > 0, got 0.0"),
        ({"classes": 1}, ConfigError, "classes must be an integer >= 2, got 1"),
        ({"classes": 3}, ShapeError, r"targets must be in \[0, 3\), got 0 to 3"),
        ({"targets": torch.zeros(3).long()}, ShapeError, r"got \(120, 6\) and \(3,\)"),
        ({"targets": torch.full((120,), 0.5)}, ShapeError, "targets must be integers, got torch.float32"),
        ({"features": torch.full((120, 6), math.nan)}, NumericalError, "features are not finite"),
        ({"features": torch.full((120, 6), 1e300, dtype=torch.float64)}, NumericalError, "too large"),
        ({"gtol": -1.0}, ConfigError, "gtol must be a finite number >= 0, got -1.0"),
        ({"ftol": "a"}, ConfigError, "ftol must be a finite number >= 0, got 'a'"),
        (
            {"start": LogisticModel(torch.zeros(2, 3), torch.zeros(2), 0, True)},
            ShapeError,
            r"start must have weights \(4, 6\), got \(2, 3\)",
        ),
        ({"max_iter": 0}, ConfigError, "max_iter must be an integer >= 1"),
    ],
)
def test_input_is_checked(change: dict[str, Any], error: type[Exception], match: str) -> None:
    x, y = _data()
    with pytest.raises(error, match=match):
        fit_logistic(**({"features": x, "targets": y, "classes": 4} | change))


def test_standardised_features_give_a_model_of_the_features_as_they_are() -> None:
    x, y = _data()
    x = torch.cat([100 * x + 7, torch.full((len(x), 1), 3.0)], dim=1)  # the last one is constant
    std, mean = torch.std_mean(x[:, :-1].double(), dim=0)
    plain = fit_logistic((x[:, :-1] - mean) / std, y, 4, 0.1, gtol=1e-8, ftol=0)
    model = fit_logistic(x, y, 4, 0.1, standardise=True, gtol=1e-8, ftol=0)
    torch.testing.assert_close(model.scores(x), plain.scores((x[:, :-1] - mean) / std), rtol=0, atol=1e-5)
    assert (model.weight[:, -1] == 0).all()
    again = fit_logistic(x, y, 4, 0.1, start=model, standardise=True, gtol=1e-6)
    assert again.steps == 0, "a start is of the features as they are, too"
    assert fit_logistic(x[:1], y[:1], 4, standardise=True).converged, "one row has no deviation"


def test_a_path_starts_each_fit_from_the_last_one() -> None:
    x, y = _data()
    Cs = [10.0, 1.0, 0.1]
    found = list(logistic_path(x, y, 4, Cs))
    assert [C for C, _ in found] == Cs
    alone = [fit_logistic(x, y, 4, C) for C in Cs]
    assert [model.steps for _, model in found] != [model.steps for model in alone]
    third = fit_logistic(x, y, 4, 0.1, start=found[1][1])
    assert torch.equal(found[2][1].weight, third.weight)


def test_the_published_stopping_rule_goes_further_than_scikit_learns_own() -> None:
    """Which divides by the number of images: its default is another protocol where the penalty is weak."""
    torch.manual_seed(0)
    y = torch.arange(300) % 5
    x = randn(5, 60, seed=4)[y] + 2.5 * randn(300, 60, seed=3)
    model = fit_logistic(x, y, 5, 1000.0, max_iter=100)
    default = Reference(C=1000.0, max_iter=100).fit(x.numpy(), y.numpy())
    assert model.steps > default.n_iter_[0]
    same = Reference(C=1000.0, max_iter=100, tol=1e-4 / 300).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(model.scores(x).softmax(1).numpy(), same.predict_proba(x.numpy()), atol=5e-3)
