"""The logistic readout: its number is that of scikit-learn on the features that the module gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import Plain, shapes, simclr, trainer
from sklearn.linear_model import LogisticRegression as Reference

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.readouts import KNN, LogisticRegression


def _features(module: Any, loader: Any) -> tuple[np.ndarray, np.ndarray]:
    module.eval()
    with torch.no_grad():
        parts = [(module(images), labels) for images, labels in loader]
    return tuple(torch.cat(part).numpy() for part in zip(*parts, strict=True))  # type: ignore[return-value]


def test_equals_scikit_learn_on_the_features(tmp_path: Path) -> None:
    data, module, readout = shapes(train_size=80, test_size=60), simclr(), LogisticRegression(C=0.1)
    run = trainer(tmp_path, Readouts(logistic=readout, knn=KNN(k=5)), max_epochs=2)
    run.fit(module, data)
    bank, query = data.knn_dataloaders()
    (x, y), (q, labels) = _features(module, bank), _features(module, query)
    mean, std = x.mean(0), x.std(0, ddof=1)
    scale = np.where(std > 0, 1 / np.where(std > 0, std, 1), 0)
    reference = Reference(C=0.1, tol=1e-8, max_iter=5000).fit((x - mean) * scale, y)
    expected = reference.score((q - mean) * scale, labels)
    assert run.callback_metrics["logistic/top1"].item() == pytest.approx(expected, abs=1 / 60 + 1e-9)
    assert "80 clean training images, 60 queries" in readout.protocol_texts["logistic/top1"]


def test_validate_reads_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trainer validates in inference mode, in which nothing has a gradient."""
    module, data, readout = simclr(), shapes(), LogisticRegression()
    run = trainer(tmp_path, Readouts(logistic=readout), limit_val_batches=1)
    run.fit(module, data)
    (summary,) = readout.summary()
    assert summary.startswith(f"Logistic:     {readout.top1:.3f}  (logistic regression on standardised h")
    (found,) = run.validate(module, data)
    assert found["logistic/top1"] == pytest.approx(readout.top1)


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    weights = []
    for callbacks in ([], [Readouts(logistic=LogisticRegression())]):
        module = simclr()
        trainer(tmp_path, *callbacks, max_epochs=2).fit(module, shapes())
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)


def test_without_labels_or_a_datamodule(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs bank_loader and query_loader, or a datamodule"):
        trainer(tmp_path, Readouts(logistic=LogisticRegression())).fit(Plain())
    with pytest.raises(ConfigError, match="C must be a finite number > 0, got 0"):
        LogisticRegression(C=0)


def test_without_scipy_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs SciPy: pip install "mmcl-lightning\[evaluate\]"'):
        LogisticRegression()
