"""SVCCrossValidation: its numbers are those of scikit-learn on the features that the module gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import Plain, shapes, simclr, trainer, tu, write_tu
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.readouts import SVCCrossValidation

GRAPHS: dict[str, Any] = {"backbone": "gin:7", "projection_head": "moco"}
FEW: dict[str, Any] = {"C": [0.1, 10.0], "folds": 3, "inner_folds": 2}


def reference(h: np.ndarray, y: np.ndarray, seed: int, scale: bool) -> list[float]:
    found = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=seed).split(h, y):
        x, q = h[train], h[test]
        if scale:
            scaler = StandardScaler().fit(x)
            x, q = scaler.transform(x), scaler.transform(q)
        search = GridSearchCV(SVC(), {"C": [0.1, 10.0]}, cv=2, scoring="accuracy").fit(x, y[train])
        found.append(accuracy_score(y[test], search.predict(q)))
    return found


@pytest.mark.parametrize(("seed", "scale"), [(None, False), (5, False)])
def test_equals_scikit_learn_on_the_features(seed: int | None, scale: bool, tmp_path: Path) -> None:
    data, module = tu(tmp_path, seed=3), simclr(**GRAPHS)
    run = trainer(tmp_path, Readouts(cv=SVCCrossValidation(seed=seed, scale=scale, **FEW)))
    run.fit(module, data)
    module.eval()
    with torch.no_grad():
        parts = [(module(view), labels) for view, labels in data.labelled_dataloader()]
    h, y = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    expected = reference(h, y.astype(int), 3 if seed is None else seed, scale)
    assert run.callback_metrics["cv/svc_accuracy"].item() == pytest.approx(np.mean(expected), abs=1e-6)
    assert run.callback_metrics["cv/svc_std"].item() == pytest.approx(np.std(expected), abs=1e-6)


def test_scaled_features_are_scaled_within_the_folds() -> None:
    generator = np.random.default_rng(0)
    h, y = generator.normal(size=(60, 4)) * [1, 100, 0.01, 1], np.arange(60) % 2
    h[:, 2] += y / 100
    machine = SVCCrossValidation(scale=True, **FEW)
    assert machine._accuracies(torch.tensor(h), torch.tensor(y), 7) == reference(h, y, 7, True)


def test_permuted_labels_fall_to_the_share_of_the_largest_class() -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(240) % 4 == 0).long()  # three quarters are of class 0
    h = torch.randn(240, 5, generator=generator) + 3 * y[:, None]
    machine = SVCCrossValidation(C=[0.01, 1.0])
    assert np.mean(machine._accuracies(h, y, 0)) > 0.95
    shuffled = y[torch.randperm(240, generator=generator)]
    assert np.mean(machine._accuracies(h, shuffled, 0)) == pytest.approx(0.75, abs=0.03)


def test_the_untrained_network_stands_beside_every_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readout = SVCCrossValidation(**FEW)
    callback = Readouts(cv=readout)
    run = trainer(tmp_path, callback, max_epochs=2, log=True)
    run.fit(simclr(**GRAPHS), tu(tmp_path))
    (floor, _, last) = readout.curve
    assert (floor[0], last[0]) == (0, 2)
    (line,) = readout.summary()
    value = f"{last[1]:.3f} +- {last[2]:.3f} over folds, untrained {floor[1]:.3f}"
    assert line.startswith(f"SVC:          {value}")
    assert line.endswith("(SVC (RBF, gamma scale) on h, 3 folds, C of 2 from 0.1 to 10 by 2 folds, 24 items)")
    again = SVCCrossValidation(**FEW)
    assert again.summary() == []
    again.load_state_dict(readout.state_dict())
    assert again.summary() == [line]
    alone = SVCCrossValidation(**FEW)
    run = trainer(tmp_path, Readouts(every_n_epochs=5, at_start=False, cv=alone), max_epochs=2)
    run.fit(simclr(**GRAPHS), tu(tmp_path))
    assert "untrained" not in alone.summary()[0]
    assert [epoch for epoch, *_ in alone.curve] == [2]  # it takes long, and so does not read after the first


def test_all_labelled_images_are_read_too(tmp_path: Path) -> None:
    readout = SVCCrossValidation(folds=2, inner_folds=2, C=[1.0])
    trainer(tmp_path, Readouts(cv=readout)).fit(simclr(), shapes())
    assert readout.protocol_texts["cv/svc_accuracy"].endswith("by 2 folds, 52 items")


def test_without_labels_it_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (write_tu(tmp_path) / "MUTAG_graph_labels.txt").unlink()
    run = trainer(tmp_path, Readouts(cv=SVCCrossValidation()), max_epochs=2)
    with pytest.warns(UserWarning, match="no k-NN and no cross-validation"), caplog.at_level("INFO"):
        run.fit(simclr(**GRAPHS), tu(tmp_path))
    assert "cv/svc_accuracy" not in run.callback_metrics
    assert caplog.text.count("there are no labelled items to read") == 1
    with pytest.raises(ConfigError, match=r"needs a datamodule with labelled_dataloader\(\)"):
        trainer(tmp_path, Readouts(cv=SVCCrossValidation())).fit(Plain())


def test_fewer_graphs_of_a_class_than_folds(tmp_path: Path) -> None:
    write_tu(tmp_path, graphs=16)
    with pytest.raises(DataError, match=r"rarest of 2 classes has 8 labelled items, too few for 10 folds"):
        trainer(tmp_path, Readouts(cv=SVCCrossValidation())).fit(simclr(**GRAPHS), tu(tmp_path))
    readout = SVCCrossValidation(folds=8, inner_folds=8)
    with pytest.raises(DataError, match="too few for 8 folds with 8 within"):
        trainer(tmp_path, Readouts(cv=readout)).fit(simclr(**GRAPHS), tu(tmp_path))
    file = tmp_path / "MUTAG" / "raw" / "MUTAG_graph_labels.txt"
    file.write_text("1\n" * 16)
    with pytest.raises(DataError, match="two classes or more, and there is one"):
        trainer(tmp_path, Readouts(cv=SVCCrossValidation())).fit(simclr(**GRAPHS), tu(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 1}, "folds must be an integer >= 2"),
        ({"inner_folds": 1}, "inner_folds must be an integer >= 2"),
        ({"C": []}, "C must be a list of numbers > 0"),
        ({"C": 1.0}, "C must be a list of numbers > 0"),
        ({"C": [1.0, 0.0]}, "C must be a finite number > 0, got 0.0"),
        ({"scale": 1}, "scale must be True or False"),
        ({"seed": -1}, "seed must be an integer >= 0"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SVCCrossValidation(**options)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs scikit-learn: pip install "mmcl-lightning\[graph\]"'):
        SVCCrossValidation()
