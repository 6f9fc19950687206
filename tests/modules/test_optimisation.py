"""Learning rate, its schedule and the parameter groups, as a Trainer gets them."""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Recorder, mmcl, shapes, simclr, trainer

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.modules import ContrastiveModule
from mmcl_lightning.optim import LARS

SGD = functools.partial(torch.optim.SGD, lr=0.1)


def fitted(folder: Path, module: ContrastiveModule, **changes: object) -> Recorder:
    recorder = Recorder()
    trainer(folder, recorder, **changes).fit(module, shapes())
    return recorder


def warmup_cosine(step: int, warmup: int, total: int, lr: float = 0.1) -> float:
    if step <= warmup:
        return lr * (step + 1) / (warmup + 1)
    return lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def test_norms_and_biases_are_not_decayed(tmp_path: Path) -> None:
    module = mmcl(optimizer=functools.partial(LARS, lr=0.1, weight_decay=1e-2))
    fitted(tmp_path, module, limit_train_batches=1)
    groups = {group["name"]: group for group in module.trainer.optimizers[0].param_groups}
    assert set(groups) == {f"{part}{tail}" for part in ("backbone", "projection_head")
                           for tail in ("", "_no_weight_decay")}  # fmt: skip
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, group in groups.items():
        plain = name.endswith("_no_weight_decay")
        assert group["weight_decay"] == (0.0 if plain else 1e-2)
        assert group["lars_exclude"] is plain
        for parameter in group["params"]:
            assert (parameter.ndim == 1) is plain, names[id(parameter)]
    assert sum(len(group["params"]) for group in groups.values()) == len(names)


def test_default_optimizer_is_the_papers_adam(tmp_path: Path) -> None:
    module = mmcl()
    fitted(tmp_path, module, limit_train_batches=1)
    optimizer = module.trainer.optimizers[0]
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["lr"] == 1e-3
    assert optimizer.defaults["weight_decay"] == 1e-6


@pytest.mark.parametrize(
    ("rule", "accumulate", "factor"),
    [
        ("none", 1, 1.0),
        ("linear", 1, 8 / 256),
        ("linear", 2, 16 / 256),
        ("sqrt", 1, math.sqrt(8)),
        ("sqrt", 4, math.sqrt(32)),
    ],
)
def test_scaling_is_by_the_images_of_a_step(
    rule: str, accumulate: int, factor: float, tmp_path: Path
) -> None:
    module = mmcl(optimizer=SGD, lr_scaling=rule)
    recorder = fitted(tmp_path, module, accumulate_grad_batches=accumulate)
    assert recorder.lr == pytest.approx([0.1 * factor] * 4)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_warmup_and_cosine_count_optimizer_steps(accumulate: int, tmp_path: Path) -> None:
    module = mmcl(optimizer=SGD, lr_schedule="cosine", warmup=0.25)
    recorder = fitted(tmp_path, module, max_epochs=3, accumulate_grad_batches=accumulate)
    total = 12 // accumulate
    expected = [warmup_cosine(batch // accumulate, round(0.25 * total), total) for batch in range(12)]
    assert recorder.lr == pytest.approx(expected)


@pytest.mark.parametrize(("accumulate", "warmup"), [(1, 0.0), (3, 0.0), (1, 0.25)])
def test_the_rate_drops_after_epochs(accumulate: int, warmup: float, tmp_path: Path) -> None:
    module = mmcl(optimizer=SGD, lr_schedule="step", lr_steps=[1, 3], warmup=warmup)
    recorder = fitted(tmp_path, module, max_epochs=4, accumulate_grad_batches=accumulate)
    shares = [1] * 4 + [0.1] * 8 + [0.01] * 4
    rising = [min(1, (step + 1) / 5) for step in range(16)] if warmup else [1] * 16
    assert recorder.lr == pytest.approx([0.1 * a * b for a, b in zip(shares, rising, strict=True)])


def test_last_step_of_a_short_epoch_is_counted(tmp_path: Path) -> None:
    # 4 batches, 3 to a step: Lightning steps twice per epoch.
    module = mmcl(optimizer=SGD, lr_schedule="cosine")
    recorder = fitted(tmp_path, module, max_epochs=2, accumulate_grad_batches=3)
    assert module.trainer.global_step == 4
    assert recorder.lr == pytest.approx([warmup_cosine(step, 0, 4) for step in (0, 0, 0, 1, 2, 2, 2, 3)])


def test_constant_rate_with_warmup(tmp_path: Path) -> None:
    recorder = fitted(tmp_path, mmcl(optimizer=SGD, warmup=0.5))
    assert recorder.lr == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.1])


