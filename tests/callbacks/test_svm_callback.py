"""The callback that logs, schedules and guards the SVM solver, and the throughput beside it."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from runs import TINY, FlatNet, Plain, events, image_loader, mmcl, scalars, shapes, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmcl_lightning.callbacks import SVMSolverCallback, Throughput, throughput
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import (
    Hard,
    HCLLoss,
    InfoNCELoss,
    MMCLLoss,
    Near,
    NTXentLoss,
    Shuffled,
    SupportVectors,
    WeightedContrastiveLoss,
)
from mmcl_lightning.losses.statistics import svm_stats
from mmcl_lightning.modules import ContrastiveModule
from mmcl_lightning.svm import Exact, ProjectedGradient

LOGGED = (
    "sv_fraction",
    "zero_fraction",
    "free_fraction",
    "bound_fraction",
    "margin",
    "kkt_residual",
    "duality_gap",
    "steps",
    "negatives",
    "alpha_max",
)
SHARES = (
    "false_negative_base_rate",
    "false_negative_share",
    "false_negative_share_by_alpha",
    "bound_false_negative_share",
)


class Stats(Callback):
    """What the SVMs of every step found, from the loss itself."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        criterion = pl_module.criterion
        stats = svm_stats(criterion.last_duals)
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


def test_the_median_width_is_logged(tmp_path: Path) -> None:
    widths: list[float] = []

    class Widths(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            (dual,) = pl_module.criterion.last_duals
            widths.append(float(dual.kernel.gamma))

    run = trainer(tmp_path, Widths(), log=True, log_every_n_steps=1)
    run.fit(mmcl(kernel=RBF("median")), shapes())
    logged = [value for _, value in scalars(tmp_path, "svm/gamma")]
    assert logged == pytest.approx(widths)
    assert len(set(logged)) == 4
    trainer(tmp_path / "set", log=True).fit(mmcl(kernel=RBF(2.0)), shapes())
    assert "svm/gamma" not in events(tmp_path / "set").Tags()["scalars"]


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


@pytest.mark.parametrize(
    "criterion",
    [
        MMCLLoss(symmetric=True),
        MMCLLoss(form="log", negatives="one", symmetric=True),
        WeightedContrastiveLoss(SupportVectors()),
        WeightedContrastiveLoss(Shuffled(SupportVectors())),
    ],
    ids=repr,
)
def test_every_loss_with_svms_is_logged_whatever_the_module(criterion: Any, tmp_path: Path) -> None:
    trainer(tmp_path, log=True).fit(ContrastiveModule(criterion, **TINY), shapes())
    assert len(scalars(tmp_path, "svm/sv_fraction")) == 4
    assert len(scalars(tmp_path, "svm/false_negative_share")) == 4


@pytest.mark.parametrize("criterion", [NTXentLoss(), WeightedContrastiveLoss(Near())], ids=repr)
def test_a_loss_without_svms_brings_no_callback(criterion: Any, tmp_path: Path) -> None:
    run = trainer(tmp_path, log=True)
    run.fit(ContrastiveModule(criterion, **TINY), shapes())
    assert not any(isinstance(callback, SVMSolverCallback) for callback in run.callbacks)
    with pytest.raises(ConfigError, match="needs a module with support vectors"):
        trainer(tmp_path, SVMSolverCallback()).fit(ContrastiveModule(criterion, **TINY), shapes())


def test_any_loss_can_have_a_schedule(tmp_path: Path) -> None:
    schedule = {"temperature": {1: 0.5, 2: 0.25}, "beta": {2: 2.0}}
    module = ContrastiveModule(HCLLoss(0.9, beta=1.0), schedule=schedule, **TINY)
    trainer(tmp_path, log=True, max_epochs=2).fit(module, shapes())
    assert scalars(tmp_path, "loss/temperature") == [(0, 0.5), (4, 0.25)]
    assert (module.criterion.temperature, module.criterion.weights) == (0.25, Hard(beta=8.0))
    with pytest.raises(ConfigError, match="temperature must be a finite number > 0, got -1"):
        ContrastiveModule(NTXentLoss(), schedule={"temperature": {7: -1}}, **TINY)
    with pytest.raises(ConfigError, match="'beta' is no option of this loss; there are temperature"):
        ContrastiveModule(NTXentLoss(), schedule={"beta": {7: 1.0}}, **TINY)
    with pytest.raises(ConfigError, match="a schedule needs a ContrastiveLoss, got InfoNCELoss"):
        ContrastiveModule(InfoNCELoss(), schedule={"temperature": {2: 0.1}}, **TINY)


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
    found = "missing" if type(module) is Plain else "MSELoss"
    with pytest.raises(ConfigError, match=f"that of {type(module).__name__} is {found}"):
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


@pytest.mark.parametrize(
    "batch",
    [
        [[torch.zeros(6, 3, 8, 8)] * 2, torch.zeros(6)],
        (torch.zeros(6, 3, 8, 8), torch.zeros(6)),
        torch.zeros(6, 3, 8, 8),
        {"image": torch.zeros(6, 3, 8, 8), "label": torch.zeros(6)},
        {"views": {"one": torch.zeros(6, 3, 8, 8)}},
        None,
    ],
    ids=["views", "images", "tensor", "mapping", "nested", "none"],
)
def test_throughput_counts_images(batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    callback, module = Throughput(), Plain()
    logged: list[float] = []
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.append(value))
    run = SimpleNamespace(world_size=2, global_step=5, log_every_n_steps=5)
    callback.on_train_epoch_start(run, module)  # type: ignore[arg-type]
    callback.on_train_batch_end(run, module, None, batch, 0)  # type: ignore[arg-type]
    assert logged == ([] if batch is None else [12.0]), "6 images on each of two processes in a second"


def test_throughput_on_the_module_of_a_user(tmp_path: Path) -> None:
    trainer(tmp_path, Throughput(), log=True).fit(Plain())
    assert all(value > 0 for _, value in scalars(tmp_path, "time/images_per_second"))
    assert len(image_loader(3, seed=0)) == 1


class Shares(Callback):
    """Shares of false negatives of every step, pair by pair."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        (dual,) = pl_module.criterion.last_duals
        problem, alpha = dual.problem, dual.solution.alpha
        labels, C = batch[1].tolist(), pl_module.criterion.C
        groups: dict[str, list[tuple[float, bool]]] = {name: [] for name in SHARES}
        for b in range(problem.B):
            anchor = labels[int(problem.positive[b]) % len(labels)]
            for j in range(problem.n):
                label = labels[j % len(labels)]
                if j in problem.excluded[b].tolist() or -1 in (anchor, label):
                    continue
                weight, same = float(alpha[b, j]), anchor == label
                groups["false_negative_base_rate"].append((1.0, same))
                if weight > 1e-6:
                    groups["false_negative_share"].append((1.0, same))
                    groups["false_negative_share_by_alpha"].append((weight, same))
                if weight > C - 1e-5:
                    groups["bound_false_negative_share"].append((1.0, same))
        self.steps.append(
            {
                name: sum(w for w, same in group if same) / sum(w for w, _ in group)
                for name, group in groups.items()
                if group
            }
        )


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"negatives": "one"}])
def test_shares_of_false_negatives_are_those_of_the_step(options: dict[str, Any], tmp_path: Path) -> None:
    shares = Shares()
    module = mmcl(C=1.0, solver=Exact(), **options)
    runner = trainer(tmp_path, shares, log=True, log_every_n_steps=2)
    runner.fit(module, shapes(train_size=64, batch_size=16))
    for name in SHARES:
        logged = scalars(tmp_path, f"svm/{name}")
        assert [step for step, _ in logged] == [1, 3]
        assert [value for _, value in logged] == pytest.approx([shares.steps[step][name] for step in (1, 3)])
    assert len(set(shares.steps[1].values())) == 4  # alpha chooses: no share is the base rate by itself


class Relabelled(DataLoader[Any]):
    """The batches of shapes with other labels, or without any."""

    def __init__(self, labels: Any) -> None:
        super().__init__(shapes().train_dataloader().dataset, batch_size=8)
        self.labels = labels

    def __iter__(self) -> Any:
        for views, targets in super().__iter__():
            yield (views,) if self.labels is None else (views, self.labels(targets))


@pytest.mark.parametrize(
    "labels", [None, lambda y: torch.full_like(y, -1), lambda y: y.float(), lambda y: y[:3]]
)
def test_without_labels_no_share_is_logged(labels: Any, tmp_path: Path) -> None:
    trainer(tmp_path, log=True).fit(mmcl(C=1.0, solver=Exact()), Relabelled(labels))
    tags = events(tmp_path).Tags()["scalars"]
    assert "svm/bound_fraction" in tags
    assert not any("false_negative" in tag for tag in tags)


def test_partly_labelled_batches_count_their_labelled_pairs(tmp_path: Path) -> None:
    shares = Shares()
    some = Relabelled(lambda y: torch.where(torch.arange(len(y)) < 5, y % 2, -1))
    trainer(tmp_path, shares, log=True).fit(mmcl(C=1.0, solver=Exact()), some)
    for name in SHARES[:3]:
        logged = [value for _, value in scalars(tmp_path, f"svm/{name}")]
        assert logged == pytest.approx([step[name] for step in shares.steps])


def still(gather: bool = True) -> Any:
    """A network that does not move, so that processes see what one process sees."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    module = mmcl(
        backbone=FlatNet(),
        projection_head=head,
        optimizer=functools.partial(torch.optim.SGD, lr=0.0),
        C=8.0,
        solver=Exact(tol=1e-6),
    )
    module.criterion.gather = gather
    return module


@pytest.mark.parametrize("gather", [True, False])
def test_two_processes_log_what_one_logs(gather: bool, tmp_path: Path) -> None:
    trainer(tmp_path / "one", log=True).fit(still(), shapes(batch_size=16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = trainer(tmp_path / "two", log=True, devices=2, strategy="ddp_fork")
        two.fit(still(gather), shapes(batch_size=8))
    assert len({scalars(tmp_path / "one", f"svm/{name}")[0][1] for name in SHARES}) == 4
    for name in (*LOGGED, *SHARES):
        one, two_ = (scalars(tmp_path / run, f"svm/{name}") for run in ("one", "two"))
        assert [step for step, _ in two_] == [step for step, _ in one] == [0, 1]
        if gather and name not in ("kkt_residual", "duality_gap", "steps"):  # those of float32 rounding
            assert [value for _, value in two_] == pytest.approx([value for _, value in one], rel=1e-4), name
    if not gather:
        assert scalars(tmp_path / "two", "svm/negatives")[0][1] == 14
