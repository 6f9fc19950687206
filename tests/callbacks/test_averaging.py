"""Averaged weights: readouts, checkpoints and exports are of the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from runs import FlatNet, mmcl, scalars, shapes, trainer
from torch import Tensor, nn

from mmcl_lightning.callbacks import Ledger, Readouts, ResumableCheckpoint
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules import MMCL, FineTune, LinearEvaluation, LogisticEvaluation, MoCo
from mmcl_lightning.modules.export import export_backbone
from mmcl_lightning.readouts import KNN
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading


class Width(Readout):
    """The largest feature of the queries, which any change of the weights changes."""

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        return {"query": {"h"}}

    def compute(self, reading: Reading) -> dict[str, float]:
        features = reading.features("query", "this test")
        assert features is not None
        return {"width": float(features.features["h"].abs().max())}


class EpochEMA(EMAWeightAveraging):
    """Averages at the end of an epoch, after callbacks that come before it in the list."""

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return epoch_idx is not None


def ema() -> Callback:
    return EMAWeightAveraging(decay=0.7)


def epoch_ema() -> Callback:
    return EpochEMA(decay=0.7)


def swa() -> Callback:
    return StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=1)


def flat() -> MMCL:
    return mmcl(backbone=FlatNet(), projection_head=nn.Linear(8, 8))


def value(path: Path, flat_net: bool) -> float:
    """What a reading of a checkpoint, loaded without any callback that averages, gives."""
    parts = {"backbone": FlatNet(), "projection_head": nn.Linear(8, 8)} if flat_net else {}
    module = MMCL.load_from_checkpoint(path, **parts)
    run = trainer(path.parent / "validate", Readouts(others=[Width()]), limit_val_batches=1.0)
    return float(run.validate(module, shapes(), verbose=False)[0]["width"])


@pytest.mark.parametrize("flat_net", [True, False], ids=["plain", "batch norm"])
@pytest.mark.parametrize("make", [ema, epoch_ema, swa])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_readout_is_of_the_weights_that_the_checkpoint_holds(
    make: Callable[[], Callback], first: bool, flat_net: bool, tmp_path: Path
) -> None:
    readouts, averaging = Readouts(others=[Width()], knn=KNN(k=5)), make()
    parts = [averaging, readouts] if first else [readouts, averaging]
    saving = ResumableCheckpoint(dirpath=tmp_path / "saved", filename="{epoch}", save_top_k=-1)
    module = flat() if flat_net else mmcl()
    run = trainer(tmp_path, *parts, saving, Ledger(str(tmp_path)), max_epochs=2, log=True)
    run.fit(module, shapes())
    read = [point[1] for point in scalars(tmp_path, "width")]
    kept = [value(path, flat_net) for path in sorted((tmp_path / "saved").glob("epoch*.ckpt"))]
    assert read[1 : 1 + len(kept)] == kept  # the first one is of before the training
    assert read[-1] == value(tmp_path / "saved" / "last.ckpt", flat_net)
    assert (len(read) > 1 + len(kept)) == (flat_net and make is swa)  # that one averages after the last epoch
    text = Record.read(tmp_path / "ledger.json").protocols["knn/top1"]
    assert text.endswith(f"weights as checkpoints hold them under {type(averaging).__name__}")
    assert len(set(read)) > 2


def test_the_trainer_that_fitted_validates_the_averaged_weights(tmp_path: Path) -> None:
    saving = ResumableCheckpoint(dirpath=tmp_path)
    run = trainer(tmp_path, Readouts(others=[Width()]), ema(), saving, limit_val_batches=1.0)
    run.fit(flat(), shapes())
    path = tmp_path / "last.ckpt"
    found = run.validate(run.lightning_module, shapes(), ckpt_path=path, verbose=False, weights_only=True)
    assert found[0]["width"] == value(path, True)


def test_a_resumed_run_reads_the_average_that_it_goes_on_with(tmp_path: Path) -> None:
    def fit(folder: Path, epochs: int, path: Path | None = None) -> list[float]:
        saving = ResumableCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
        parts = Readouts(others=[Width()]), ema(), saving
        trainer(folder, *parts, max_epochs=epochs, log=True).fit(
            flat(), shapes(), ckpt_path=path, weights_only=True
        )
        return [point[1] for point in scalars(folder, "width")]

    whole = fit(tmp_path / "whole", 3)
    rest = fit(tmp_path / "rest", 3, tmp_path / "whole" / "epoch=0.ckpt")
    assert rest == whole[2:]


class FailInValidation(Callback):
    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if not args[0].sanity_checking:
            raise RuntimeError("as a full disk would")


def test_a_run_that_fails_within_a_validation_saves_the_average_as_the_average(tmp_path: Path) -> None:
    parts = ema(), ResumableCheckpoint(dirpath=tmp_path), FailInValidation()
    run = trainer(tmp_path, *parts, limit_val_batches=1.0)
    with pytest.raises(RuntimeError, match="full disk"):
        run.fit(flat(), shapes())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    same = trainer(tmp_path, ema(), ResumableCheckpoint(dirpath=tmp_path / "whole"))
    same.fit(flat(), shapes())
    whole = torch.load(tmp_path / "whole" / "last.ckpt", weights_only=True)
    for name, weight in whole["state_dict"].items():
        torch.testing.assert_close(saved["state_dict"][name], weight)
    assert not torch.equal(saved["current_model_state"]["backbone.fc.weight"], weight_of(saved))


def weight_of(saved: dict[str, Any]) -> Tensor:
    weight: Tensor = saved["state_dict"]["backbone.fc.weight"]
    return weight


def test_an_export_has_the_averaged_weights(tmp_path: Path) -> None:
    run = trainer(tmp_path, ema(), ResumableCheckpoint(dirpath=tmp_path, filename="{epoch}"))
    run.fit(flat(), shapes())
    export_backbone(str(tmp_path / "epoch=0.ckpt"), str(tmp_path / "out.pt"))
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    exported = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(exported["fc.weight"], weight_of(saved))
    assert not torch.equal(exported["fc.weight"], saved["current_model_state"]["backbone.fc.weight"])


def test_an_average_that_has_not_begun_is_of_the_weights_that_the_run_began_with(tmp_path: Path) -> None:
    torch.save(FlatNet().state_dict(), tmp_path / "first.pt")
    late = EMAWeightAveraging(update_starting_at_step=100)
    run = trainer(tmp_path, late, ResumableCheckpoint(dirpath=tmp_path, filename="{epoch}"))
    run.fit(
        mmcl(backbone=FlatNet(), projection_head=nn.Linear(8, 8), init_from=tmp_path / "first.pt"), shapes()
    )
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    assert torch.equal(weight_of(saved), torch.load(tmp_path / "first.pt", weights_only=True)["fc.weight"])


@pytest.mark.parametrize(("kind", "averaging"), [(LinearEvaluation, WeightAveraging), (FineTune, ema)])
def test_the_average_of_an_evaluation_has_its_classifier(kind: Any, averaging: Any, tmp_path: Path) -> None:
    module = kind("random", backbone=FlatNet())
    run = trainer(tmp_path, averaging(), ResumableCheckpoint(dirpath=tmp_path), limit_val_batches=1.0)
    run.fit(module, shapes(task="classify"))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["state_dict"]["classifier.weight"].shape == (10, 8)
    assert torch.equal(saved["state_dict"]["classifier.weight"], module.classifier.weight)
    assert module.curve[-1][2] == kind_value(kind, module, tmp_path)


def kind_value(kind: Any, module: Any, folder: Path) -> float:
    """The accuracy of a checkpoint, loaded without a callback that averages."""
    loaded = kind.load_from_checkpoint(folder / "last.ckpt", backbone=FlatNet())
    found = trainer(folder / "validate", limit_val_batches=1.0).validate(
        loaded, shapes(task="classify"), verbose=False
    )
    return float(found[0][f"{module.tag}/top1"])


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (LinearEvaluation, [ema, swa]),
        (LogisticEvaluation, [WeightAveraging, ema, swa, LearningRateFinder]),
    ],
)
def test_a_frozen_backbone_is_not_averaged(kind: Any, refused: list[Any], tmp_path: Path) -> None:
    for make in refused:
        run = trainer(tmp_path, make(), max_epochs=3, limit_val_batches=1.0)
        module, data = kind("random", backbone=FlatNet()), shapes(task="classify", train_size=48)
        with pytest.raises(ConfigError, match=r"leave it out of trainer\.callbacks"):
            run.fit(module, data)
        assert (run.global_step, module.curve) == (0, []), make


class Scale(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        with torch.no_grad():
            pl_module.backbone.fc.bias += 1


@pytest.mark.parametrize("kind", [LinearEvaluation, LogisticEvaluation])
def test_a_frozen_backbone_that_a_callback_writes_to_is_noticed(kind: Any, tmp_path: Path) -> None:
    module = kind("random", backbone=FlatNet())
    run = trainer(tmp_path, Scale(), limit_val_batches=1.0)
    with pytest.raises(NumericalError, match=r"changed: 1 of 2 tensors, the first being fc\.bias\. The"):
        run.fit(module, shapes(task="classify", train_size=48))


def test_moco_is_averaged_too(tmp_path: Path) -> None:
    module = MoCo(backbone="conv4", hidden_dim=8, output_dim=8, queue_size=20)
    run: Trainer = trainer(tmp_path, Readouts(others=[Width()]), ema(), ResumableCheckpoint(dirpath=tmp_path))
    run.fit(module, shapes())
    loaded = MoCo.load_from_checkpoint(tmp_path / "last.ckpt")
    check = trainer(tmp_path, Readouts(others=[Width()]), limit_val_batches=1.0)
    found = check.validate(loaded, shapes(), verbose=False)[0]
    assert found["width"] == float(run.callback_metrics["width"])
