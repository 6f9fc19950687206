"""The online linear probe: it learns from what the network gives, and the network never notices."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from runs import (
    FlatNet,
    InterruptedRunError,
    Plain,
    StopAfter,
    events,
    image_loader,
    mmcl,
    scalars,
    shapes,
    trainer,
)
from torch import Tensor, nn

from mmcl_lightning.callbacks import OnlineKNN, Readouts
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.features import collect_features
from mmcl_lightning.modules import MMCL
from mmcl_lightning.readouts import KNN, LinearProbe
from mmcl_lightning.readouts._online_classifier import OnlineClassifier


def flat(seed: int = 0, **changes: Any) -> MMCL:
    """A module whose forward can be repeated: no batch norm, no dropout."""
    torch.manual_seed(seed)
    return mmcl(seed, backbone=FlatNet(), projection_head=nn.Linear(8, 4), **changes)


class Giving(Plain):
    """Someone else's module that hands on what it learns from."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self(batch[0])
        return {"loss": h.square().mean(), "h": h}


class Twin(Callback):
    """The probe by hand: standardised softmax regression and Adam as printed, from a second forward pass."""

    def __init__(self, lr: float, decay: float, classes: int = 10) -> None:
        self.lr, self.decay, self.classes = lr, decay, classes
        self.weight: np.ndarray | None = None
        self.losses: list[float] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            h = torch.cat([pl_module.backbone(view) for view in batch[0]]).double().numpy()
        self.step(h, batch[1].repeat(len(batch[0])).numpy())

    def step(self, h: np.ndarray, labels: np.ndarray) -> None:
        if self.weight is None:
            self.mean, self.var = h.mean(axis=0), h.var(axis=0)
        else:
            self.var = 0.9 * self.var + 0.1 * h.var(axis=0)
            self.mean = 0.9 * self.mean + 0.1 * h.mean(axis=0)
        rows = np.hstack([(h - self.mean) / np.sqrt(self.var + 1e-5), np.ones((len(h), 1))])
        if self.weight is None:
            self.weight = np.zeros((self.classes, rows.shape[1]))
            self.first, self.second = np.zeros_like(self.weight), np.zeros_like(self.weight)
        gradient, loss, count = np.zeros_like(self.weight), 0.0, int((labels >= 0).sum())
        for row, label in zip(rows, labels, strict=True):
            if label < 0:
                continue
            scores = self.weight @ row
            share = np.exp(scores - scores.max())
            share /= share.sum()
            loss -= math.log(share[label]) / count
            for c in range(self.classes):
                gradient[c] += (share[c] - (c == label)) * row / count
        self.losses.append(loss)
        gradient += self.decay * self.weight
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        t = len(self.losses)
        self.weight -= self.lr * (self.first / (1 - 0.9**t)) / (np.sqrt(self.second / (1 - 0.999**t)) + 1e-6)


def weights(probe: LinearProbe) -> np.ndarray:
    assert probe.classifier is not None
    linear = probe.classifier.linear
    return torch.cat([linear.weight.detach(), linear.bias.detach().unsqueeze(1)], dim=1).double().numpy()


@pytest.mark.parametrize("options", [{}, {"chunk_size": 3}], ids=["one pass", "chunks"])
def test_equals_the_probe_by_hand(options: dict[str, Any], tmp_path: Path) -> None:
    # Seven images give chunks of 3, 3 and 1; the backward pass runs each of them again.
    probe, twin = LinearProbe(lr=0.02, weight_decay=0.1), Twin(0.02, 0.1)
    data = shapes(batch_size=7)
    trainer(tmp_path, twin, Readouts(probe=probe), log=True, max_epochs=2).fit(flat(**options), data)
    assert len(twin.losses) == 8
    # Weights are about 0.1. Classes that the first batch lacks take a small step from rounding alone.
    np.testing.assert_allclose(weights(probe), twin.weight, rtol=0, atol=2e-3)
    assert [value for _, value in scalars(tmp_path, "probe/loss")] == pytest.approx(twin.losses, rel=3e-4)


