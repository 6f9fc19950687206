"""Multinomial logistic regression on features, fitted to its optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._options import check_choice, check_flags, check_installed, check_number, check_whole
from mmcl_lightning.errors import NumericalError, ShapeError

__all__ = ["LogisticModel", "fit_each_class", "fit_logistic", "logistic_path"]


@dataclass(frozen=True, eq=False)
class LogisticModel:
    """A fitted classifier.

    Args:
        weight: Shape ``(classes, F)``.
        bias: Shape ``(classes,)``.
        steps: Iterations that the fit took.
        converged: Whether it met a tolerance before ``max_iter``.
    """

    weight: Tensor
    bias: Tensor
    steps: int
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """Return the class scores of features ``(n, F)``, shape ``(n, classes)``."""
        return features.to(self.weight) @ self.weight.T + self.bias


def fit_logistic(
    features: Tensor,
    targets: Tensor,
    classes: int,
    C: float = 1.0,
    *,
    start: LogisticModel | None = None,
    standardise: bool = False,
    max_iter: int = 1000,
    gtol: float = 1e-4,
    ftol: float = 2.2e-9,
    dtype: torch.dtype = torch.float64,
) -> LogisticModel:
    r"""Fit class scores :math:`W x + b` by L-BFGS-B.

    .. math:: \min_{W, b} \sum_i -\log \operatorname{softmax}(W x_i + b)_{y_i} + \frac{\|W\|^2}{2 C}

    The minimiser is SciPy's, the extra ``evaluate``, in float64; the loss and its gradient are torch's, on
    the device of the features.

    Args:
        features: x, shape ``(n, F)``, any floating dtype.
        targets: y, class indices, shape ``(n,)``, in ``[0, classes)``.
        classes: Number of classes, >= 2.
        C: Inverse strength of the penalty on the weights, > 0; the bias has none.
        start: Model to start from; ``None`` for zeros.
        standardise: Fit on x less its mean, over its standard deviation, so that the penalty is the same for
            every feature, whatever its unit; the model that is returned takes x as it is.
        max_iter: Most iterations.
        gtol: Largest entry of the gradient of the sum at which to stop.
        ftol: Relative decrease of the sum at which to stop.
        dtype: Precision of the loss and its gradient, float64 or float32.

    Raises:
        ConfigError: If an option is out of range, or SciPy is not installed.
        ShapeError: If the shapes do not fit together, or a target is no class.
        NumericalError: If a feature is not finite, or so large that its square is not.
    """
    check_whole(1, max_iter=max_iter)
    check_flags(standardise=standardise)
    for name, value, rule in (("C", C, "> 0"), ("gtol", gtol, ">= 0"), ("ftol", ftol, ">= 0")):
        check_number(name, value, rule)
    check_choice("dtype", dtype, (torch.float64, torch.float32))
    _check_data(features, targets, classes)
    if start is not None and start.weight.shape != (classes, features.shape[1]):
        raise ShapeError(
            f"start must have weights ({classes}, {features.shape[1]}), got {tuple(start.weight.shape)}"
        )
    with torch.inference_mode(False):  # under Trainer.validate tensors come without what a gradient needs
        x, y = features.detach().to(dtype).clone(), targets.to(features.device, torch.int64).clone()
        weight = x.new_zeros(classes, x.shape[1]) if start is None else start.weight.to(x).clone()
        bias = x.new_zeros(classes) if start is None else start.bias.to(x).clone()
        if standardise:
            std, mean = torch.std_mean(x, dim=0, correction=int(len(x) > 1))
            scale = torch.where(std > 0, 1 / std, 0.0)
            x = (x - mean) * scale
            weight, bias = weight * std, bias + weight @ mean
    options = {"maxiter": max_iter, "gtol": gtol, "ftol": ftol, "maxfun": 10 * max_iter}
    weight, bias, steps, converged = _minimise(x, y, weight, bias, C, options)
    if standardise:
        weight = weight * scale
        bias = bias - weight @ mean
    return LogisticModel(weight, bias, steps, converged)


def fit_each_class(
    features: Tensor, targets: Tensor, C: float = 1.0, *, start: LogisticModel | None = None, **options: Any
) -> LogisticModel:
    r"""Fit one classifier per class, for images that may be of several.

    Each is :func:`fit_logistic` with two classes, of which the scores are the difference, and starts from the
    class before it: the published transfer code has one estimator of scikit-learn with ``warm_start``. With
    :math:`\|W\|^2 / (2 C)` over both of its rows it is the logistic regression of one row at 2 C.

    Args:
        features: As in :func:`fit_logistic`.
        targets: Whether the image is of the class, bool, shape ``(n, classes)``.
        C: As there.
        start: Model whose last class the first one starts from; ``None`` for zeros.
        **options: Further options of :func:`fit_logistic`.

    Raises:
        ConfigError: As :func:`fit_logistic`.
        ShapeError: As there, or if ``targets`` is not bool.
        NumericalError: As there.
    """
    if targets.ndim != 2 or targets.dtype != torch.bool:
        raise ShapeError(f"targets must be bool (n, classes), got {tuple(targets.shape)}, {targets.dtype}")
    before = None if start is None else _two_rows(start.weight[-1], start.bias[-1])
    fitted = []
    for target in targets.unbind(1):
        before = fit_logistic(features, target.long(), 2, C, start=before, **options)
        fitted.append(before)
    weight = torch.stack([model.weight[1] - model.weight[0] for model in fitted])
    bias = torch.stack([model.bias[1] - model.bias[0] for model in fitted])
    steps = sum(model.steps for model in fitted)
    return LogisticModel(weight, bias, steps, all(model.converged for model in fitted))


def logistic_path(
    features: Tensor, targets: Tensor, classes: int, Cs: Sequence[float], **options: Any
) -> Iterator[tuple[float, LogisticModel]]:
    """Fit one model after the other, each from where the last one ended.

    Args:
        features: As in :func:`fit_logistic`.
        targets: As there, or as in :func:`fit_each_class`.
        classes: As in :func:`fit_logistic`.
        Cs: Inverse strengths of the penalty, in the order of the fits.
        **options: Further options of :func:`fit_logistic`, such as ``start``.

    Yields:
        C and the model.

    Raises:
        ConfigError: As :func:`fit_logistic`.
        ShapeError: As there.
        NumericalError: As there.
    """
    model = options.pop("start", None)
    for C in Cs:
        if targets.ndim == 1:
            model = fit_logistic(features, targets, classes, C, start=model, **options)
        else:
            model = fit_each_class(features, targets, C, start=model, **options)
        yield C, model


def _two_rows(weight: Tensor, bias: Tensor) -> LogisticModel:
    """Return the model of two classes whose scores differ by that of one row."""
    half = torch.tensor([[-0.5], [0.5]], dtype=weight.dtype, device=weight.device)
    return LogisticModel(half * weight, half[:, 0] * bias, 0, True)


def _check_data(features: Tensor, targets: Tensor, classes: int) -> None:
    check_whole(2, classes=classes)
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ShapeError(f"targets must be integers, got {targets.dtype}")
    if features.ndim != 2 or targets.shape != features.shape[:1] or len(features) == 0:
        raise ShapeError(
            f"expected features (n, F) and targets (n,) with n >= 1, got {tuple(features.shape)} and "
            f"{tuple(targets.shape)}"
        )
    if not (int(targets.min()) >= 0 and int(targets.max()) < classes):
        raise ShapeError(
            f"targets must be in [0, {classes}), got {int(targets.min())} to {int(targets.max())}"
        )
    if not features.detach().double().square().sum().isfinite():
        raise NumericalError("features are not finite, or too large to be squared: standardise them first")


def _minimise(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, C: float, options: dict[str, Any]
) -> tuple[Tensor, Tensor, int, bool]:
    """Return weights ``(classes, F)``, bias ``(classes,)``, iterations, and whether a tolerance was met."""
    check_installed("logistic regression", "scipy", "evaluate", "SciPy")
    from scipy.optimize import minimize

    first = torch.cat([weight, bias[:, None]], dim=1)

    def value_and_gradient(flat: object) -> tuple[float, object]:
        with torch.inference_mode(False), torch.enable_grad():
            W = torch.tensor(flat).view(first.shape).to(x).requires_grad_()
            scores = x @ W[:, :-1].T + W[:, -1]
            loss = F.cross_entropy(scores, y, reduction="sum") + W[:, :-1].square().sum() / (2 * C)
            (gradient,) = torch.autograd.grad(loss, W)
        return loss.item(), gradient.flatten().double().cpu().numpy()

    start = first.flatten().double().cpu().numpy()
    result = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    W = torch.as_tensor(result.x).view(first.shape).to(x)
    return W[:, :-1], W[:, -1], int(result.nit), bool(result.success)