@pytest.mark.parametrize("options", [{"lr_schedule": "cosine"}, {"warmup": 0.1}])
def test_a_schedule_needs_an_end(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs an end: set trainer\.max_epochs or max_steps"):
        fitted(tmp_path, mmcl(**options), max_epochs=-1)


def test_a_run_without_end_has_a_constant_rate(tmp_path: Path) -> None:
    module = mmcl(optimizer=SGD)
    recorder = fitted(tmp_path, module, max_epochs=-1, max_time=timedelta(seconds=0.2))
    assert recorder.lr == pytest.approx([0.1] * len(recorder.lr))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr_schedule": "linear"}, "lr_schedule must be 'cosine', 'constant' or 'step'"),
        ({"lr_schedule": "step"}, "give both or none, got lr_schedule 'step' and lr_steps None"),
        ({"lr_steps": [1]}, r"got lr_schedule 'constant' and lr_steps \[1\]"),
        ({"lr_schedule": "step", "lr_steps": [2, 1]}, r"lr_steps must be increasing epochs, got \[2, 1\]"),
        ({"lr_schedule": "step", "lr_steps": [0, 1]}, "lr_steps must be an integer >= 1"),
        ({"warmup": 1.0}, r"in \[0, 1\), got 1.0"),
        ({"lr_scaling": "log"}, "scaling rule 'log'"),
        ({"projection_head": "cifra"}, "'imagenet', 'cifar', 'moco' or a module"),
        ({"backbone": "resnet17"}, "Unknown backbone 'resnet17'"),
        ({"C": 0.0}, "C must be a number > 0"),
        ({"negatives": "none"}, "'both' or 'one'"),
        ({"schedule": {"C": {0: 1.0}}}, "epochs count from 1"),
        ({"schedule": {"gamma": {1: 1.0}}}, "'gamma' is no option"),
        ({"schedule": {"C": {125: -1.0}}}, "C must be a number > 0"),
    ],
)
def test_wrong_options_are_named_at_construction(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        mmcl(**options)


def test_batches_that_do_not_fit_are_named(tmp_path: Path) -> None:
    module = mmcl()
    with pytest.raises(ShapeError, match="3 views"):
        module.training_step(([torch.rand(2, 3, 16, 16)] * 3, torch.zeros(2)), 0)
    with pytest.raises(ShapeError, match="got Tensor"):
        module.training_step((torch.rand(2, 3, 16, 16), torch.zeros(2)), 0)


@pytest.mark.parametrize("on_exception", [False, True])
def test_not_finite_projections_name_the_step_and_leave_the_checkpoint(
    on_exception: bool, tmp_path: Path
) -> None:
    class Spoil(Recorder):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 6:
                next(pl_module.parameters()).data.fill_(torch.nan)

    saver = ModelCheckpoint(tmp_path, save_last=True, save_on_exception=on_exception)
    with pytest.raises(NumericalError, match=r"training step 6: projections are not finite: 8 of 8 rows"):
        trainer(tmp_path, Spoil(), saver, max_epochs=3).fit(mmcl(), shapes())
    # With save_on_exception, last.ckpt is of the broken step; the latest epoch's own file stays.
    weights = torch.load(tmp_path / "epoch=0-step=4.ckpt", weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.parametrize("limit", [{"max_steps": 3}, {"max_time": {"seconds": 1}, "max_steps": 3}])
def test_the_batch_size_is_known_where_only_steps_end_the_run(limit: dict[str, Any], tmp_path: Path) -> None:
    module = simclr(lr_scaling="linear")
    run = trainer(tmp_path, max_epochs=-1, **limit)
    run.fit(module, shapes())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * 8 / 256)