def test_accuracy_is_that_of_clean_images_and_written_with_its_protocol(tmp_path: Path) -> None:
    data, module, probe = shapes(), mmcl(), LinearProbe(lr=0.05)
    run = trainer(tmp_path, Readouts(probe=probe), log=True, max_epochs=3)
    run.fit(module, data)
    h, labels = collect_features(run, module, data.knn_dataloaders()[1])
    assert probe.classifier is not None
    rows = ((h - probe.classifier.mean) / (probe.classifier.var + 1e-5).sqrt()).double().numpy()
    order = (rows @ weights(probe)[:, :-1].T + weights(probe)[:, -1]).argsort(axis=1)[:, ::-1]
    for k in (1, 5):
        by_hand = np.mean([label in row[:k] for row, label in zip(order, labels.tolist(), strict=True)])
        assert float(run.callback_metrics[f"probe/top{k}"]) == pytest.approx(by_hand)
    assert [epoch for epoch, _ in probe.curve] == [1, 2, 3]
    logged = [value for _, value in scalars(tmp_path, "probe/top1")]
    assert logged == pytest.approx([value for _, value in probe.curve])
    best = [value for _, value in scalars(tmp_path, "probe/best_top1")]
    assert best == pytest.approx(np.maximum.accumulate(logged))
    (text,) = events(tmp_path).Tensors("probe/protocol/text_summary")
    assert text.tensor_proto.string_val[0].decode() == (
        "online linear probe on standardised h: Adam lr=0.05 wd=1e-06, one step per batch of augmented "
        "views, 20 clean queries"
    )
    assert probe.summary()[0].startswith(
        f"Probe top-1:  {logged[0]:.3f} -> {logged[-1]:.3f}, best {max(best):.3f}"
    )


def test_learns_what_a_frozen_representation_holds(tmp_path: Path) -> None:
    # Brightness tells the class of these images; the network stands still at a learning rate of 1e-4.
    probe = LinearProbe(lr=0.1)
    readouts = Readouts(probe=probe, query_loader=image_loader(30, seed=2), num_classes=3)
    trainer(tmp_path, readouts, max_epochs=40).fit(Giving())
    assert probe.curve[-1][1] == 1.0


def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    ends = []
    for with_it in (False, True):
        module = mmcl()
        torch.manual_seed(7)
        run = trainer(tmp_path, *([Readouts(probe=LinearProbe())] if with_it else []), max_epochs=2)
        run.fit(module, shapes())
        optimizer = run.optimizers[0].state_dict()["state"]
        ends.append((module.state_dict(), optimizer, torch.rand(3).tolist()))
    (alone, adam, draws), (watched, watched_adam, watched_draws) = ends
    assert alone.keys() == watched.keys()  # the probe is no part of the module
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    assert all(torch.equal(adam[i]["exp_avg"], watched_adam[i]["exp_avg"]) for i in adam)
    assert draws == watched_draws
    assert not module.backbone._forward_hooks


def test_shares_the_query_features_with_the_knn_readout(tmp_path: Path) -> None:
    class Count(FlatNet):
        images = 0

        def forward(self, x: Tensor) -> Tensor:
            self.images += 0 if self.training else len(x)
            return super().forward(x)

    seen = []
    both = Readouts(probe=LinearProbe(), knn=KNN(k=5))
    for readouts in (OnlineKNN(k=5), Readouts(probe=LinearProbe()), both):
        backbone = Count()
        run = trainer(tmp_path, readouts)
        run.fit(mmcl(backbone=backbone, projection_head=nn.Linear(8, 4)), shapes())
        seen.append(backbone.images)
    assert seen == [2 * (32 + 20), 20, 2 * (32 + 20)]


