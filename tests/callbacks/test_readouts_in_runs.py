"""Readouts in runs as people have them: stopped early, with readouts and modules of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from runs import Plain, image_loader, mmcl, scalars, shapes, simclr, trainer
from torch import Tensor, nn

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.modules import LinearEvaluation
from mmcl_lightning.readouts import KNN, Health, LinearProbe, LogisticRegression, Reading, Readout

LOADERS: dict[str, Any] = {"bank_loader": image_loader(24, seed=1), "query_loader": image_loader(15, seed=2)}


def stop_after_three() -> EarlyStopping:
    """Stops after three epochs, in a hook that comes after that of the readouts."""
    return EarlyStopping(
        "train/loss", patience=2, min_delta=1e6, check_on_train_epoch_end=True, verbose=False
    )


def test_the_last_epoch_is_read_though_another_callback_ends_the_run(tmp_path: Path) -> None:
    knn = KNN(k=5)
    parts = Readouts(every_n_epochs=10, knn=knn), stop_after_three()
    run = trainer(tmp_path, *parts, log=True, max_epochs=20)
    run.fit(simclr(), shapes())
    assert run.current_epoch == 3
    assert [epoch for epoch, _ in knn.curve] == [0, 3]
    assert [step for step, _ in scalars(tmp_path, "knn/top1")] == [0, 12]
    assert float(run.callback_metrics["knn/top1"]) == pytest.approx(knn.curve[-1][1])


def test_a_stop_that_waits_for_min_epochs_is_not_the_end(tmp_path: Path) -> None:
    knn = KNN(k=5)
    parts = Readouts(every_n_epochs=10, knn=knn), stop_after_three()
    trainer(tmp_path, *parts, max_epochs=20, min_epochs=6).fit(simclr(), shapes())
    assert [epoch for epoch, _ in knn.curve] == [0, 6]


class Pictures(Readout):
    """Writes something, and has no value; says when."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.epochs: list[int] = []

    def compute(self, reading: Reading) -> dict[str, float]:
        self.epochs.append(reading.epoch)
        return {f"{self.name}/value": 1.0} if self.name else {}


def test_a_readout_without_values_keeps_the_period(tmp_path: Path) -> None:
    pictures = Pictures()
    trainer(tmp_path, Readouts(every_n_epochs=4, others=[pictures]), max_epochs=6).fit(simclr(), shapes())
    assert pictures.epochs == [0, 4, 6]


def test_two_readouts_of_ones_own_of_a_kind_may_write_under_different_names(tmp_path: Path) -> None:
    run = trainer(tmp_path, Readouts(others=[Pictures("a"), Pictures("b")]))
    run.fit(simclr(), shapes())
    assert {"a/value", "b/value"} <= set(run.callback_metrics)


class Unready(Readout):
    """Wrong in the way that its argument says."""

    def __init__(self, fault: str) -> None:
        if fault != "no constructor":
            super().__init__()
        self.fault = fault

    def compute(self, reading: Reading) -> Any:
        if self.fault == "no needs":
            return reading.features("query", "mine").features["h"]
        return None


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Readouts(knn={"k": 3}), r"knn must be a KNN, such as KNN\(\), got \{'k': 3\}"),
        (lambda: Readouts(knn=True), r"knn must be a KNN, such as KNN\(\), got True"),
        (lambda: Readouts(knn=KNN), "knn must be a KNN, .* got the class KNN"),
        (lambda: Readouts(knn=Health()), "knn must be a KNN, .* got <.*Health"),
        (lambda: Readouts(others=Health()), "others must be a list of readouts, got Health"),
        (lambda: Readouts(others=[3]), "others must be a Readout"),
        (lambda: Readouts(others=[Unready("no constructor")]), r"Unready must call super\(\).__init__\(\)"),
    ],
)
def test_what_is_no_readout(build: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


@pytest.mark.parametrize(
    ("fault", "match"),
    [("no needs", r"its needs\(\) does not say so"), ("", "compute of Unready must return a dict")],
)
def test_what_a_readout_of_ones_own_must_do(fault: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        trainer(tmp_path, Readouts(others=[Unready(fault)])).fit(simclr(), shapes())


class Labels(Plain):
    """Trains on labels of another kind, and may skip a batch."""

    def __init__(self, convert: Any = None, skip: bool = False) -> None:
        super().__init__()
        self.convert, self.skip = convert, skip

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0], batch[1] if self.convert is None else self.convert(batch[1])]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self(batch[0])
        return None if self.skip and batch_idx == 1 else {"loss": h.square().mean(), "h": h}


