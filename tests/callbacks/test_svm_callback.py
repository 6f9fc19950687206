"""The callback that logs, schedules and guards the SVM solver, and the throughput beside it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from runs import Plain, events, image_loader, mmcl, scalars, shapes, trainer
from torch import Tensor

from mmcl_lightning.callbacks import SVMSolverCallback, Throughput
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.losses.max_margin import svm_stats
from mmcl_lightning.svm import ProjectedGradient

LOGGED = ("sv_fraction", "bound_fraction", "margin", "kkt_residual", "duality_gap", "steps")


class Stats(Callback):
    """What the SVMs of every step found, from the loss itself."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        criterion = pl_module.criterion
        stats = svm_stats(criterion.last_problem, criterion.last_solution)
        self.steps.append({name: float(value) for name, value in stats.items()})


class TheirModule(Plain):
    """A module of a user, with our loss as its criterion."""

    def __init__(self, criterion: Any = None) -> None:
        super().__init__()
        self.criterion = criterion

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.criterion(self(batch[0]), self(batch[0]))


@pytest.mark.parametrize("every", [1, 3])
def test_scalars_are_those_of_the_step_they_stand_at(every: int, tmp_path: Path) -> None:
    stats = Stats()
    trainer(tmp_path, stats, log=True, max_epochs=2, log_every_n_steps=every).fit(mmcl(C=2.0), shapes())
    due = list(range(every - 1, 8, every))
    for name in LOGGED:
        logged = scalars(tmp_path, f"svm/{name}")
        assert [step for step, _ in logged] == due
        assert [value for _, value in logged] == pytest.approx([stats.steps[step][name] for step in due])
    assert [step for step, _ in scalars(tmp_path, "train/loss")] == due


def test_histogram_of_the_support_vectors_every_epoch(tmp_path: Path) -> None:
    trainer(tmp_path, log=True, max_epochs=2).fit(mmcl(), shapes())
    written = events(tmp_path).Histograms("svm/alpha")
    assert [event.step for event in written] == [4, 8]
    assert written[0].histogram_value.min > 0
    trainer(tmp_path / "off", log=True).fit(mmcl(log_histogram=False), shapes())
    assert events(tmp_path / "off").Tags()["histograms"] == []


def test_schedule_is_logged_and_in_force(tmp_path: Path) -> None:
    module = mmcl(C=9.0, schedule={"C": {2: 5.0}, "solver.max_steps": {1: 4}}, solver=ProjectedGradient())
    trainer(tmp_path, log=True, max_epochs=2).fit(module, shapes())
    assert scalars(tmp_path, "svm/C") == [(4, 5.0)]
    assert scalars(tmp_path, "svm/max_steps") == [(0, 4.0), (4, 4.0)]
    assert module.criterion.C == 5.0
    assert module.criterion.solver == ProjectedGradient(max_steps=4)


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        ({"C": {}}, "epochs count from 1"),
        ({"C": {0: 1.0}}, r"epochs count from 1, got \[0\]"),
    ],
)
def test_wrong_schedule(schedule: dict[str, dict[int, float]], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SVMSolverCallback(schedule)


def test_check_leaves_the_loss_as_it_was() -> None:
    loss = MMCLLoss(C=3.0)
    before = repr(loss)
    SVMSolverCallback({"C": {1: 4.0}, "kernel.gamma": {1: 2.0}, "reg": {9: 0.5}}).check(loss)
    assert repr(loss) == before
    with pytest.raises(ConfigError, match="gamma must be"):
        SVMSolverCallback({"C": {1: 4.0}, "kernel.gamma": {125: -2.0}}).check(loss)
    assert repr(loss) == before


def test_a_solve_that_stops_early_is_said_once(tmp_path: Path) -> None:
    module = mmcl(solver=ProjectedGradient(max_steps=1, tol=1e-9))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, max_epochs=2).fit(module, shapes())
    (message,) = [str(w.message) for w in caught if "SVM solver" in str(w.message)]
    assert message.startswith("SVM solver, step 1: at least one problem stopped at max_steps")


def test_works_on_the_module_of_a_user(tmp_path: Path) -> None:
    callback = SVMSolverCallback({"kernel.gamma": {1: 3.0}})
    module = TheirModule(MMCLLoss())
    trainer(tmp_path, callback, log=True).fit(module)
    assert len(scalars(tmp_path, "svm/margin")) == 3
    assert module.criterion.kernel.gamma == 3.0


def test_a_wrong_schedule_stops_the_module_of_a_user_at_the_start(tmp_path: Path) -> None:
    run = trainer(tmp_path, SVMSolverCallback({"kernel.gamma": {99: -3.0}}))
    with pytest.raises(ConfigError, match="gamma must be"):
        run.fit(TheirModule(MMCLLoss()))
    assert run.global_step == 0


@pytest.mark.parametrize("module", [Plain(), TheirModule(torch.nn.MSELoss())])
def test_another_criterion_is_named(module: Plain, tmp_path: Path) -> None:
    found = "NoneType" if type(module) is Plain else "MSELoss"
    with pytest.raises(ConfigError, match=rf"{type(module).__name__} has {found}"):
        trainer(tmp_path, SVMSolverCallback()).fit(module)


def test_the_modules_callback_gives_way_to_one_of_the_user(tmp_path: Path) -> None:
    module = mmcl()
    run = trainer(tmp_path)
    run.fit(module, shapes())
    assert [type(c) for c in run.callbacks].count(SVMSolverCallback) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_throughput_is_positive(accumulate: int, tmp_path: Path) -> None:
    run = trainer(tmp_path, Throughput(), log=True, max_epochs=2, accumulate_grad_batches=accumulate)
    run.fit(mmcl(), shapes())
    logged = scalars(tmp_path, "time/images_per_second")
    assert len({step for step, _ in logged}) == 8 // accumulate
    assert all(value > 0 for _, value in logged)


def test_throughput_on_the_module_of_a_user(tmp_path: Path) -> None:
    trainer(tmp_path, Throughput(), log=True).fit(Plain())
    assert all(value > 0 for _, value in scalars(tmp_path, "time/images_per_second"))
    assert len(image_loader(3, seed=0)) == 1
