"""The logistic evaluation: scikit-learn's number on the features, chosen as the published code chooses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import shapes, trainer
from sklearn.linear_model import LogisticRegression as Reference

from mmcl_lightning._accuracy import ClassAccuracy
from mmcl_lightning.callbacks import Readouts, ResumableCheckpoint
from mmcl_lightning.callbacks.stopping import StopAtOnce
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.splits import validation_rows
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import LOGISTIC_PROTOCOLS, LinearEvaluation, LogisticEvaluation
from mmcl_lightning.modules.weights import digests
from mmcl_lightning.readouts import LogisticRegression

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_transfer.json").read_text())


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(0)
    torch.save(build_backbone("conv4").state_dict(), tmp_path / "b.pt")
    return str(tmp_path / "b.pt")


def logistic(checkpoint: str, **options: Any) -> LogisticEvaluation:
    return LogisticEvaluation(checkpoint, **({"backbone": "conv4"} | options))


def fit(folder: Path, module: Any, *callbacks: Any, data: Any = None, **options: Any) -> Any:
    data = data or shapes(task="classify", train_size=80, test_size=60)
    run = trainer(folder, *callbacks, max_epochs=1, limit_train_batches=1, limit_val_batches=1.0, **options)
    run.fit(module, datamodule=data)
    return run


def features(module: LogisticEvaluation, data: Any) -> list[np.ndarray]:
    found = []
    for loader in data.knn_dataloaders():
        with torch.no_grad():
            parts = [(module(images), labels) for images, labels in loader]
        found += [torch.cat(part).double().numpy() for part in zip(*parts, strict=True)]
    return found


def test_equals_scikit_learn_with_the_choice_made_by_hand(weights: str, tmp_path: Path) -> None:
    module = logistic(weights)
    module.protocol = dataclasses.replace(module.protocol, Cs=(1e-3, 0.1, 10.0))
    run = fit(tmp_path, module)
    data = shapes(task="classify", train_size=80, test_size=60)
    x, y, queries, labels = features(module, data)

    def reference(rows: Any, C: float) -> tuple[Any, np.ndarray, np.ndarray]:
        mean, std = x[rows].mean(0), x[rows].std(0, ddof=1)
        scale = np.where(std > 0, 1 / np.where(std > 0, std, 1), 0)
        fitted = Reference(C=C, tol=1e-9, max_iter=10_000).fit((x[rows] - mean) * scale, y[rows])
        return fitted, mean, scale

    order = np.arange(80)
    np.random.RandomState(0).shuffle(order)
    scores = []
    for C in module.protocol.Cs:
        fitted, mean, scale = reference(order[16:], C)
        scores.append(fitted.score((x[order[:16]] - mean) * scale, y[order[:16]]))
    chosen = module.protocol.Cs[int(np.argmax(scores))]
    assert f"chosen C={chosen:g}, frozen backbone" in module.protocol_texts["logistic/top1"]
    fitted, mean, scale = reference(order, chosen)
    expected = fitted.predict_proba((queries - mean) * scale)
    found = module.scores(torch.tensor(queries).float()).softmax(1).detach().numpy()
    np.testing.assert_allclose(found[:, fitted.classes_.astype(int)], expected, atol=2e-3)
    top1 = fitted.score((queries - mean) * scale, labels)
    assert float(run.callback_metrics["logistic/top1"]) == pytest.approx(top1, abs=1 / 60)
    per_class = [(found.argmax(1) == labels)[labels == c].mean() for c in np.unique(labels)]
    assert float(run.callback_metrics["logistic/mean_per_class"]) == pytest.approx(np.mean(per_class))
    assert run.global_step == 0


def test_the_transfer_protocol_is_the_published_one() -> None:
    protocol = LOGISTIC_PROTOCOLS["transfer"]
    expected = 10 ** -np.linspace(-6, 5, 45)
    np.testing.assert_allclose(protocol.Cs, expected, rtol=1e-12)
    assert (protocol.max_iter, protocol.gtol, protocol.ftol) == (100, 1e-4, 2.2e-9)
    assert not protocol.standardise
    assert LOGISTIC_PROTOCOLS["converged"].Cs[::12] == (1e-5, 10.0)


@pytest.mark.parametrize("name", GOLDEN["validation_split"]["sets"])
def test_the_held_out_rows_are_the_published_ones(name: str) -> None:
    golden = GOLDEN["validation_split"]["sets"][name]
    held_out, rest = validation_rows(golden["images"], 0.2)
    assert (len(held_out), held_out[:5].tolist()) == (golden["val"], golden["first_val"])
    assert rest[:5].tolist() == golden["first_train"]
    digest = hashlib.sha256(np.sort(held_out).astype(np.int64).tobytes()).hexdigest()
    assert digest == golden["sha256_of_sorted_val_as_int64"]


def test_the_mean_over_classes_equals_the_published_one_and_leaves_out_a_class_without_images() -> None:
    golden = GOLDEN["mean_per_class"]
    accuracy = ClassAccuracy(9, torch.device("cpu"))
    accuracy.update(torch.eye(9)[torch.tensor(golden["predicted"])], torch.tensor(golden["target"]))
    found = accuracy.compute()
    assert found["mean_per_class"] == pytest.approx(golden["mean_per_class"], abs=1e-12)
    assert found["top1"] == pytest.approx(golden["top1"])
    accuracy = ClassAccuracy(3, torch.device("cpu"))
    accuracy.update(torch.eye(3)[torch.tensor([0, 0, 2, 1])], torch.tensor([0, 0, 0, 1]))
    assert accuracy.compute()["mean_per_class"] == pytest.approx((2 / 3 + 1) / 2), "2 was predicted, wrongly"


def test_frozen_means_frozen_and_its_checkpoint_gives_the_same_digits(weights: str, tmp_path: Path) -> None:
    module, data = logistic(weights), shapes(task="classify", train_size=80, test_size=60)
    before = digests(dict(module.backbone.state_dict()))
    run = fit(tmp_path, module, data=data)
    assert digests(dict(module.backbone.state_dict())) == before
    run.save_checkpoint(tmp_path / "last.ckpt")
    Path(weights).unlink()
    again = LogisticEvaluation.load_from_checkpoint(tmp_path / "last.ckpt")
    for _ in range(2):
        (found,) = trainer(tmp_path, max_epochs=1).test(again, datamodule=data, verbose=False)
        assert found["logistic/top1"] == float(run.callback_metrics["logistic/top1"])
        assert found["logistic/mean_per_class"] == float(run.callback_metrics["logistic/mean_per_class"])


def test_two_processes_equal_one(weights: str, tmp_path: Path) -> None:
    found = []
    for name, options in (("one", {}), ("two", {"devices": 2, "strategy": "ddp_fork"})):
        module, data = logistic(weights, C=0.1), shapes(task="classify", train_size=41, test_size=19)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit(tmp_path, module, ResumableCheckpoint(dirpath=tmp_path / name), data=data, **options)
        found.append(torch.load(tmp_path / name / "last.ckpt", weights_only=True))
    one, two = (saved["state_dict"]["classifier.weight"] for saved in found)
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    assert one.abs().max() > 0.01
    assert found[0]["curve"] == found[1]["curve"]


def test_what_is_run_is_said(weights: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = logistic(weights)
    module.protocol = dataclasses.replace(module.protocol, Cs=(1e-9, 1e-3, 0.1), max_iter=3)
    with caplog.at_level("INFO"):
        fit(tmp_path, module)
    said = [record.message for record in caplog.records]
    assert any(line.startswith("reading the features of the training images") for line in said)
    assert any(line.startswith("logistic regression 1 of 3: C=1e-09, ") for line in said)
    assert any(line.startswith("logistic regression 3 of 3: C=0.1, 3 steps, top-1 0.") for line in said)
    result, protocol = module.summary()
    assert result.startswith(
        f"logistic top-1: {module.curve[-1][2]:.4f} on clean held-out images: the result"
    )
    assert "fits stopped at 3 steps, frozen backbone, weights " in protocol
    assert "C of 3 values from 1e-09 to 0.1 by the first best top-1 on 16 of 80 clean training" in protocol


def test_the_edge_of_the_search_is_warned_of(weights: str, tmp_path: Path) -> None:
    module = logistic(weights)
    module.protocol = dataclasses.replace(module.protocol, Cs=(1e-12, 1e-11))
    with pytest.warns(UserWarning, match="the best C of the search is its strongest penalty, 1e-12"):
        fit(tmp_path, module)


def test_one_class_is_nothing_to_tell_apart(weights: str, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "photos" / "cat" / f"{name}.png")
    data = ImageFolderDataModule(str(tmp_path / "photos"), task="classify", num_workers=0, image_size=16)
    for module in (logistic(weights, C=0.1), LinearEvaluation(weights, backbone="conv4")):
        with pytest.raises(
            DataError, match="the data has 1 class, and there is nothing to tell it from: set"
        ):
            fit(tmp_path, module, data=data)


def test_input_is_checked(weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="C must be a finite number > 0, got 0"):
        logistic(weights, C=0)
    with pytest.raises(ConfigError, match="protocol must be 'converged' or 'transfer', got 'imagenet'"):
        logistic(weights, protocol="imagenet")
    with pytest.raises(ConfigError, match=r"leave it out, --readouts\.logistic null"):
        fit(tmp_path, logistic(weights), Readouts(logistic=LogisticRegression()))
    few = shapes(task="classify", train_size=4, batch_size=2)
    with pytest.raises(DataError, match=r"4 labelled training images, too few .* --model\.C 0\.01"):
        fit(tmp_path, logistic(weights), data=few)
    module = logistic(weights, C=0.01)
    fit(tmp_path, module, data=few)
    assert "4 clean training images, C=0.01" in module.protocol_texts["logistic/top1"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs SciPy: pip install "mmcl-lightning\[evaluate\]"'):
        logistic(weights)


def test_the_precision_of_the_fit_is_said(weights: str, tmp_path: Path) -> None:
    module = logistic(weights, dtype="float32")
    fit(tmp_path, module)
    assert "loss in float32" in module.described
    with pytest.raises(ConfigError, match="dtype must be 'float64' or 'float32', got 'float16'"):
        logistic(weights, dtype="float16")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(
    number: int, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no step after which it could stop, and nothing to save."""
    own = LogisticEvaluation._choose_and_fit
    reached = []

    def stopped(self: Any, *args: Any) -> Any:
        os.kill(os.getpid(), number)
        reached.append(args)
        return own(self, *args)

    monkeypatch.setattr(LogisticEvaluation, "_choose_and_fit", stopped)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
    try:
        with pytest.raises(SystemExit) as stop:
            fit(tmp_path, logistic(weights), StopAtOnce(), ResumableCheckpoint(dirpath=tmp_path / "saved"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == []
    assert stop.value.code == (143 if number == signal.SIGTERM else 1)  # the command says 130
    assert not (tmp_path / "saved").exists()
