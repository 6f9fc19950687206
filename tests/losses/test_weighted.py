"""Losses that weigh their negatives by a rule, and the rules."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
import twins
from helpers import RULES, SOLVERS, WEIGHTED, Given, Memory, make_views, name, randn
from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF, Linear
from mmcl_lightning.losses import (
    ContrastiveLoss,
    DebiasedLoss,
    DecoupledLoss,
    HCLLoss,
    MMCLLoss,
    NTXentLoss,
    WeightedContrastiveLoss,
)
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weights import (
    Hard,
    Near,
    NegativeWeights,
    Shuffled,
    SupportVectors,
    Uniform,
    Weights,
)
from mmcl_lightning.svm import Exact, Inverse

every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)
every_loss = pytest.mark.parametrize("loss", WEIGHTED, ids=repr)
both_forms = pytest.mark.parametrize("form", ["log", "nce"])
both_sides = pytest.mark.parametrize("negatives", ["both", "one"])
both_roles = pytest.mark.parametrize("symmetric", [False, True], ids=["one-sided", "symmetric"])

GOLDEN = json.loads(twins.GOLDEN.read_text())
OURS: dict[str, NegativeWeights] = {
    "uniform": Uniform(),
    "near beta=3": Near(beta=3.0),
    "svm gamma=1 C=100 reg=0.1": SupportVectors(),
    "svm gamma=5 C=0.5 reg=1": SupportVectors(RBF(gamma=5.0), C=0.5, reg=1.0),
}


def _with_gradients(loss: Any, *views: Tensor) -> tuple[Tensor, ...]:
    leaves = [view.detach().clone().requires_grad_() for view in views]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves)


def _contrast(images: int = 6, seed: int = 1, **options: Any) -> Contrast:
    (contrast,) = WeightedContrastiveLoss(**options)._contrasts(*make_views(images, 4, seed=seed))
    return contrast


# The equations


@both_forms
@both_sides
@both_roles
@pytest.mark.parametrize("rule", OURS)
@pytest.mark.parametrize("images", [2, 5])
def test_equals_the_equation_in_loops_with_gradients(
    rule: str, form: Any, negatives: Any, symmetric: bool, images: int
) -> None:
    z0, z1 = 3 * randn(images, 4, seed=1), randn(images, 4, seed=2) + randn(images, 4, seed=1)
    loss = WeightedContrastiveLoss(OURS[rule], form, 0.2, negatives=negatives, symmetric=symmetric)
    twin = _with_gradients(
        lambda *views: twins.weighted_loss(*views, twins.RULES[rule], form, 0.2, negatives, symmetric), z0, z1
    )
    torch.testing.assert_close(_with_gradients(loss, z0, z1), twin, rtol=1e-9, atol=1e-11)
    assert twin[1].abs().max() > 1e-4


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda c: f"{c['rule']}-{c['form']}-{c['negatives']}-{c['symmetric']}"
)
def test_equals_the_golden_values(case: dict[str, Any]) -> None:
    views = [torch.tensor(view, dtype=torch.float64) for view in GOLDEN["views"]]
    options = {key: case[key] for key in ("form", "temperature", "negatives", "symmetric")}
    expected = (
        torch.tensor(case["loss"], dtype=torch.float64),
        *map(lambda g: torch.tensor(g, dtype=torch.float64), case["gradients"]),
    )
    rule = OURS[case["rule"]]
    losses: list[ContrastiveLoss] = [WeightedContrastiveLoss(rule, **options)]
    if isinstance(rule, SupportVectors):
        losses.append(MMCLLoss(rule.kernel, rule.solver, rule.C, rule.reg, **options))
    for loss in losses:
        torch.testing.assert_close(_with_gradients(loss, *views), expected, rtol=1e-9, atol=1e-11)


def test_the_golden_file_is_complete() -> None:
    assert len(GOLDEN["cases"]) == 32
    assert {case["rule"] for case in GOLDEN["cases"]} == set(OURS) == set(twins.RULES)


@both_forms
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
@pytest.mark.parametrize("kernel", [RBF(), Linear()], ids=name)
def test_as_reg_grows_the_weights_become_equal(form: Any, solver: Any, kernel: Any) -> None:
    """The deviation of a weight from 1 is of the order of the kernel's values over reg."""
    plain: ContrastiveLoss = DecoupledLoss(0.2) if form == "log" else NTXentLoss(0.2)
    for seed, noise in ((1, 0.1), (2, 0.5), (3, 2.0)):
        views = make_views(7, 5, noise=noise, seed=seed)
        loss = MMCLLoss(kernel, solver, C=math.inf, reg=1e13, form=form, temperature=0.2, symmetric=True)
        torch.testing.assert_close(
            _with_gradients(loss, *views), _with_gradients(plain, *views), rtol=1e-10, atol=1e-10
        )
        near = MMCLLoss(kernel, solver, C=math.inf, reg=1e3, form=form, temperature=0.2, symmetric=True)
        assert near(*views).item() == pytest.approx(plain(*views).item(), rel=0.05)
        assert near(*views) != plain(*views)


