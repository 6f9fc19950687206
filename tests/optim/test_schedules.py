from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.optim import (
    WarmupConstant,
    WarmupCosine,
    WarmupPolynomial,
    WarmupSteps,
    scale_learning_rate,
)


def _optimizer(*rates: float) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in rates], lr=0.1)


def _rates(scheduler: LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def test_published_convention() -> None:
    lr, w, T = 1.2, 10, 100
    rates = _rates(WarmupCosine(_optimizer(lr), warmup_steps=w, total_steps=T), T + 3)
    # The published recurrence, step by step: multiply the last rate by (s+1)/s, then by a ratio of cosines.
    expected = [lr / (w + 1)]
    for s in range(1, T):
        if s <= w:
            expected.append(expected[-1] * (s + 1) / s)
        else:
            le, t = s - w, T - w
            ratio = (1 + math.cos(math.pi * le / t)) / (1 + math.cos(math.pi * (le - 1) / t))
            expected.append(expected[-1] * ratio)
    assert rates[:T] == pytest.approx(expected, rel=1e-9)
    assert rates[w] == lr
    assert rates[T:] == [0.0, 0.0, 0.0]


def test_without_warmup_equals_torch_cosine() -> None:
    ours = _rates(WarmupCosine(_optimizer(0.3), warmup_steps=0, total_steps=40), 40)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(_optimizer(0.3), T_max=40)
    assert ours == pytest.approx(_rates(cosine, 40), rel=1e-9)


def test_all_warmup() -> None:
    assert _rates(WarmupCosine(_optimizer(1.0), 3, 3), 4) == pytest.approx([0.25, 0.5, 0.75, 0.0])


def test_constant() -> None:
    assert _rates(WarmupConstant(_optimizer(0.2)), 3) == [0.2, 0.2, 0.2]
    assert _rates(WarmupConstant(_optimizer(0.4), 3), 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_every_group_follows_its_own_rate() -> None:
    scheduler = WarmupCosine(_optimizer(1.0, 0.1), warmup_steps=4, total_steps=10)
    assert scheduler.get_last_lr() == pytest.approx([0.2, 0.02])


def test_resumes_exactly_through_a_safe_checkpoint(tmp_path) -> None:
    whole = _rates(WarmupCosine(_optimizer(0.7), 5, 30), 30)
    first = WarmupCosine(_optimizer(0.7), 5, 30)
    start = _rates(first, 13)
    torch.save([first.state_dict(), first.optimizer.state_dict()], tmp_path / "state.pt")
    state, optimizer_state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = WarmupCosine(_optimizer(0.7), 5, 30)
    second.optimizer.load_state_dict(optimizer_state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.load_state_dict(state)
    assert start + _rates(second, 17) == whole


def test_resume_with_another_length_says_which_holds() -> None:
    state = WarmupCosine(_optimizer(0.7), 5, 30).state_dict()
    longer = WarmupCosine(_optimizer(0.7), 5, 60)
    with pytest.warns(UserWarning, match="total_steps=30 of the checkpoint, not 60"):
        longer.load_state_dict(state)
    assert longer.total_steps == 30


def test_scaling_rules_are_simclrs() -> None:
    assert scale_learning_rate(0.3, 4096, "linear") == pytest.approx(4.8)
    assert scale_learning_rate(0.075, 4096, "sqrt") == pytest.approx(4.8)  # SimCLR: both agree at 4096
    assert scale_learning_rate(1e-3, 512) == 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_steps": 5, "total_steps": 4}, "warmup_steps=5 exceeds total_steps=4"),
        ({"warmup_steps": -1, "total_steps": 4}, "warmup_steps must be a whole number >= 0"),
        ({"warmup_steps": 0.5, "total_steps": 4}, "warmup_steps must be a whole number >= 0, got 0.5"),
        ({"warmup_steps": 0, "total_steps": math.inf}, "total_steps must be .* got inf.*max_epochs=-1"),
    ],
)
def test_wrong_lengths(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WarmupCosine(_optimizer(0.1), **options)


def test_wrong_scaling() -> None:
    with pytest.raises(ConfigError, match=r"Unknown scaling rule 'square'.*linear"):
        scale_learning_rate(0.1, 256, "square")
    with pytest.raises(ConfigError, match="batch_size must be an integer >= 1, got 0"):
        scale_learning_rate(0.1, 0, "sqrt")


def test_polynomial() -> None:
    rates = _rates(WarmupPolynomial(_optimizer(0.02), warmup_steps=0, total_steps=4), 5)
    assert rates == pytest.approx([0.02, 0.02 * 0.75**0.9, 0.02 * 0.5**0.9, 0.02 * 0.25**0.9, 0.0])
    rates = _rates(WarmupPolynomial(_optimizer(1.0), warmup_steps=1, total_steps=3, power=2), 3)
    assert rates == pytest.approx([0.5, 1.0, 0.25])
    with pytest.raises(ConfigError, match="power must be a finite number > 0, got 0"):
        WarmupPolynomial(_optimizer(1.0), 0, 4, power=0)


def test_steps() -> None:
    rates = _rates(WarmupSteps(_optimizer(2.0), warmup_steps=1, drops=[3, 4]), 6)
    assert rates == pytest.approx([1.0, 2.0, 2.0, 0.2, 0.02, 0.02])
    rates = _rates(WarmupSteps(_optimizer(1.0), warmup_steps=4, drops=[6], warmup_start=0.2), 7)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.1])
    assert _rates(WarmupSteps(_optimizer(1.0), warmup_steps=0, drops=[], warmup_start=0.5), 2) == [1.0, 1.0]
    with pytest.raises(ConfigError, match=r"warmup_start must be a finite number in \[0, 1\], got 2"):
        WarmupSteps(_optimizer(1.0), 0, [], warmup_start=2)
