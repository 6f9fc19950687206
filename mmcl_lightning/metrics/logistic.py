"""Multinomial logistic regression on features, fitted to its optimum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError

__all__ = ["LogisticModel", "fit_logistic"]


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
    max_iter: int = 1000,
    gtol: float = 1e-4,
    ftol: float = 2.2e-9,
) -> LogisticModel:
    r"""Fit class scores :math:`W x + b` by L-BFGS-B.

    .. math:: \min_{W, b} \sum_i -\log \operatorname{softmax}(W x_i + b)_{y_i} + \frac{\|W\|^2}{2 C}

    The minimiser is SciPy's, the extra ``evaluate``; the loss and its gradient are torch's, in float64 on the
    device of the features.

    Args:
        features: x, shape ``(n, F)``, any floating dtype.
        targets: y, class indices, shape ``(n,)``, in ``[0, classes)``.
        classes: Number of classes, >= 2.
        C: Inverse strength of the penalty on the weights, > 0; the bias has none.
        start: Model to start from; ``None`` for zeros.
        max_iter: Most iterations.
        gtol: Largest entry of the gradient of the sum at which to stop.
        ftol: Relative decrease of the sum at which to stop.

    Raises:
        ConfigError: If an option is out of range, or SciPy is not installed.
        ShapeError: If the shapes do not fit together, or a target is no class.
        NumericalError: If a feature is not finite, or so large that its square is not.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ConfigError(
            'logistic regression needs SciPy: pip install "mmcl-lightning[evaluate]"'
        ) from error
    check_whole(2, classes=classes)
    check_whole(1, max_iter=max_iter)
    check_number("C", C, "> 0")
    check_number("gtol", gtol, ">= 0")
    check_number("ftol", ftol, ">= 0")
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
    if start is not None and start.weight.shape != (classes, features.shape[1]):
        raise ShapeError(
            f"start must have weights ({classes}, {features.shape[1]}), got {tuple(start.weight.shape)}"
        )
    if not features.detach().double().square().sum().isfinite():
        raise NumericalError("features are not finite, or too large to be squared: standardise them first")
    with torch.inference_mode(False):  # under Trainer.validate tensors come without what a gradient needs
        x, y = features.detach().double().clone(), targets.to(features.device, torch.int64).clone()
    shape = (classes, x.shape[1] + 1)
    weights = x.new_zeros(shape)
    if start is not None:
        weights = torch.cat([start.weight, start.bias[:, None]], dim=1).to(x)

    def value_and_gradient(flat: object) -> tuple[float, object]:
        with torch.inference_mode(False), torch.enable_grad():
            W = torch.tensor(flat).view(shape).to(x.device).requires_grad_()
            scores = x @ W[:, :-1].T + W[:, -1]
            loss = F.cross_entropy(scores, y, reduction="sum") + W[:, :-1].square().sum() / (2 * C)
            (gradient,) = torch.autograd.grad(loss, W)
        return loss.item(), gradient.flatten().cpu().numpy()

    result = minimize(
        value_and_gradient,
        weights.flatten().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "gtol": gtol, "ftol": ftol, "maxfun": 10 * max_iter},
    )
    W = torch.as_tensor(result.x).view(shape).to(x.device)
    return LogisticModel(W[:, :-1], W[:, -1], int(result.nit), bool(result.success))
