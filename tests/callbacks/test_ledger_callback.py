"""The record of a real run: finished, broken off, resumed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from runs import Plain, trainer

from mmcl_lightning.callbacks import Ledger, OnlineKNN, Throughput
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules import MMCL
from mmcl_lightning.svm import Exact


class Broken(Callback):
    """Raises within the second epoch."""

    def __init__(self, error: BaseException):
        self.error = error

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1:
            raise self.error


def fit(folder: Path, *callbacks: Callback, epochs: int = 2, ckpt_path: str | None = None) -> Record:
    seed_everything(3, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        logger=TensorBoardLogger(str(folder), "run", default_hp_metric=False),
        callbacks=[OnlineKNN(k=5), Throughput(), ModelCheckpoint(save_last=True), Ledger(), *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        log_every_n_steps=1,
    )
    data = ShapesDataModule(train_size=32, test_size=16, batch_size=8, num_workers=0)
    module = MMCL(backbone="conv4", projection_head="cifar", solver=Exact())
    with contextlib.suppress(RuntimeError, SystemExit):  # Lightning turns an interrupt into an exit
        trainer.fit(module, data, ckpt_path=ckpt_path)
    return Record.read(Path(trainer.log_dir or "") / "ledger.json")


def test_what_is_better_smaller() -> None:
    recorder = Ledger()
    curve = [[1.0, 4, 1.0, 0.5]]
    names = (
        "knn/top1",
        "train/loss",
        "health/alignment",
        "health/uniformity",
        "svm/duality_gap",
        "health/rankme_h",
    )
    state = {"seconds": 1.0, "started": "", "curves": dict.fromkeys(names, curve)}
    recorder.load_state_dict(state)
    smaller = [name for name, metric in recorder._recorder.metrics.items() if metric.smaller_is_better]
    assert smaller == ["train/loss", "health/alignment", "health/uniformity", "svm/duality_gap"]


def test_a_finished_run(tmp_path: Path) -> None:
    record = fit(tmp_path)
    assert (record.status, record.method, record.seed) == ("finished", "MMCL, Exact", 3)
    assert (record.epochs, record.steps) == (2, 8)
    points = record.metrics["knn/top1"].curve
    assert [(epoch, step) for epoch, step, _, _ in points] == [(0.0, 0), (1.0, 4), (2.0, 8)]
    seconds = [point[2] for point in points]
    assert seconds == sorted(seconds)
    assert record.seconds >= seconds[-1] > 0
    assert len(record.metrics["train/loss"].curve) == 8
    assert record.metrics["train/loss"].smaller_is_better
    assert not record.metrics["knn/top1"].smaller_is_better
    assert record.images_per_second is not None
    assert record.images_per_second > 1
    assert record.data["fingerprint"]["pretrain"].startswith("32 images, ")
    assert record.data["prepared"] == "EvalTransform(resize=None, crop=None), in [0, 1]"
    assert record.protocols["knn/top1"].startswith("k=5 ")
    assert record.config["model"]["init_args"]["solver"]["class_path"].endswith("Exact")


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("the disk is full"), "failed: the disk is full"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_run_that_broke_off_says_how(tmp_path: Path, error: BaseException, status: str) -> None:
    record = fit(tmp_path, Broken(error))
    assert record.status == status
    assert record.steps == 4


def test_a_resumed_run_continues_its_record(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    first = fit(tmp_path / "parts", epochs=1)
    last = str(next((tmp_path / "parts").rglob("last.ckpt")))
    second = fit(tmp_path / "parts", ckpt_path=last)
    assert [p[:2] for p in second.metrics["knn/top1"].curve] == [
        p[:2] for p in whole.metrics["knn/top1"].curve
    ]
    assert second.seconds > first.seconds
    assert second.started == first.started
    again = fit(
        tmp_path / "again", ckpt_path=str(next((tmp_path / "whole").rglob("last.ckpt")))
    )  # nothing to do
    assert again.protocols == whole.protocols
    values = [p[3] for p in second.metrics["train/loss"].curve]
    assert torch.allclose(
        torch.tensor(values), torch.tensor([p[3] for p in whole.metrics["train/loss"].curve])
    )


def test_nothing_of_a_fast_dev_run(tmp_path: Path) -> None:
    run = Trainer(
        fast_dev_run=True, callbacks=[Ledger(str(tmp_path))], enable_progress_bar=False, accelerator="cpu"
    )
    data = ShapesDataModule(train_size=16, test_size=16, batch_size=8, num_workers=0)
    run.fit(MMCL(backbone="conv4", projection_head="cifar"), data)
    assert not (tmp_path / "ledger.json").exists()


def test_without_a_logger_checkpoints_lie_where_they_lie_without_a_ledger(tmp_path: Path) -> None:
    run = Trainer(
        accelerator="cpu", max_steps=1, logger=False, callbacks=[ModelCheckpoint(), Ledger()],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, log_every_n_steps=0,
        limit_val_batches=0,
    )  # fmt: skip
    data = ShapesDataModule(train_size=16, test_size=16, batch_size=8, num_workers=0)
    run.fit(MMCL(backbone="conv4", projection_head="cifar"), data)
    assert (tmp_path / "ledger.json").exists()
    assert (tmp_path / "checkpoints").is_dir()


def test_no_logger_no_harm(tmp_path: Path) -> None:
    trainer = Trainer(
        accelerator="cpu", max_steps=1, logger=False, callbacks=[Ledger(str(tmp_path))], limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    data = ShapesDataModule(train_size=16, test_size=16, batch_size=8, num_workers=0)
    trainer.fit(MMCL(backbone="conv4", projection_head="cifar"), data)
    assert Record.read(tmp_path / "ledger.json").steps == 1


class WritesAnywhere(Callback):
    """A user's callback that draws with whatever logger there is, as many examples do."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.logger:
            trainer.logger.experiment.add_histogram("mine", torch.zeros(3), global_step=1)
            trainer.logger.experiment.config.update({"mine": 1})


def test_callbacks_that_write_to_any_logger_work_without_one(tmp_path: Path) -> None:
    trainer(tmp_path, Ledger(str(tmp_path)), WritesAnywhere()).fit(Plain())
    assert (tmp_path / "ledger.json").is_file()
