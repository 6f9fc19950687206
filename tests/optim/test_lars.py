from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.optim import LARS, parameter_groups


def _problem(dtype: torch.dtype = torch.float64) -> tuple[list[nn.Parameter], list[list[Tensor]]]:
    g = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5,), (2, 2, 2)]
    params = [nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64).to(dtype)) for s in shapes]
    grads = [[torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes] for _ in range(6)]
    return params, grads


def _run(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], grads: list[list[Tensor]]) -> None:
    for step, step_grads in enumerate(grads):
        for p, grad in zip(params, step_grads, strict=True):
            p.grad = grad.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.5 / (step + 1)  # a changing rate tells "lr inside v" from "lr outside"
        optimizer.step()


def _twin(params: list[nn.Parameter], grads: list[list[Tensor]], wd: float, nesterov: bool, exclude: bool):
    values, velocity = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
    for step, step_grads in enumerate(grads):
        for i, grad in enumerate(step_grads):
            g = grad + wd * values[i]
            p_norm, g_norm = values[i].pow(2).sum().sqrt(), g.pow(2).sum().sqrt()
            if not exclude and p_norm != 0 and g_norm != 0:
                g = g * 0.001 * p_norm / g_norm
            velocity[i] = 0.9 * velocity[i] + g
            values[i] = values[i] - 0.5 / (step + 1) * (g + 0.9 * velocity[i] if nesterov else velocity[i])
    return values


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_equals_the_loop_written_rule(wd: float, nesterov: bool, exclude: bool) -> None:
    params, grads = _problem()
    expected = _twin(params, grads, wd, nesterov, exclude)
    _run(LARS(params, 0.5, weight_decay=wd, nesterov=nesterov, lars_exclude=exclude), params, grads)
    for p, value in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_excluded_is_torch_sgd(nesterov: bool) -> None:
    params, grads = _problem()
    others = copy.deepcopy(params)
    _run(LARS(params, 0.5, weight_decay=0.01, nesterov=nesterov, lars_exclude=True), params, grads)
    sgd = torch.optim.SGD(others, 0.5, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    _run(sgd, others, grads)
    for p, other in zip(params, others, strict=True):
        torch.testing.assert_close(p, other, rtol=1e-12, atol=1e-12)


def test_close_to_lightly_at_the_published_weight_decay() -> None:
    # lightly divides by |g| + wd |p| instead of |g + wd p|: the two meet as wd goes to 0.
    lightly = pytest.importorskip("lightly.utils.lars")
    params, grads = _problem()
    others = copy.deepcopy(params)
    start = copy.deepcopy(params)
    _run(LARS(params, 0.5, weight_decay=1e-6), params, grads)
    _run(lightly.LARS(others, lr=0.5, momentum=0.9, weight_decay=1e-6), others, grads)
    for p, other, before in zip(params, others, start, strict=True):
        moved = (p - before).norm()
        assert moved > 1e-4
        assert (p - other).norm() < 1e-5 * moved


def test_zero_parameter_or_gradient_is_not_adapted_and_stays_finite() -> None:
    zero, still = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    optimizer = LARS([zero, still], 0.1)
    zero.grad, still.grad = torch.ones(3), torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(zero.detach(), torch.full((3,), -0.1))
    torch.testing.assert_close(still.detach(), torch.ones(3))


def test_gradients_are_left_alone_and_missing_ones_skipped() -> None:
    params, grads = _problem()
    untouched = params[1].detach().clone()
    params[0].grad, params[2].grad = grads[0][0].clone(), grads[0][2].clone()
    LARS(params, 0.5, weight_decay=0.1, nesterov=True).step()
    assert torch.equal(params[0].grad, grads[0][0])
    assert torch.equal(params[1], untouched)


def test_half_precision_norms_do_not_overflow() -> None:
    p = nn.Parameter(torch.full((64, 64), 1500.0, dtype=torch.float16))  # norm 96000, beyond float16
    p.grad = torch.full((64, 64), 2000.0, dtype=torch.float16)  # norm 128000
    LARS([p], lr=1000.0).step()
    # step = lr * 0.001 * |p| / |g| * g = 1500
    torch.testing.assert_close(p.detach().float(), torch.zeros(64, 64), atol=1.0, rtol=0)


def test_mixed_dtypes_in_one_group() -> None:
    (a, *_), grads = _problem(torch.float32)
    b = nn.Parameter(a.detach().double())
    optimizer = LARS([a, b], 0.5)
    a.grad, b.grad = grads[0][0], grads[0][0].double()
    optimizer.step()
    torch.testing.assert_close(a.double(), b.detach(), rtol=1e-6, atol=1e-6)


def test_resumes_from_a_state_dict() -> None:
    params, grads = _problem()
    _run(LARS(params, 0.5), params, grads)
    params_resumed, _ = _problem()
    first = LARS(params_resumed, 0.5)
    _run(first, params_resumed, grads[:3])
    second = LARS(params_resumed, 0.5)
    second.load_state_dict(first.state_dict())
    for step, step_grads in enumerate(grads[3:], start=3):
        for p, grad in zip(params_resumed, step_grads, strict=True):
            p.grad = grad.clone()
        second.param_groups[0]["lr"] = 0.5 / (step + 1)
        second.step()
    for p, q in zip(params, params_resumed, strict=True):
        assert torch.equal(p, q)


def test_takes_parameter_groups_and_a_closure() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x, y = torch.randn(32, 3), torch.randn(32, 1)
    optimizer = LARS(parameter_groups(net, 1e-6), lr=0.05)
    assert [group["lars_exclude"] for group in optimizer.param_groups] == [False, True]

    def closure() -> float:
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"lr": 1.0, "momentum": float("nan")}, "momentum must be"),
        ({"lr": 1.0, "weight_decay": -0.1}, "weight_decay must be"),
        ({"lr": 1.0, "trust_coefficient": 0.0}, "trust_coefficient must be > 0"),
        ({"lr": 1.0, "momentum": 0.0, "nesterov": True}, "nesterov=True needs momentum"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    params, _ = _problem()
    with pytest.raises(ConfigError, match=message):
        LARS(params, **options)
    with pytest.raises(ConfigError, match=message):
        LARS([{"params": params, **options}], lr=0.1)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="sparse gradients"):
        LARS(table.parameters(), 0.1).step()
