"""The few-shot evaluation: the metric's number on the features, recorded, for any way of loading."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from runs import FlatNet, Plain, events, image_loader, shapes, trainer

from mmcl_lightning.callbacks import Ledger
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.ledger import Record
from mmcl_lightning.metrics import FewShotProtocol, few_shot_accuracy
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import FewShotEvaluation
from mmcl_lightning.modules.weights import digests

SMALL: dict[str, Any] = {"way": 3, "shots": 2, "queries": 2, "episodes": 30}


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(0)
    torch.save(build_backbone("conv4").state_dict(), tmp_path / "b.pt")
    return str(tmp_path / "b.pt")


def few_shot(checkpoint: str, **options: Any) -> FewShotEvaluation:
    return FewShotEvaluation(checkpoint, **({"backbone": "conv4"} | SMALL | options))


def data(**options: Any) -> Any:
    return shapes(**({"test_size": 63, "task": "classify"} | options))


def evaluated(folder: Path, module: Any, *callbacks: Callback, **options: Any) -> dict[str, float]:
    found = options.pop("data", None) or data()
    run = trainer(folder, *callbacks, **options)
    (values,) = run.test(module, datamodule=found, verbose=False)
    return values


def test_it_is_the_metric_on_the_features_and_twice_the_same(weights: str, tmp_path: Path) -> None:
    module = few_shot(weights)
    before = digests(module.backbone.state_dict())
    found = evaluated(tmp_path, module)
    with torch.no_grad():
        parts = [(module.eval()(images), labels) for images, labels in data().test_dataloader()]
    h, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    expected = few_shot_accuracy(h, labels, FewShotProtocol(**SMALL))
    assert found == {
        "few_shot/accuracy": pytest.approx(expected.accuracy),
        "few_shot/half_width": pytest.approx(expected.half_width),
    }
    assert 0.34 < expected.accuracy < 1
    assert evaluated(tmp_path, module) == found
    assert digests(module.backbone.state_dict()) == before
    assert not any(weight.requires_grad for weight in module.parameters())
    other = evaluated(tmp_path, few_shot(weights, seed=1))["few_shot/accuracy"]
    assert other != found["few_shot/accuracy"]


class _Keep(Callback):
    """Writes the accuracies of the episodes to a file: other processes cannot be asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.path.write_text(json.dumps(pl_module.result.accuracies.tolist()))


def test_batches_workers_and_processes_change_nothing(weights: str, tmp_path: Path) -> None:
    found = []
    for number, (loading, running) in enumerate(
        (
            ({}, {}),
            ({"eval_batch_size": 5}, {}),
            ({"num_workers": 1}, {}),
            ({"eval_batch_size": 4}, {"devices": 2, "strategy": "ddp_fork"}),
        )
    ):
        keep = _Keep(tmp_path / f"{number}.json")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluated(tmp_path, few_shot(weights), keep, data=data(**loading), **running)
        found.append(json.loads(keep.path.read_text()))
    assert found[1:] == found[:1] * 3
    assert len(set(found[0])) > 2


class _Write(Callback):
    def on_test_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        with torch.no_grad():
            next(pl_module.backbone.parameters()).mul_(1.5)


def test_frozen_is_checked(weights: str, tmp_path: Path) -> None:
    with pytest.raises(NumericalError, match="the frozen backbone has changed: 1 of 24 tensors"):
        evaluated(tmp_path, few_shot(weights), _Write())


def test_it_is_recorded_and_said(weights: str, tmp_path: Path) -> None:
    module = few_shot(weights)
    found = evaluated(tmp_path, module, Ledger(str(tmp_path)), log=True)
    record = Record.read(tmp_path / "ledger.json")
    assert (record.status, record.method, record.steps) == ("finished", "FewShotEvaluation", 0)
    for name, value in found.items():
        assert record.metrics[name].last == pytest.approx(value, rel=1e-5)
    text = record.protocols["few_shot/accuracy"]
    assert text == (
        "3-way 2-shot, 2 queries a class, 30 episodes of seed 0, nearest class mean of h by squared "
        f"Euclidean distance, frozen backbone, weights {weights}, images of 16 x 16 pixels by "
        "EvalTransform(resize=None, crop=None), in [0, 1]"
    )
    assert record.config["model"]["init_args"]["checkpoint"] == weights
    result, protocol = module.summary()
    assert result.startswith(f"few-shot accuracy: {found['few_shot/accuracy']:.4f} ± ")
    assert result.endswith(", the 95 % interval over episodes, not over trainings")
    assert protocol.endswith(text)
    assert "few_shot/protocol/text_summary" in events(tmp_path).Tags()["tensors"]


def test_a_test_of_another_module_is_not_recorded(tmp_path: Path) -> None:
    class Tested(Plain):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("x", 1.0)

    trainer(tmp_path, Ledger(str(tmp_path))).test(Tested(), image_loader(10, seed=0), verbose=False)
    assert not (tmp_path / "ledger.json").exists()


def test_loaders_and_networks_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = {"class_path": "runs.FlatNet", "init_args": {"width": 8}}
    torch.save(FlatNet().state_dict(), tmp_path / "flat.pt")
    labels = torch.arange(31) % 4  # brightness tells of three classes: neither all right nor all wrong
    found = []
    for running in ({}, {"devices": 2, "strategy": "ddp_fork"}):  # where Lightning repeats an image of 31
        module, keep = (
            few_shot(str(tmp_path / "flat.pt"), backbone=network),
            _Keep(tmp_path / f"{len(found)}.json"),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer(tmp_path, keep, **running).test(
                module, image_loader(31, seed=1, labels=labels), verbose=False
            )
        found.append(json.loads(keep.path.read_text()))
    assert found[0] == found[1]
    assert len(set(found[0])) > 3


def test_input_is_checked(weights: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an evaluation needs weights: set --model\.checkpoint"):
        FewShotEvaluation()
    with pytest.raises(ConfigError, match="shots must be an integer >= 1, got 0"):
        few_shot(weights, shots=0)
    with pytest.raises(ConfigError, match="does not fit the backbone"):
        few_shot(weights, backbone="resnet18")
    with pytest.raises(DataError, match=r"episode has 30 classes, and the images have \d+: set --model\.way"):
        evaluated(tmp_path, few_shot(weights, way=30))
    with pytest.raises(
        DataError, match=r"60 images of a class, 50 shots and 10 queries, .* first being '\w+'"
    ):
        evaluated(tmp_path, few_shot(weights, shots=50, queries=10))
