"""The embedding for TensorBoard's projector: features, labels and thumbnails of the same images."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import Plain, image_loader, mmcl, shapes, trainer

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.features import collect_features
from mmcl_lightning.readouts import Embedding, Health


def test_the_embedding_has_features_labels_and_sprites(tmp_path: Path) -> None:
    data, module = shapes(), mmcl()
    readouts = Readouts(health=Health(), embedding=Embedding(11, every_n_epochs=2))
    run = trainer(tmp_path, readouts, log=True, max_epochs=3)
    run.fit(module, data)
    (folder,) = {path.parents[2] for path in tmp_path.rglob("tensors.tsv")}
    assert sorted(p.parent.relative_to(folder).as_posix() for p in folder.rglob("tensors.tsv")) == [
        "00008/h", "00008/z", "00012/h", "00012/z",
    ]  # fmt: skip
    rows = [collect_features(run, module, data.knn_dataloaders()[0], kind) for kind in "hz"]
    for kind, (features, labels) in zip("hz", rows, strict=True):
        with open(folder / "00012" / kind / "tensors.tsv") as file:
            written = torch.tensor([[float(x) for x in line] for line in csv.reader(file, delimiter="\t")])
        torch.testing.assert_close(written, features[::3], rtol=1e-4, atol=1e-5)
        names = (folder / "00012" / kind / "metadata.tsv").read_text().split()
        assert names == [data.class_names[label] for label in labels[::3]]
    sprite = np.asarray(Image.open(folder / "00012" / "h" / "sprite.png"))
    assert sprite.shape == (4 * 32, 4 * 32, 3)  # 11 thumbnails of 32 pixels
    first = next(iter(data.knn_dataloaders()[0]))[0][0]  # 16 pixels
    small = (
        torch.from_numpy(sprite[:32, :32] / 255.0)
        .permute(2, 0, 1)
        .unflatten(1, (16, 2))
        .unflatten(3, (16, 2))
    )
    correlation = torch.corrcoef(torch.stack([small.mean(dim=(2, 4)).flatten().float(), first.flatten()]))[
        0, 1
    ]
    assert correlation > 0.95
    config = (folder / "projector_config.pbtxt").read_text()
    assert config.count("embeddings") == 4
    assert "00012/z/sprite.png" in config


def test_embedding_of_unlabelled_images_without_class_names(tmp_path: Path) -> None:
    labels = torch.arange(40) % 3 - 1
    readouts = Readouts(embedding=Embedding(4), bank_loader=image_loader(40, seed=1, labels=labels))
    trainer(tmp_path, readouts, log=True).fit(Plain())
    (path,) = tmp_path.rglob("metadata.tsv")
    assert path.read_text().split() == ["unlabelled", "0", "1", "unlabelled"]


def test_without_tensorboard_it_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    embedding = Embedding(4, every_n_epochs=1)
    trainer(tmp_path, Readouts(embedding=embedding), max_epochs=2).fit(mmcl(), shapes())
    assert sum("needs a TensorBoardLogger" in record.getMessage() for record in caplog.records) == 1
    assert list(tmp_path.rglob("*.tsv")) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"images": 1}, "images must be an integer >= 2, got 1"),
        ({"images": -1}, "images must be an integer >= 2, got -1"),
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Embedding(**options)