def probe_of(module: Labels, folder: Path) -> LinearProbe:
    probe = LinearProbe(lr=0.1)
    torch.manual_seed(3)
    trainer(folder, Readouts(probe=probe, num_classes=3, **LOADERS)).fit(module)
    return probe


@pytest.mark.parametrize(
    "convert", [Tensor.int, Tensor.byte, lambda y: y[:, None], lambda y: y.short()[:, None], Tensor.tolist]
)
def test_the_probe_takes_labels_of_every_kind(convert: Any, tmp_path: Path) -> None:
    expected, found = (probe_of(Labels(kind), tmp_path).classifier for kind in (None, convert))
    assert expected is not None
    assert found is not None
    assert torch.equal(found.linear.weight, expected.linear.weight)
    with pytest.raises(DataError, match=r"labels must be integers, got torch\.float32"):
        probe_of(Labels(Tensor.float), tmp_path)


def test_a_skipped_batch_is_skipped(tmp_path: Path) -> None:
    probe = probe_of(Labels(skip=True), tmp_path)
    assert probe.classifier is not None
    assert probe.classifier.steps == 2


def test_the_logistic_regression_counts_the_classes_and_needs_labels(tmp_path: Path) -> None:
    run = trainer(tmp_path, Readouts(logistic=LogisticRegression(), **LOADERS))
    run.fit(Plain())
    assert 0 < float(run.callback_metrics["logistic/top1"]) <= 1
    unlabelled = image_loader(15, seed=2, labels=torch.full((15,), -1))
    for name in ("bank", "query"):
        loaders = LOADERS | {f"{name}_loader": unlabelled}
        with pytest.raises(DataError, match=f"none of the {name} images has one"):
            trainer(tmp_path, Readouts(logistic=LogisticRegression(), num_classes=3, **loaders)).fit(Plain())


class Wrapped(nn.Module):
    """A backbone of images within a mapping."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, 8)

    def forward(self, x: Any) -> Tensor:
        return self.fc((x["x"] if isinstance(x, dict) else x).flatten(1))


def test_alignment_of_nested_views(tmp_path: Path) -> None:
    module = mmcl(backbone=Wrapped(), projection_head=nn.Linear(8, 4))
    batches = [[batch[0], batch[1]] for batch in shapes().val_dataloader()]
    nested = [[[{"x": view} for view in views], labels] for views, labels in batches]
    found = []
    for views in (batches, nested):
        run = trainer(tmp_path, Readouts(health=Health(), view_loader=views), limit_val_batches=1.0)
        (values,) = run.validate(module, shapes(), verbose=False)
        found.append(values["health/alignment"])
    assert found[0] == found[1] > 0


def test_the_probe_within_an_evaluation(tmp_path: Path) -> None:
    probe = LinearProbe()
    module = LinearEvaluation("random", backbone="conv4")
    trainer(tmp_path, Readouts(probe=probe), limit_val_batches=1.0).fit(module, shapes(task="classify"))
    assert [epoch for epoch, _ in probe.curve] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("readouts:", "nothing stands below readouts: indent its options, or leave it out"),
        ("readouts: [knn]", "below readouts stand options such as 'name: value', got ['knn']"),
        (
            "readouts: {knn: true}",
            "expected a KNN: its options, such as {} for its defaults, or a class_path",
        ),
        (
            "trainer: {callbacks: [{class_path: mmcl_lightning.callbacks.HealthPanel}]}",
            "HealthPanel is a readout, no callback: give its options as readouts.health",
        ),
    ],
)
def test_messages_of_configurations(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["fit", "--config=quickstart.yaml", f"--config={tmp_path / 'mine.yaml'}"])
    assert message in capsys.readouterr().err
