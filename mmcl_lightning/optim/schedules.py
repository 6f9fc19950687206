"""Learning-rate schedules, one step per optimiser step, and scaling of the rate with the batch size."""

from __future__ import annotations

import bisect
import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import ConfigError

__all__ = [
    "WarmupConstant",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupPolynomial",
    "WarmupSteps",
    "scale_learning_rate",
]

_DROP = 0.1


class WarmupConstant(LambdaLR):
    """Linear warm-up over ``warmup_steps`` steps, then the optimiser's learning rate.

    Step s uses ``lr * min(1, (s + 1) / (warmup_steps + 1))``: the first step already moves. Call
    ``step()`` after every optimiser step (Lightning: ``interval="step"``).

    Args:
        optimizer: Its groups' ``lr`` are the rates after the warm-up.
        warmup_steps: Optimiser steps of warm-up, >= 0; 0 gives a constant rate.
        last_epoch: Last step already done; -1 starts afresh (torch's name, the unit is steps).

    Raises:
        ConfigError: If ``warmup_steps`` is negative or not a whole number.
    """

    _horizon: tuple[str, ...] = ("warmup_steps",)

    def __init__(self, optimizer: Optimizer, warmup_steps: int = 0, last_epoch: int = -1) -> None:
        self.warmup_steps = _whole("warmup_steps", warmup_steps, minimum=0)
        super().__init__(optimizer, self.factor, last_epoch)

    def factor(self, step: int) -> float:
        """Return the share of the optimiser's learning rate that a step uses, in [0, 1].

        Args:
            step: Steps done before it.
        """
        return min(1.0, (step + 1) / (self.warmup_steps + 1))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a saved schedule; lengths that differ from the saved ones are named in a warning.

        Args:
            state_dict: What ``state_dict()`` of the same class gave.
        """
        differing = [name for name in self._horizon if state_dict.get(name) != getattr(self, name)]
        for name in differing[-1:]:  # the steps of the warm-up follow from all
            warnings.warn(
                f"{type(self).__name__} continues with {name}={state_dict.get(name)} of the checkpoint, not "
                f"{getattr(self, name)}, as max_epochs or max_steps, batch size and warm-up give it now: a "
                "resumed schedule keeps its length, and after it the learning rate stays at its "
                "last value (0 for a cosine or a line). Plan the whole length of a run from its start.",
                stacklevel=2,
            )
        # A checkpoint of an earlier version has no lambdas; ours have no state of their own.
        super().load_state_dict({**state_dict, "lr_lambdas": [None] * len(self.lr_lambdas)})


class WarmupSteps(WarmupConstant):
    """Linear warm-up, then the optimiser's learning rate, a tenth of it after each of some steps.

    Args:
        optimizer: Its groups' ``lr`` are the rates after the warm-up.
        warmup_steps: Optimiser steps of warm-up, >= 0.
        drops: Optimiser steps from which on the rate is a tenth of what it was, increasing.
        last_epoch: Last step already done; -1 starts afresh (torch's name, the unit is steps).
        warmup_start: Share of the rate at step 0, from which the warm-up goes to the whole at step
            ``warmup_steps``; None for that of :class:`WarmupConstant`.

    Raises:
        ConfigError: If a step is no whole number, they do not increase, or the share is not in [0, 1].
    """

    _horizon = ("warmup_steps", "drops")

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        drops: Sequence[int],
        last_epoch: int = -1,
        warmup_start: float | None = None,
    ) -> None:
        if warmup_start is not None:
            check_number("warmup_start", warmup_start, "in [0, 1]")
        self.warmup_start = warmup_start
        self.drops = [_whole("drops", drop, minimum=0) for drop in drops]
        if sorted(set(self.drops)) != self.drops:
            raise ConfigError(f"the learning rate must drop at increasing steps, got {list(drops)}")
        super().__init__(optimizer, warmup_steps, last_epoch)

    def factor(self, step: int) -> float:
        """Return the share of the optimiser's learning rate that a step uses, in [0, 1]."""
        share, start = super().factor(step), self.warmup_start
        if start is not None:
            share = 1.0 if step >= self.warmup_steps else start + (1 - start) * step / self.warmup_steps
        return share * _DROP ** bisect.bisect_right(self.drops, step)


class _WarmupDecay(WarmupConstant):
    """Linear warm-up, then a way down from the optimiser's rate to zero that a leaf says."""

    _horizon = ("warmup_steps", "total_steps")

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, total_steps: int, last_epoch: int = -1
    ) -> None:
        self.total_steps = _whole("total_steps", total_steps, minimum=1)
        if warmup_steps > total_steps:
            raise ConfigError(f"warmup_steps={warmup_steps} exceeds total_steps={total_steps}.")
        super().__init__(optimizer, warmup_steps, last_epoch)

    @abstractmethod
    def _left(self, progress: float) -> float:
        """Share of the way that is left, from 1 at progress 0 to 0 at 1."""

    def factor(self, step: int) -> float:
        """Return the share of the optimiser's learning rate that a step uses, in [0, 1]."""
        if step >= self.total_steps:
            return 0.0
        if step <= self.warmup_steps:
            return super().factor(step)
        return self._left((step - self.warmup_steps) / (self.total_steps - self.warmup_steps))


