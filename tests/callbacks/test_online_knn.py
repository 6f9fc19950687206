"""The online k-NN readout on our modules and on someone else's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Plain, StopAfter, events, image_loader, mmcl, scalars, shapes, trainer

from mmcl_lightning.callbacks import OnlineKNN
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.features import collect_features
from mmcl_lightning.metrics import KNNProtocol, knn_accuracy


def loaders(**labels: torch.Tensor) -> dict[str, Any]:
    return {
        "bank_loader": image_loader(24, seed=1, labels=labels.get("bank")),
        "query_loader": image_loader(15, seed=2, labels=labels.get("query")),
    }


class Features(Callback):
    """Computes by hand what the readout must say, at the end of every epoch."""

    def __init__(self, protocol: KNNProtocol, bank: Any, query: Any, classes: int) -> None:
        self.protocol, self.bank, self.query, self.classes = protocol, bank, query, classes
        self.curve: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.read(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.read(pl_module)

    def read(self, module: LightningModule) -> None:
        module.eval()
        with torch.no_grad():
            bank, query = (
                (torch.cat([module(x) for x, _ in loader]), torch.cat([y for _, y in loader]))
                for loader in (self.bank, self.query)
            )
        module.train()
        self.curve.append(knn_accuracy(*query, *bank, self.classes, self.protocol)["top1"])


def test_equals_the_accuracy_computed_by_hand_and_is_logged_from_step_zero(tmp_path: Path) -> None:
    given = loaders()
    protocol = KNNProtocol(k=5, temperature=0.2)
    by_hand = Features(protocol, given["bank_loader"], given["query_loader"], 3)
    readout = OnlineKNN(k=5, temperature=0.2, **given)
    trainer(tmp_path, by_hand, readout, log=True, max_epochs=3).fit(Plain())
    assert [value for _, value in readout.curve] == by_hand.curve
    assert [epoch for epoch, _ in readout.curve] == [0, 1, 2, 3]
    logged = scalars(tmp_path, "knn/top1")
    assert [step for step, _ in logged] == [0, 2, 5, 8]
    assert [value for _, value in logged] == pytest.approx(by_hand.curve)
    assert len(scalars(tmp_path, "knn/top5")) == 4


def test_reads_the_datamodule_and_writes_the_protocol(tmp_path: Path) -> None:
    data, module = shapes(), mmcl()
    readout = OnlineKNN(k=7)
    trainer(tmp_path, readout, log=True).fit(module, data)
    assert readout.described == "k=7 T=0.5 cosine h, bank 32, queries 20"
    text = events(tmp_path).Tensors("knn/protocol/text_summary")
    assert text[0].tensor_proto.string_val[0].decode() == readout.described
    by_hand = Features(KNNProtocol(k=7, temperature=0.5), *data.knn_dataloaders(), 10)
    by_hand.read(module)
    assert readout.curve[-1] == (1, by_hand.curve[0])


def test_projections_are_read_where_asked_for(tmp_path: Path) -> None:
    data, module, readout = shapes(), mmcl(), OnlineKNN(k=7, feature="z")
    trainer(tmp_path, readout, log=True).fit(module, data)
    z, labels = collect_features(module.trainer, module, data.knn_dataloaders()[0], "z")
    assert z.shape == (32, 8)
    assert labels.shape == (32,)
    assert readout.described.startswith("k=7 T=0.5 cosine z")
    with pytest.raises(ConfigError, match="needs a module with a projection_head; Plain has none"):
        trainer(tmp_path, OnlineKNN(feature="z", **loaders())).fit(Plain())


def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    class Frozen(Plain):
        def on_train_epoch_start(self) -> None:
            self.net[2].eval()

    class Watch(Callback):
        modes: tuple[bool, ...] = ()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.modes += (pl_module.training, pl_module.net[2].training, pl_module.net[3].training)

    ends = []
    for with_it in (False, True):
        module, watch = Frozen(), Watch()
        torch.manual_seed(7)  # dropout and shuffling draw from the global state
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        bank = image_loader(24, seed=1, shuffle=True)
        extra = [OnlineKNN(bank_loader=bank, query_loader=image_loader(15, seed=2))] if with_it else []
        trainer(tmp_path, *extra, watch, max_epochs=2).fit(module)
        draws = (torch.rand(3).tolist(), random.random(), float(np.random.rand()))  # noqa: NPY002
        ends.append((module.state_dict(), watch.modes, draws))
    (alone, modes, draws), (watched, watched_modes, watched_draws) = ends
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    assert modes == watched_modes == (True, False, True) * 6
    assert draws == watched_draws


@pytest.mark.parametrize("options", [{}, {"every_n_epochs": 5}, {"every_n_epochs": 5, "at_start": False}])
def test_checkpoints_can_monitor_it_from_the_first_epoch(options: dict[str, Any], tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, monitor="knn/top1", mode="max", save_top_k=-1)
    readout = OnlineKNN(**options)
    trainer(tmp_path, readout, saver, log=True, max_epochs=3).fit(mmcl(), shapes())
    assert len(saver.best_k_models) == 3
    assert float(saver.best_model_score) in [pytest.approx(value) for _, value in readout.curve]
    every, start = options.get("every_n_epochs", 1), options.get("at_start", True)
    due = [0, 1, 2, 3] if every == 1 else [0, 3] if start else [1, 3]
    assert [epoch for epoch, _ in readout.curve] == due
    if every == 1:
        assert len(scalars(tmp_path, "knn/top1")) == 4


def test_k_is_clamped_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.arange(24) % 3
    labels[::2] = -1
    readout = OnlineKNN(**loaders(bank=labels))
    trainer(tmp_path, readout, max_epochs=2).fit(Plain())
    said = [record.getMessage() for record in caplog.records if "clamped" in record.getMessage()]
    assert said == ["k-NN: k clamped from 200 to 12, the size of the labelled bank"]
    assert readout.described.startswith("k=12 T=0.5")


@pytest.mark.parametrize(("k", "said"), [(9, True), (8, False)])
def test_more_neighbours_than_a_class_has_are_said(
    k: int, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readout = OnlineKNN(**loaders(bank=torch.arange(24) % 3), k=k)
    with caplog.at_level("INFO"):
        trainer(tmp_path, readout, max_epochs=2).fit(Plain())
    text = (
        "k is 9, and the bank has 8 images of a class on average, so that those of other classes can outvote"
    )
    assert [text in line for line in caplog.messages].count(True) == said
    readout.curve[-1] = (2, -1.0)
    assert ", worse than at the start  (k=" in readout.summary()[0]


def test_rows_without_label_do_not_count(tmp_path: Path) -> None:
    # The unlabelled rows would be another class, or wrong, if they were counted.
    bank = image_loader(24, seed=1)
    labelled = [(x, y) for x, y in zip(*bank.dataset.tensors, strict=True)]
    extra = [(torch.rand(3, 16, 16), torch.tensor(-1)) for _ in range(6)]
    mixed = torch.utils.data.DataLoader(extra + labelled + extra, batch_size=10)
    curves = []
    for given in (bank, mixed):
        readout = OnlineKNN(k=5, bank_loader=given, query_loader=image_loader(15, seed=2))
        trainer(tmp_path, readout, max_epochs=2).fit(seeded(Plain()))
        curves.append([value for _, value in readout.curve])
    assert curves[0] == pytest.approx(curves[1])


def seeded(module: LightningModule) -> LightningModule:
    torch.manual_seed(0)
    return module


def test_no_readout_without_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from PIL import Image

    for index in range(20):
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0)
    readout = OnlineKNN()
    run = trainer(tmp_path, readout, max_epochs=2)
    run.fit(mmcl(), data)
    assert readout.curve == []
    assert not any(name.startswith("knn") for name in run.callback_metrics)
    assert (
        sum(
            "no labelled images to read, so there is no k-NN" in record.getMessage()
            for record in caplog.records
        )
        == 1
    )


def test_curve_and_best_go_on_after_a_resume(tmp_path: Path) -> None:
    def savers(folder: Path) -> list[ModelCheckpoint]:
        # Apart: with a monitor, save_last follows the best and not the latest epoch.
        best = ModelCheckpoint(tmp_path / "best", monitor="knn/top1", mode="max")
        return [best, ModelCheckpoint(folder, save_last=True)]

    whole, uncut = OnlineKNN(k=7), savers(tmp_path / "a")
    trainer(tmp_path, whole, *uncut, max_epochs=4).fit(mmcl(), shapes())
    first = savers(tmp_path / "b")
    trainer(tmp_path, OnlineKNN(k=7), *first, StopAfter(2), max_epochs=4).fit(mmcl(), shapes())
    second, readout = savers(tmp_path / "c"), OnlineKNN(k=7)
    run = trainer(tmp_path, readout, *second, max_epochs=4, log=True)
    run.fit(mmcl(), shapes(), ckpt_path=first[1].last_model_path)
    assert readout.curve == whole.curve
    assert second[0].best_model_score == uncut[0].best_model_score
    assert [step for step, _ in scalars(tmp_path, "knn/top1")] == [11, 15]  # none of it twice


def test_validate_gives_it_too(tmp_path: Path) -> None:
    data, module, readout = shapes(), mmcl(), OnlineKNN(k=7)
    run = trainer(tmp_path, readout, limit_val_batches=1.0)
    run.fit(module, data)
    (result,) = run.validate(module, data, verbose=False)
    assert result["knn/top1"] == pytest.approx(readout.curve[-1][1])
    assert result["val/loss"] == pytest.approx(float(run.callback_metrics["val/loss"]))
    assert len(readout.curve) == 2  # the curve is of the training


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"protocol": "paper"}, "protocol must be one of dino, instdisc, mmcl_paper"),
        ({"k": 0}, "k must be at least 1"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"feature": "x"}, "'h' or 'z'"),
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1"),
        ({"bank_loader": []}, "together, or neither"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        OnlineKNN(**options)


def test_no_loaders_and_empty_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs bank_loader and query_loader, or a datamodule"):
        trainer(tmp_path, OnlineKNN()).fit(Plain())
    with pytest.raises(DataError, match="gave no batch"):
        trainer(tmp_path, OnlineKNN(bank_loader=[], query_loader=[])).fit(Plain())


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_features_come_in_the_precision_of_training_and_end_in_float32(
    precision: str, tmp_path: Path
) -> None:
    readout = OnlineKNN(k=7)
    module, data = mmcl(), shapes()
    run = trainer(tmp_path, readout, precision=precision)
    run.fit(module, data)
    assert len(readout.curve) == 2
    assert collect_features(run, module, data.knn_dataloaders()[1])[0].dtype == torch.float32
