"""LARS: stochastic gradient descent whose step is scaled per parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mmcl_lightning.errors import ConfigError

__all__ = ["LARS"]


class LARS(Optimizer):
    r"""Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv:1708.03888).

    With parameter p, gradient g, decay :math:`\lambda`, trust coefficient :math:`\eta`, momentum m:

    .. math::
        g &\leftarrow g + \lambda p \\
        g &\leftarrow g \, \eta \|p\| / (\|g\| + \epsilon)
            \quad \text{if neither norm is 0 and the group is adapted} \\
        v &\leftarrow m v + g, \qquad p \leftarrow p - \mathrm{lr} \cdot v

    This is the rule of MMCL's published code. Others differ: the article, lightly, lightning-bolts and
    timm divide by :math:`\|g\| + \lambda\|p\|` (g before decay), and take a weight decay of 0 to mean "not
    adapted"; Google's SimCLR keeps lr inside v, which differs only while lr changes.

    Args:
        params: Parameters or group dicts. A group with ``lars_exclude=True`` is updated by plain momentum
            SGD; :func:`~mmcl_lightning.optim.parameter_groups` sets it for biases and norm layers.
        lr: Learning rate, >= 0.
        momentum: Momentum m, >= 0.
        weight_decay: L2 decay, >= 0, added to the gradient before its norm is taken.
        trust_coefficient: :math:`\eta`, > 0.
        eps: Added to the gradient's norm, >= 0. The published code adds nothing.
        nesterov: Step along ``g + m v`` instead of ``v``; needs momentum.
        lars_exclude: Default of the groups that do not say.

    Raises:
        ConfigError: If a value is outside its range, in the defaults or in a group.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 0.0,
        nesterov: bool = False,
        lars_exclude: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "nesterov": nesterov,
            "lars_exclude": lars_exclude,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, e.g. for a layer that is unfrozen later; its values are checked like the defaults."""
        _check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; gradients are left as they are.

        Args:
            closure: Re-evaluates the model and returns the loss, as for any torch optimiser.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _by_device_and_dtype(group["params"]):
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        momentum = group["momentum"]
        steps = [p.grad for p in params if p.grad is not None]
        if group["weight_decay"] != 0:
            steps = list(torch._foreach_add(steps, params, alpha=group["weight_decay"]))
        if not group["lars_exclude"]:
            steps = list(torch._foreach_mul(steps, _trust_ratios(params, steps, group)))
        if momentum != 0:
            buffers = [self._momentum_buffer(p) for p in params]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, steps)
            steps = list(torch._foreach_add(steps, buffers, alpha=momentum)) if group["nesterov"] else buffers
        torch._foreach_add_(params, steps, alpha=-group["lr"])

    def _momentum_buffer(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _trust_ratios(params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    # Norms in at least float32 (half precision overflows at 65504), all of them in one stack: no
    # conversation with the device per layer.
    dtype = torch.promote_types(params[0].dtype, torch.float32)
    p_norms = torch.stack(list(torch._foreach_norm(params, dtype=dtype)))
    g_norms = torch.stack(list(torch._foreach_norm(grads, dtype=dtype)))
    ratios = group["trust_coefficient"] * p_norms / (g_norms + group["eps"])
    adapted = (p_norms > 0) & (g_norms > 0)
    return list(torch.where(adapted, ratios, torch.ones_like(ratios)).unbind())


def _by_device_and_dtype(params: list[Tensor]) -> list[list[Tensor]]:
    buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for p in params:
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            raise ConfigError("LARS does not support sparse gradients; use sparse=False in the embedding.")
        buckets.setdefault((p.device, p.dtype), []).append(p)
    return list(buckets.values())


def _check_group(group: dict[str, Any]) -> None:
    for option in ("lr", "momentum", "weight_decay", "eps"):
        if not (math.isfinite(group[option]) and group[option] >= 0):
            raise ConfigError(f"LARS: {option} must be a finite number >= 0, got {group[option]}.")
    if not (math.isfinite(group["trust_coefficient"]) and group["trust_coefficient"] > 0):
        raise ConfigError(f"LARS: trust_coefficient must be > 0, got {group['trust_coefficient']}.")
    if group["nesterov"] and group["momentum"] == 0:
        raise ConfigError("LARS: nesterov=True needs momentum > 0.")