@pytest.mark.parametrize(
    ("preset", "general"),
    [
        (NTXentLoss(0.2), WeightedContrastiveLoss(form="nce", temperature=0.2)),
        (DecoupledLoss(0.2), WeightedContrastiveLoss(Uniform(), "log", 0.2)),
        (DebiasedLoss(0.2, tau_plus=0.0), WeightedContrastiveLoss(form="nce", temperature=0.2)),
        (HCLLoss(0.5, 0.0, beta=2.0), WeightedContrastiveLoss(Hard(beta=4.0), "nce", 0.5)),
        (DecoupledLoss(0.2), WeightedContrastiveLoss(Near(beta=0.0), "log", 0.2)),
        (
            MMCLLoss(RBF(2.0), Exact(tol=1e-8), 1.0, 0.3, form="log", symmetric=True),
            WeightedContrastiveLoss(SupportVectors(RBF(2.0), Exact(tol=1e-8), 1.0, 0.3)),
        ),
        (
            MMCLLoss(form="nce", temperature=0.4, negatives="one"),
            WeightedContrastiveLoss(
                SupportVectors(), "nce", temperature=0.4, negatives="one", symmetric=False
            ),
        ),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_named_losses_are_settings_of_the_general_one(
    preset: ContrastiveLoss, general: ContrastiveLoss
) -> None:
    for seed in (1, 2):
        views = make_views(7, 5, noise=0.7, seed=seed)
        torch.testing.assert_close(
            _with_gradients(preset, *views), _with_gradients(general, *views), rtol=1e-12, atol=1e-12
        )


# Gradients


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
@both_forms
@both_roles
def test_no_gradient_flows_through_the_weights(solver: Any, form: Any, symmetric: bool) -> None:
    views = make_views(6, 4, seed=35)
    loss = MMCLLoss(solver=solver, form=form, symmetric=symmetric)
    found = _with_gradients(loss, *views)
    (dual,) = loss.last_duals
    loss.weights = dataclasses.replace(loss.weights, solver=Given(dual.solution.alpha))
    torch.testing.assert_close(_with_gradients(loss, *views), found, rtol=0, atol=0)
    assert torch.autograd.gradcheck(loss, tuple(view.requires_grad_() for view in views))


def test_the_gradient_of_hard_flows_through_its_weights() -> None:
    views = tuple(view.requires_grad_() for view in make_views(4, 3, seed=36))
    assert torch.autograd.gradcheck(WeightedContrastiveLoss(Hard(beta=3.0)), views)


@every_loss
def test_gradients_are_finite_where_all_projections_coincide(loss: ContrastiveLoss) -> None:
    z = torch.ones(8, 5)
    value, *gradients = _with_gradients(loss, z, z)
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


# Rules


@every_rule
@both_sides
def test_weights_have_the_mean_one_and_are_not_negative(rule: NegativeWeights, negatives: str) -> None:
    contrast = _contrast(negatives=negatives, symmetric=negatives == "both")
    weights = rule(contrast)
    if weights.log is None:
        assert isinstance(rule, Uniform)
        return
    w = contrast.of_negatives(weights.log).exp()
    assert (w >= 0).all()
    dropped = w.sum(1) == 0
    assert bool(dropped.any()) <= getattr(rule, "drop_at_bound", False)
    torch.testing.assert_close(
        w.sum(1)[~dropped] / contrast.negatives, torch.ones(int((~dropped).sum()), dtype=w.dtype)
    )


@every_rule
def test_all_weigh_the_same_where_all_projections_coincide(rule: NegativeWeights) -> None:
    z = torch.ones(5, 3, dtype=torch.float64)
    (contrast,) = WeightedContrastiveLoss()._contrasts(z, z)
    log = rule(contrast).log
    if log is not None and not getattr(rule, "drop_at_bound", False):  # all alpha are at C there
        inside = contrast.of_negatives(log)
        torch.testing.assert_close(inside[inside > -torch.inf], torch.zeros(10 * 8, dtype=torch.float64))


def test_support_vectors_weigh_by_alpha() -> None:
    contrast = _contrast()
    weights = SupportVectors(solver=Exact(tol=1e-10))(contrast)
    assert weights.dual is not None
    assert weights.log is not None
    alpha = weights.dual.solution.alpha
    expected = alpha * contrast.negatives / alpha.sum(1, keepdim=True)
    torch.testing.assert_close(weights.log.exp(), expected)
    assert (expected == 0).sum() > contrast.negatives


def test_near_prefers_what_is_near_the_positive_and_hard_what_is_near_the_anchor() -> None:
    contrast = _contrast()
    x = contrast.candidates[contrast.positive]
    for rule, similarity in ((Near(4.0), x @ contrast.candidates.T), (Hard(4.0), contrast.similarity)):
        log = contrast.of_negatives(rule(contrast).log)  # type: ignore[arg-type]
        order = contrast.of_negatives(similarity)
        assert torch.equal(log.argsort(1), order.argsort(1))
        ratio = (log[:, :, None] - log[:, None, :]) - 4.0 * (order[:, :, None] - order[:, None, :])
        assert ratio[ratio.isfinite()].abs().max() < 1e-12


@both_sides
def test_shuffled_deals_the_same_weights_to_other_negatives(negatives: str) -> None:
    contrast = _contrast(8, negatives=negatives, symmetric=negatives == "both")
    rule = Near(beta=3.0)
    plain = contrast.of_negatives(rule(contrast).log)  # type: ignore[arg-type]
    torch.manual_seed(1)
    shuffled = contrast.of_negatives(Shuffled(rule)(contrast).log)  # type: ignore[arg-type]
    again = contrast.of_negatives(Shuffled(rule)(contrast).log)  # type: ignore[arg-type]
    torch.testing.assert_close(plain.sort(1).values, shuffled.sort(1).values, rtol=0, atol=0)
    assert not torch.equal(plain, shuffled)
    assert not torch.equal(shuffled, again)
    torch.manual_seed(1)
    assert torch.equal(contrast.of_negatives(Shuffled(rule)(contrast).log), shuffled)  # type: ignore[arg-type]


def test_shuffled_reaches_every_negative_equally_often() -> None:
    contrast, rule = _contrast(3), Near(beta=5.0)
    largest = torch.zeros(len(contrast.rows), len(contrast.candidates))
    torch.manual_seed(0)
    for _ in range(600):
        log = contrast.of_negatives(Shuffled(rule)(contrast).log)  # type: ignore[arg-type]
        largest[torch.arange(len(log)), log.argmax(1)] += 1
    inside = contrast.of_negatives(largest) >= 0
    assert (largest[~inside] == 0).all()
    assert (largest[inside] - 150).abs().max() < 60  # five standard deviations of 600 draws of 1 in 4


# Negatives left out


@both_forms
def test_drop_at_bound_leaves_out_what_is_at_the_bound(form: Any) -> None:
    z0, z1 = make_views(6, 4, seed=31)
    loss = MMCLLoss(RBF(), C=0.8, form=form, drop_at_bound=True, temperature=0.3)
    rule = twins.clipped_inverse(1.0, 0.8, 0.1, drop_at_bound=True)
    expected = _with_gradients(
        lambda *views: twins.weighted_loss(*views, rule, form, 0.3, "both", False), z0, z1
    )
    found = _with_gradients(loss, z0, z1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    alpha = loss.last_duals[0].solution.alpha
    assert 0 < (alpha >= 0.8).sum() < (alpha > 0).sum()


@both_forms
def test_an_anchor_without_any_negative_adds_nothing(form: Any) -> None:
    views = make_views(6, 4, seed=31)
    loss = MMCLLoss(solver=Exact(), C=1e-6, form=form, drop_at_bound=True)
    value, *gradients = _with_gradients(loss, *views)
    assert value == 0
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
    assert loss.last_stats["bound_fraction"] == 1


# The contract with the caller


@every_loss
def test_memory_grows_with_the_square_of_the_batch(loss: ContrastiveLoss) -> None:
    peaks = []
    for images in (48, 96):
        z0, z1 = (view.float().requires_grad_() for view in make_views(images, 4, seed=8))
        with Memory() as memory:
            loss(z0, z1).backward()
        assert memory.largest <= 8 * (2 * images) ** 2, "SVMs in float64, a random order in int64"
        peaks.append(memory.peak)
    assert peaks[1] <= 4.5 * peaks[0]


@every_loss
def test_half_precision_input_is_computed_in_single(loss: ContrastiveLoss) -> None:
    z0, z1 = (view.to(torch.bfloat16).requires_grad_() for view in make_views(8, 6, seed=7))
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z0, z1)
    value.backward()
    torch.manual_seed(0)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(z0.float(), z1.float()))
    assert z0.grad is not None
    assert z0.grad.isfinite().all()


@every_loss
def test_a_small_temperature_neither_overflows_nor_loses_precision(loss: ContrastiveLoss) -> None:
    sharp = type(loss)(**(loss.options() | {"temperature": 0.01}))
    z0, z1 = make_views(6, 6, noise=0.3, seed=6)
    torch.manual_seed(0)
    double = _with_gradients(sharp, z0, z1)
    torch.manual_seed(0)
    single = _with_gradients(sharp, z0.float(), z1.float())
    for got, wanted in zip(single, double, strict=True):
        assert wanted.isfinite().all()
        torch.testing.assert_close(got.double(), wanted, rtol=1e-3, atol=1e-2)


@every_loss
def test_options_build_the_loss_again(loss: ContrastiveLoss) -> None:
    again = type(loss)(**loss.options())
    assert repr(again) == repr(loss)
    views = make_views(6, 4, seed=12)
    torch.manual_seed(0)
    value = loss(*views)
    torch.manual_seed(0)
    assert again(*views) == value


def test_statistics() -> None:
    views = make_views(9, 4, noise=1.0, seed=11)
    plain = NTXentLoss(0.2)
    plain(*views)
    loss = MMCLLoss(form="nce", symmetric=True)
    assert loss.last_stats == {}
    loss(*views)
    stats = loss.last_stats
    for key in ("positive_similarity", "contrast_top1", "negatives"):
        torch.testing.assert_close(stats[key], plain.last_stats[key], check_dtype=False)
    assert 0 < stats["sv_fraction"] <= 1


def test_symmetric_with_one_view_keeps_both_solutions() -> None:
    z0, z1 = make_views(7, 4, seed=13)
    loss = MMCLLoss(solver=Exact(max_steps=3), negatives="one", symmetric=True, C=0.7)
    loss(z0, z1)
    each = []
    for pair in ((z0, z1), (z1, z0)):
        one = MMCLLoss(solver=Exact(max_steps=3), negatives="one", C=0.7)
        one(*pair)
        each.append(one)
    assert len(loss.last_duals) == 2
    for dual, one in zip(loss.last_duals, each, strict=True):
        torch.testing.assert_close(dual.solution.alpha, one.last_duals[0].solution.alpha)
    stats, (first, second) = loss.last_stats, [one.last_stats for one in each]
    assert stats["kkt_residual"] == max(first["kkt_residual"], second["kkt_residual"])
    for key in ("sv_fraction", "bound_fraction", "margin", "steps"):
        torch.testing.assert_close(stats[key], (first[key] + second[key]) / 2)
    assert first["kkt_residual"] != second["kkt_residual"]


def test_the_names_in_tables() -> None:
    assert MMCLLoss().method == "MMCL, Inverse"
    assert MMCLLoss(solver=Exact(), form="log").method == "MMCL log, Exact"
    assert WeightedContrastiveLoss(Near(), "nce").method == "WeightedContrastive nce, Near"
    assert HCLLoss().method == "HCL"


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: MMCLLoss(form="softmax"), "form must be 'paper', 'log' or 'nce', got 'softmax'"),
        (lambda: WeightedContrastiveLoss(form="paper"), "form must be 'log' or 'nce', got 'paper'"),
        (lambda: MMCLLoss(temperature=0), "temperature must be a finite number > 0, got 0"),
        (lambda: MMCLLoss(form="log", temperature=0), "temperature must be a finite number > 0, got 0"),
        (lambda: WeightedContrastiveLoss("near"), r"such as weights=Near\(beta=5.0\), got 'near'"),
        (lambda: Near(-1.0), "beta must be a finite number >= 0, got -1.0"),
        (lambda: Hard(math.inf), "beta must be a finite number >= 0, got inf"),
        (lambda: Near("5"), "beta must be a finite number >= 0, got '5'"),
        (lambda: SupportVectors(C=0), "C must be a number > 0"),
        (lambda: SupportVectors(kernel=Inverse()), "expected a Kernel object"),
        (lambda: SupportVectors(drop_at_bound="no"), "drop_at_bound must be True or False"),
        (lambda: Shuffled(RBF()), r"expected a rule, such as rule=SupportVectors\(\)"),
    ],
)
def test_options_are_checked(build: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


def test_a_temperature_that_is_not_used_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A recipe's loss that is replaced on the command line leaves its temperature behind."""
    loss = MMCLLoss(temperature=0.5)
    assert "temperature=0.5 is not used, since the paper's form has none" in caplog.text
    assert loss(*make_views(6, 4)) == MMCLLoss()(*make_views(6, 4))


def test_a_rule_must_return_weights() -> None:
    class Wrong(NegativeWeights):
        def __init__(self, result: Any) -> None:
            self.result = result

        def __call__(self, contrast: Contrast) -> Any:
            return self.result

    for result in (torch.zeros(12, 12), Weights(torch.zeros(3, 3))):
        with pytest.raises(ConfigError, match=r"must return Weights with log of shape \(12, 12\), got"):
            WeightedContrastiveLoss(Wrong(result))(*make_views(6, 4))


def test_a_loss_with_svms_describes_them_whatever_its_class() -> None:
    views = make_views(6, 4)
    general, preset = WeightedContrastiveLoss(SupportVectors()), MMCLLoss(form="log", symmetric=True)
    general(*views)
    preset(*views)
    assert general.last_stats.keys() == preset.last_stats.keys()
    assert general.last_stats["sv_fraction"] == preset.last_stats["sv_fraction"] > 0


@every_loss
def test_every_number_of_a_loss_can_be_changed_and_nothing_is_changed_by_a_wrong_one(loss: Any) -> None:
    changed = type(loss)(**loss.options())
    changed.set_option("temperature", 0.7)
    assert changed.options() == loss.options() | {"temperature": 0.7}
    views = make_views(6, 4)
    torch.manual_seed(0)
    value = changed(*views)
    torch.manual_seed(0)
    assert value == type(loss)(**(loss.options() | {"temperature": 0.7}))(*views)
    with pytest.raises(ConfigError, match="temperature must be"):
        changed.set_option("temperature", -1)
    with pytest.raises(ConfigError, match=r"'form' is no option of this loss; there are .*temperature"):
        changed.set_option("form", "log")
    assert changed.temperature == 0.7


def test_a_schedule_may_change_the_temperature() -> None:
    loss = MMCLLoss(form="log", temperature=0.5)
    loss.set_option("temperature", 0.1)
    loss.set_option("reg", 2.0)
    views = make_views(6, 4)
    assert loss(*views) == MMCLLoss(form="log", temperature=0.1, reg=2.0)(*views)
    with pytest.raises(ConfigError, match="temperature must be a finite number > 0"):
        loss.check_option("temperature", -1)
    with pytest.raises(ConfigError, match="'temperature' is no option of this loss"):
        MMCLLoss().set_option("temperature", 0.1)
