from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import randn
from sklearn.linear_model import LogisticRegression

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.metrics import LogisticModel, fit_logistic


def _data(n: int = 120, width: int = 6, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.arange(n) % classes
    return randn(n, width, seed=1) + randn(classes, width, seed=2)[targets], targets


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_equals_scikit_learn(C: float, classes: int) -> None:
    x, y = _data(classes=classes)
    # Of two classes scikit-learn has one vector w; here w1 = -w0 = w / 2, with half the penalty.
    reference = LogisticRegression(C=2 * C if classes == 2 else C, tol=1e-10, max_iter=10_000)
    reference.fit(x.numpy(), y.numpy())
    model = fit_logistic(x, y, classes, C, gtol=1e-8, ftol=0, max_iter=5000)
    expected = reference.predict_proba(x.numpy())
    np.testing.assert_allclose(model.scores(x).softmax(1).numpy(), expected, atol=2e-5)
    if classes > 2:
        np.testing.assert_allclose(model.weight.numpy(), reference.coef_, atol=1e-4)


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