@pytest.mark.parametrize("cut", [8, 6], ids=["epoch 2 ends", "in epoch 2"])
def test_resumed_probe_equals_the_uninterrupted_one(cut: int, tmp_path: Path) -> None:
    class FailAt(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == cut:
                raise InterruptedRunError

    def saver(name: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / name, save_last=True, save_on_exception=True)

    whole = LinearProbe(lr=0.02)
    run = trainer(tmp_path, Readouts(probe=whole), max_epochs=4)
    run.fit(mmcl(), shapes())
    first = trainer(
        tmp_path,
        Readouts(probe=LinearProbe(lr=0.02)),
        StopAfter(2) if cut == 8 else FailAt(),
        saver("a"),
        max_epochs=4,
    )
    if cut == 8:
        first.fit(mmcl(), shapes())
    else:
        with pytest.raises(InterruptedRunError):
            first.fit(mmcl(), shapes())
    path = str(tmp_path / "a" / "last.ckpt")
    torch.load(path, weights_only=True)
    resumed = LinearProbe(lr=0.02)
    second = trainer(tmp_path, Readouts(probe=resumed), saver("b"), max_epochs=4)
    second.fit(mmcl(3), shapes(), ckpt_path=path)
    assert np.array_equal(weights(resumed), weights(whole))
    assert resumed.curve == whole.curve
    assert second.callback_metrics["probe/best_top1"] == run.callback_metrics["probe/best_top1"]

    (result,) = trainer(tmp_path, Readouts(probe=LinearProbe()), limit_val_batches=1.0).validate(
        mmcl(5), shapes(), ckpt_path=str(tmp_path / "b" / "last.ckpt"), verbose=False
    )
    assert result["probe/top1"] == pytest.approx(whole.curve[-1][1])


def test_checkpoints_can_monitor_it_from_the_first_epoch(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, monitor="probe/top1", mode="max", save_top_k=-1)
    probe = LinearProbe()
    trainer(tmp_path, Readouts(every_n_epochs=5, probe=probe), saver, max_epochs=3).fit(mmcl(), shapes())
    assert len(saver.best_k_models) == 3
    assert [epoch for epoch, _ in probe.curve] == [1, 3]


def test_two_processes_keep_one_probe(tmp_path: Path) -> None:
    def run(name: str, batch_size: int, **options: object) -> dict[str, Any]:
        data = shapes(batch_size=batch_size)
        data.splits.pretrain.targets[:13] = -1  # so that the processes have different numbers of labels
        # A checkpoint of the training processes: the callback of this one is not theirs.
        saver = ModelCheckpoint(tmp_path / name, save_last=True)
        readouts = Readouts(probe=LinearProbe(lr=0.02))
        trainer(tmp_path, readouts, saver, max_epochs=2, **options).fit(flat(), data)
        saved = torch.load(tmp_path / name / "last.ckpt", weights_only=True)
        return saved["callbacks"]["Readouts"]["readouts"]["probe"]

    one = run("one", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = run("two", 8, devices=2, strategy="ddp_fork")
    for name in ("mean", "var"):
        torch.testing.assert_close(two["fitted"][name], one["fitted"][name], rtol=1e-5, atol=1e-6)
    for name, value in one["fitted"]["linear"].items():
        torch.testing.assert_close(two["fitted"]["linear"][name], value, rtol=0, atol=2e-3)
        assert value.abs().max() > 0.01
    assert np.array(two["curve"]) == pytest.approx(np.array(one["curve"]), abs=0.051)  # one image of 20


def test_rows_without_label_do_not_count() -> None:
    h = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([-1, 0, 0, 1, 2, -1, 0, 1, 0, -1, 2, 0])
    mixed, labelled = (OnlineClassifier(5, 3, 0.1, 0.0, h.device) for _ in range(2))
    for _ in range(3):
        loss = mixed.step(h, labels)
        assert loss == pytest.approx(float(labelled.step(h[labels >= 0], labels[labels >= 0])))
    torch.testing.assert_close(mixed.linear.weight, labelled.linear.weight)
    before = [tensor.clone() for tensor in (*mixed.linear.parameters(), mixed.mean, mixed.var)]
    assert mixed.step(h, torch.full((12,), -1)).isnan()
    # Adam's momentum would have moved it.
    assert all(map(torch.equal, before, (*mixed.linear.parameters(), mixed.mean, mixed.var)))
    with pytest.raises(DataError, match="a label is 3, but there are 3 classes"):
        mixed.step(h, torch.arange(12) % 4)
    with pytest.raises(ShapeError, match="have 4 features, the linear probe was trained on 5"):
        mixed.step(h[:, :4], labels)


def test_large_common_parts_do_not_cancel() -> None:
    # A mean a thousand times the spread: squares of rows would lose the variance in single precision.
    h = 1000 + torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    classifier = OnlineClassifier(4, 2, 0.1, 0.0, h.device)
    for _ in range(60):
        classifier.step(h, (h[:, 0] > 1000).long())
    torch.testing.assert_close(classifier.mean, h.mean(dim=0), rtol=0, atol=1e-2)
    torch.testing.assert_close(classifier.var, h.var(dim=0, unbiased=False), rtol=1e-2, atol=0)


def test_steps_on_every_batch_of_accumulated_ones(tmp_path: Path) -> None:
    probe, twin = LinearProbe(lr=0.02), Twin(0.02, 1e-6)
    run = trainer(tmp_path, twin, Readouts(probe=probe), accumulate_grad_batches=2)
    run.fit(flat(), shapes())
    assert run.global_step == 2
    assert len(twin.losses) == 4
    np.testing.assert_allclose(weights(probe), twin.weight, rtol=0, atol=2e-3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_single_precision_whatever_the_network_has(precision: str, tmp_path: Path) -> None:
    probe = LinearProbe()
    trainer(tmp_path, Readouts(probe=probe), precision=precision).fit(mmcl(), shapes())
    assert probe.classifier is not None
    assert probe.classifier.linear.weight.dtype == torch.float32
    assert np.isfinite(weights(probe)).all()
    assert np.abs(weights(probe)).max() > 0


def test_off_without_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for index in range(20):
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0)
    probe = LinearProbe()
    run = trainer(tmp_path, Readouts(probe=probe), max_epochs=2)
    run.fit(mmcl(), data)
    assert probe.curve == []
    assert not any(name.startswith("probe") for name in run.callback_metrics)
    assert sum("so there is no linear probe" in record.getMessage() for record in caplog.records) == 1


class Maps(Plain):
    """Has a backbone that does not pool."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self.backbone(batch[0])
        return {"loss": h.mean(), "h": h}


class Pairs(Plain):
    """Gives five rows for eight images."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self(batch[0][:5])
        return {"loss": h.square().mean(), "h": h}


class Several(Plain):
    """Gives more than one tensor."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self(batch[0])
        return {"loss": h.square().mean(), "h": [h, h]}


def test_what_it_cannot_work_with_is_named(tmp_path: Path) -> None:
    def fit(module: Plain, **options: Any) -> None:
        trainer(tmp_path, Readouts(probe=LinearProbe(), **options)).fit(module)

    given = {"query_loader": image_loader(15, seed=2)}
    with pytest.raises(ConfigError, match="needs num_classes, or a datamodule"):
        fit(Giving(), **given)
    with pytest.raises(ConfigError, match="needs query_loader, or a datamodule"):
        fit(Giving(), num_classes=3)
    for module in (Plain(), Several()):
        name = type(module).__name__
        with pytest.raises(ConfigError, match=f"let training_step of {name} return {{'loss': loss, 'h': h}}"):
            fit(module, num_classes=3, **given)
    with pytest.raises(ShapeError, match=r"\(views \* 8, F\), .* got \(8, 3, 14, 14\) from .* of Maps"):
        fit(Maps(), num_classes=3, **given)
    with pytest.raises(ShapeError, match=r"\(views \* 8, F\), .* got \(5, 5\) from training_step of Pairs"):
        fit(Pairs(), num_classes=3, **given)
    unlabelled = image_loader(15, seed=2, labels=torch.full((15,), -1))
    with pytest.raises(DataError, match="none of the images"):
        fit(Giving(), num_classes=3, query_loader=unlabelled)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr": 0.0}, "lr must be a finite number > 0, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0"),
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LinearProbe(**options)
