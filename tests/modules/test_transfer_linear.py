"""The linear transfer: what the published code does, on miniatures of its sets."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import randn
from runs import generators, shapes, trainer
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.metrics import confusion_matrix, precision_recall_curve

from mmcl_lightning.batches import split_labels
from mmcl_lightning.callbacks import ResumableCheckpoint
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import TransferDataModule
from mmcl_lightning.metrics import fit_each_class, fit_logistic
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import LogisticEvaluation
from mmcl_lightning.modules.measures import measure
from mmcl_lightning.modules.weights import digests


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("transfer")
    for name in ("dtd", "pets", "voc2007"):
        generators("fake_transfer").write(name, root)
    return root


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(0)
    torch.save(build_backbone("conv4").state_dict(), tmp_path / "b.pt")
    return str(tmp_path / "b.pt")


def data(name: str, root: Path, **options: Any) -> TransferDataModule:
    given = {"normalize": "none", "num_workers": 0, "image_size": 16, "task": "classify", "batch_size": 2}
    return TransferDataModule(name, str(root), **(given | options))


def logistic(weights: str, *Cs: float, **options: Any) -> LogisticEvaluation:
    module = LogisticEvaluation(weights, protocol="transfer", backbone="conv4", **options)
    if Cs:
        module.protocol = dataclasses.replace(module.protocol, Cs=Cs)
    return module


def fit(folder: Path, module: Any, source: Any, *callbacks: Any, **options: Any) -> Any:
    run = trainer(folder, *callbacks, max_epochs=1, limit_train_batches=2, limit_val_batches=1.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(module, datamodule=source)
    return run


def rows(module: Any, loader: Any) -> tuple[np.ndarray, torch.Tensor]:
    with torch.no_grad():
        parts = [(module(images), labels) for images, labels in loader]
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    return x.double().numpy(), y


def average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    precision, recall, _ = precision_recall_curve(labels, scores)  # ends in recall 0, precision 1
    return float(np.mean([precision[recall >= t].max() for t in np.linspace(0, 1, 11)]))


# The fits


def test_each_class_is_the_binary_fit_of_scikit_learn_at_twice_c() -> None:
    x = randn(60, 5, seed=1)
    targets = x @ randn(5, 3, seed=2) + randn(60, 3, seed=3) > 0.5
    model = fit_each_class(x, targets, 0.7, gtol=1e-8, ftol=0)
    for k in range(3):
        reference = Reference(C=1.4, tol=1e-10, max_iter=10_000).fit(x.numpy(), targets[:, k].numpy())
        np.testing.assert_allclose(model.weight[k].numpy(), reference.coef_[0], atol=1e-5)
        assert float(model.bias[k]) == pytest.approx(float(reference.intercept_[0]), abs=1e-5)


def test_each_class_starts_from_the_one_before_it() -> None:
    x, targets = randn(60, 5, seed=1), randn(60, 3, seed=3) > 0.3
    options: dict[str, Any] = {"max_iter": 3}
    before = None
    for k in range(3):
        before = fit_logistic(x, targets[:, k].long(), 2, 10.0, start=before, **options)
    first = fit_each_class(x, targets, 10.0, **options)
    assert before is not None
    torch.testing.assert_close(first.weight[2], before.weight[1] - before.weight[0])
    again = fit_each_class(x, targets, 1.0, start=first, **options)
    chained = fit_logistic(x, targets[:, 0].long(), 2, 1.0, start=before, **options)
    torch.testing.assert_close(again.weight[0], chained.weight[1] - chained.weight[0])
    assert not again.converged


def test_the_order_of_the_path_and_its_warm_starts_change_results() -> None:
    x, y = randn(40, 30, seed=5), torch.arange(40) % 4
    options: dict[str, Any] = {"max_iter": 5, "gtol": 1e-4}
    weak = fit_logistic(x, y, 4, 100.0, **options)
    from_weak = fit_logistic(x, y, 4, 1.0, start=weak, **options)
    cold = fit_logistic(x, y, 4, 1.0, **options)
    from_strong = fit_logistic(x, y, 4, 1.0, start=fit_logistic(x, y, 4, 0.01, **options), **options)
    for other in (cold, from_strong):
        assert (from_weak.weight - other.weight).abs().max() > 1e-3


def test_measures_equal_scikit_learn() -> None:
    y, scores = torch.arange(90) % 3, randn(90, 4, seed=6)
    y[5] = 3
    table = confusion_matrix(y.numpy(), scores.argmax(1).numpy())
    expected = float(np.mean(np.diag(table) / table.sum(1)))
    assert measure("mean_per_class", scores, y) == pytest.approx(expected, abs=1e-12)
    assert measure("top1", scores, y) == pytest.approx(np.trace(table) / 90, abs=1e-12)
    assert measure("mean_per_class", scores[:, :3], y.clamp_max(1)) < 1  # class 2 has no rows


# The evaluation


def test_a_set_with_its_own_validation_images_chooses_on_them(
    official: Path, weights: str, tmp_path: Path
) -> None:
    Cs = (1e4, 1.0, 1e-3)
    module, source = logistic(weights, *Cs), data("dtd", official)
    run = fit(tmp_path, module, source)
    x, y = rows(module, source.knn_dataloaders()[0])  # type: ignore[index]
    model, values = None, []
    for C in Cs:
        model = fit_logistic(torch.tensor(x[:12]), y[:12], 3, C, start=model, max_iter=100)
        values.append(float((model.scores(torch.tensor(x[12:])).argmax(1) == y[12:]).double().mean()))
    best = int(np.argmax(values))
    assert "on 12 of 24 clean training images" in module.described
    assert float(run.callback_metrics["logistic/chosen_C"]) == pytest.approx(Cs[best])
    assert float(run.callback_metrics["logistic/validation"]) == pytest.approx(values[best])
    final = fit_logistic(torch.tensor(x), y, 3, Cs[best], start=model, max_iter=100)
    assert module.classifier is not None
    torch.testing.assert_close(module.classifier.weight.double(), final.weight, rtol=1e-4, atol=1e-5)


def test_equal_best_values_take_the_weaker_penalty(weights: str, tmp_path: Path) -> None:
    module = logistic(weights, 1e3, 0.999e3, 0.998e3)
    fit(tmp_path, module, shapes(task="classify", train_size=80, test_size=60))
    assert module.choice["chosen_C"] == 1e3


def test_the_metric_of_the_set_decides_and_is_the_result(
    official: Path, weights: str, tmp_path: Path
) -> None:
    module, source = logistic(weights, 1e2, 1e-2), data("pets", official)
    run = fit(tmp_path, module, source)
    result, protocol = module.summary()
    value = float(run.callback_metrics["logistic/mean_per_class"])
    assert result.startswith(f"logistic mean per-class accuracy: {value:.4f} on clean held-out images")
    assert "by the first best mean per-class accuracy on 2 of 12 clean training images" in protocol
    assert list(module.protocol_texts) == ["logistic/mean_per_class"]
    assert "logistic/best_mean_per_class" in run.callback_metrics


def test_images_of_several_classes_equal_scikit_learn(official: Path, weights: str, tmp_path: Path) -> None:
    module, source = logistic(weights, C=1e-2), data("voc2007", official)
    module.protocol = dataclasses.replace(module.protocol, max_iter=5000, gtol=1e-8, ftol=0.0)
    run = fit(tmp_path, module, source)
    (x, joined), (queries, wanted) = (rows(module, loader) for loader in source.knn_dataloaders() or ())
    y, labels = split_labels(joined, 20).numpy(), split_labels(wanted, 20).numpy()
    expected = []
    for k in range(20):
        if labels[:, k].any():
            reference = Reference(C=2e-2, tol=1e-10, max_iter=10_000).fit(x, y[:, k])
            expected.append(average_precision(labels[:, k], reference.decision_function(queries)))
    assert float(run.callback_metrics["logistic/map_11point"]) == pytest.approx(np.mean(expected), abs=2e-3)
    assert "top1" not in " ".join(run.callback_metrics)
    assert module.summary()[0].endswith("on clean held-out images: the result")
    assert "each class against the rest" in module.described


def test_two_processes_equal_one_of_several_classes(official: Path, weights: str, tmp_path: Path) -> None:
    found = []
    for name, options in (("one", {}), ("two", {"devices": 2, "strategy": "ddp_fork"})):
        module, source = logistic(weights, C=1e-2), data("voc2007", official, test_subset=23)
        fit(tmp_path, module, source, ResumableCheckpoint(dirpath=tmp_path / name), **options)
        found.append(torch.load(tmp_path / name / "last.ckpt", weights_only=True))
    assert found[0]["curve"] == found[1]["curve"]
    assert 0.1 < found[0]["curve"][0][2] < 1


def test_test_alone_fits_and_gives_the_digits_of_a_fit(official: Path, weights: str, tmp_path: Path) -> None:
    source = data("dtd", official)
    run = fit(tmp_path, logistic(weights, 1.0, 1e-2), source)
    run.save_checkpoint(tmp_path / "last.ckpt")
    expected = float(run.callback_metrics["logistic/top1"])
    module = logistic(weights, 1.0, 1e-2)
    before = digests(dict(module.backbone.state_dict()))
    fitted = LogisticEvaluation.load_from_checkpoint(tmp_path / "last.ckpt")
    for judged in (module, module, fitted):
        (found,) = trainer(tmp_path, max_epochs=1).test(judged, datamodule=source, verbose=False)
        assert found["logistic/top1"] == expected
    assert digests(dict(module.backbone.state_dict())) == before
    assert fitted._frozen != {}, "of the checkpoint"


def test_the_recipe_runs_by_test_without_a_warning_of_random_weights(
    official: Path, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--data.image_size=16", "--data.num_workers=0", "--trainer.accelerator=cpu", "--model.C=0.1"]
    options = ["--data.dataset=voc2007", f"--data.root={official}", "--data.normalize=cifar", *small]
    given = [f"--model.checkpoint={weights}", "--model.backbone=conv4"]
    main(["test", "--config", "transfer_linear", *given, *options])
    shown = capsys.readouterr()
    assert "logistic/map_11point" in shown.out
    assert "random weights" not in shown.err
    with pytest.raises(SystemExit):
        main(["test", "--config", "transfer_linear", *given, *options[1:], "--data.dataset=flower"])
    assert "did you mean flowers?" in capsys.readouterr().err