class WarmupLinear(_WarmupDecay):
    r"""Linear warm-up over w steps, then linearly down to 0 at step T.

    Step s uses :math:`lr (s+1)/(w+1)` for s <= w, then :math:`lr (T-s)/(T-w)`, and 0 from T on. Arguments and
    errors: see :class:`WarmupCosine`.
    """

    def _left(self, progress: float) -> float:
        return 1.0 - progress


class WarmupCosine(_WarmupDecay):
    r"""Linear warm-up over w steps, then half a cosine down to 0 at step T.

    Step s uses :math:`lr (s+1)/(w+1)` for s <= w, then :math:`lr (1 + \cos(\pi (s-w)/(T-w)))/2`, and 0 from T
    on. So step 0 uses lr/(w+1) and step w exactly lr. Source: the published code of MMCL (there w = T/10),
    written in closed form, so a resumed run has the same rates to the last bit.

    Args:
        optimizer: Its groups' ``lr`` are the rates at the end of the warm-up.
        warmup_steps: w, optimiser steps of warm-up, 0 <= w <= T.
        total_steps: T, optimiser steps of the whole run (after gradient accumulation).
        last_epoch: Last step already done; -1 starts afresh (torch's name, the unit is steps).

    Raises:
        ConfigError: If a length is not a whole number in its range.
    """

    def _left(self, progress: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * progress))


class WarmupPolynomial(_WarmupDecay):
    r"""Linear warm-up over w steps, then a power of the share that is left, down to 0 at step T.

    Step s uses :math:`lr (s+1)/(w+1)` for s <= w, then :math:`lr ((T-s)/(T-w))^p`, and 0 from T on.

    Args:
        optimizer: As of :class:`WarmupCosine`.
        warmup_steps: As there.
        total_steps: As there.
        power: p, > 0; 0.9 is usual where every pixel is classified.
        last_epoch: As there.

    Raises:
        ConfigError: If a length is not a whole number in its range, or the power not positive.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        power: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_number("power", power, "> 0")
        self.power = float(power)
        super().__init__(optimizer, warmup_steps, total_steps, last_epoch)

    def _left(self, progress: float) -> float:
        return math.pow(1.0 - progress, self.power)


def scale_learning_rate(
    lr: float, batch_size: int, rule: Literal["sqrt", "linear", "none"] = "none"
) -> float:
    """Return the learning rate for a batch size by one of SimCLR's rules (Chen et al. 2020, appendix B.1).

    Args:
        lr: Base rate. SimCLR's are 0.3 for ``"linear"`` and 0.075 for ``"sqrt"``.
        batch_size: Images per optimiser step, over all devices and accumulated batches.
        rule: ``"linear"``: ``lr * batch_size / 256``. ``"sqrt"``: ``lr * sqrt(batch_size)``, not divided
            by 16: MMCL's 1.2 is 0.075 * sqrt(256). ``"none"``: ``lr``.

    Example:
        >>> scale_learning_rate(0.075, 256, "sqrt"), scale_learning_rate(0.3, 512, "linear")
        (1.2, 0.6)
    """
    check_whole(1, batch_size=batch_size)
    factors = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size), "none": 1.0}
    if rule not in factors:
        raise ConfigError(f"Unknown scaling rule {rule!r}; choose from {sorted(factors)}.")
    return lr * factors[rule]


def _whole(name: str, value: float, minimum: int) -> int:
    # Lightning's estimated_stepping_batches is infinite for a run without an end.
    if not math.isfinite(value) or value != int(value) or value < minimum:
        raise ConfigError(
            f"{name} must be a whole number >= {minimum}, got {value}. "
            f"A run without an end (max_epochs=-1) has no length to schedule over."
        )
    return int(value)
