"""Signs of health: right values, one pass over the images, warnings."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from runs import FlatNet, Plain, events, image_loader, mmcl, scalars, shapes, trainer
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmcl_lightning.callbacks import OnlineKNN, Readouts
from mmcl_lightning.datamodules import ImageFolderDataModule, ShapesDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.features import collect_features, evaluating
from mmcl_lightning.modules import MMCL
from mmcl_lightning.readouts import KNN, Health

BANK, QUERY = image_loader(40, seed=1), image_loader(21, seed=2)


def rank_by_svd(rows: Tensor) -> float:
    p = np.linalg.svd(rows.double().numpy(), compute_uv=False)
    p = p / p.sum() + 1e-7
    return math.exp(-(p * np.log(p)).sum())


def uniformity_in_a_loop(rows: Tensor) -> float:
    unit = normalize(rows.double(), dim=1)
    pairs = [(i, j) for i in range(len(unit)) for j in range(i)]
    return math.log(
        sum(math.exp(-2 * float((unit[i] - unit[j]).square().sum())) for i, j in pairs) / len(pairs)
    )


def test_values_are_those_of_the_definitions(tmp_path: Path) -> None:
    data, module = shapes(), mmcl()
    health = Health(images=9, view_images=13)
    run = trainer(tmp_path, Readouts(health=health), log=True)
    run.fit(module, data)
    rows = {kind: collect_features(run, module, data.knn_dataloaders()[0], kind)[0][::4] for kind in "hz"}
    with evaluating(module):  # two batches of 8 reach 13 images
        views = [batch[0] for batch, _ in zip(data.val_dataloader(), range(2), strict=False)]
        pairs = [[normalize(module.projection_head(module(x)), dim=1) for x in two] for two in views]
    expected = {f"health/rankme_{kind}": rank_by_svd(x) for kind, x in rows.items()}
    expected |= {f"health/std_{k}": float(normalize(x, dim=1).std(0).mean()) for k, x in rows.items()}
    expected["health/uniformity"] = uniformity_in_a_loop(rows["z"])
    expected["health/alignment"] = float(torch.cat([(a - b).square().sum(1) for a, b in pairs]).mean())
    for name, value in expected.items():
        assert float(run.callback_metrics[name]) == pytest.approx(value, rel=2e-4, abs=1e-5), name
        assert len(scalars(tmp_path, name)) == 2  # before training and after the epoch
    assert health.protocol_texts["health"] == (
        "RankMe of h: 8 images, 256 features, at most 8; RankMe of z: 8 images, 8 features, at most 8; "
        "uniformity and alignment: z; alignment: 16 images"
    )
    log = events(tmp_path)
    text = log.Tensors("health/protocol/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == health.protocol_texts["health"]
    histogram = log.Histograms("health/std_per_dimension_z")[-1].histogram_value
    assert histogram.num == 8
    assert histogram.sum / 8 == pytest.approx(expected["health/std_z"], rel=1e-4)


class Counting(MMCL):
    """Counts the images that pass it in evaluation mode."""

    passed = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passed += len(x) * (not self.training)
        return super().forward(x)


def passed(folder: Path, readouts: Readouts, epochs: int = 1) -> tuple[int, Trainer]:
    torch.manual_seed(0)
    module = Counting(backbone=FlatNet(), projection_head="cifar", hidden_dim=16, output_dim=8)
    run = trainer(folder, readouts, max_epochs=epochs)
    run.fit(module, shapes())
    return module.passed, run


def test_both_together_run_the_images_once_in_either_order(tmp_path: Path) -> None:
    def health(**options: Any) -> Health:
        return Health(**({"images": 16, "view_images": 0} | options))

    bank, query = 32, 20
    alone, run = passed(tmp_path, Readouts(health=health()))
    assert alone == 2 * 16  # only the images that it reads
    values = {name: float(x) for name, x in run.callback_metrics.items() if name.startswith("health")}
    assert len(values) == 5
    assert passed(tmp_path, OnlineKNN(k=5))[0] == 2 * (bank + query)
    for readouts in (Readouts(knn=KNN(k=5), health=health()), Readouts(others=[health(), KNN(k=5)])):
        together, run = passed(tmp_path, readouts)
        assert together == 2 * (bank + query)
        for name, value in values.items():
            assert float(run.callback_metrics[name]) == pytest.approx(value, rel=1e-4), name
    # Views come on top, and readouts at different epochs do not share: 0, 1, 2 and 0, 2.
    with_views = Readouts(knn=KNN(k=5), health=health(view_images=8))
    assert passed(tmp_path, with_views)[0] == 2 * (bank + query + 16)
    often, seldom = health(), KNN(k=5, every_n_epochs=2)
    assert passed(tmp_path, Readouts(health=often, knn=seldom), epochs=2)[0] == 2 * (bank + query) + 16


def test_someone_elses_module_and_loaders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batches = [(torch.rand(6, 3, 16, 16), torch.rand(6, 3, 16, 16)) for _ in range(2)]
    readouts = Readouts(
        health=Health(),
        bank_loader=[{"image": x} for x, _ in batches],
        view_loader=[(list(x), None) for x in batches],
    )
    run, module = trainer(tmp_path, readouts), Plain()
    run.fit(module)
    h = torch.cat([collect_features(run, module, [[x]])[0] for x, _ in batches])
    other = torch.cat([collect_features(run, module, [[y]])[0] for _, y in batches])
    found = {name: float(x) for name, x in run.callback_metrics.items()}
    assert set(found) == {f"health/{name}" for name in ("rankme_h", "std_h", "uniformity", "alignment")}
    assert found["health/rankme_h"] == pytest.approx(rank_by_svd(h), rel=1e-4)
    distance = (normalize(h, dim=1) - normalize(other, dim=1)).square().sum(1).mean()
    assert found["health/alignment"] == pytest.approx(float(distance), rel=1e-4)
    both = Readouts(health=Health(), knn=KNN(k=5), bank_loader=BANK, query_loader=QUERY)
    run = trainer(tmp_path, both, max_epochs=2)
    run.fit(module)
    assert "health/rankme_h" in run.callback_metrics
    assert "health/alignment" not in run.callback_metrics
    assert sum("no two views" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(ConfigError, match="health needs bank_loader, or a datamodule"):
        trainer(tmp_path, Readouts(health=Health())).fit(Plain())


def test_images_without_labels_are_enough(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    for index in range(20):
        Image.fromarray(g.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0)
    last = Health()
    for readouts in (
        Readouts(health=Health()),
        Readouts(others=[Health(), KNN()]),
        Readouts(knn=KNN(), health=last),
    ):
        run = trainer(tmp_path, readouts)
        run.fit(mmcl(), data)
        assert 1 < float(run.callback_metrics["health/rankme_h"]) <= 18
    assert "18 images, 256 features" in last.protocol_texts["health"]  # two are held out


def test_alignment_is_of_training_images_where_none_is_held_out(tmp_path: Path) -> None:
    class NothingHeldOut(ShapesDataModule):
        def val_dataloader(self) -> list[Any]:  # type: ignore[override]
            return []

    data = NothingHeldOut(32, 20, 16, batch_size=8, eval_batch_size=16, num_workers=0)
    module, health = mmcl(), Health(view_images=9)
    run = trainer(tmp_path, Readouts(health=health))
    run.fit(module, data)
    assert health.protocol_texts["health"].endswith("alignment: 16 images")
    with evaluating(module):
        pairs = [
            [module.projection_head(module(x)) for x in batch[0]]
            for batch, _ in zip(data.train_dataloader(), range(2), strict=False)
        ]
    by_hand = torch.cat([(normalize(a) - normalize(b)).square().sum(1) for a, b in pairs]).mean()
    assert float(run.callback_metrics["health/alignment"]) == pytest.approx(float(by_hand), rel=1e-4)


class Collapse(Callback):
    """Takes all but one direction, or all spread, from the features."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with torch.no_grad():
            pl_module.net[4].weight.mul_(1e-3 if self.kind == "spread" else 1.0)
            pl_module.net[4].bias.fill_(1.0 if self.kind == "spread" else 0.0)
            if self.kind == "rank":
                pl_module.net[4].weight[1:] = pl_module.net[4].weight[:1]


@pytest.mark.parametrize("kind", ["rank", "spread", "none"])
def test_collapse_is_said_once_and_not_of_random_weights(kind: str, tmp_path: Path) -> None:
    class Still(Plain):
        """Starts collapsed, and is not trained."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return 0.0 * super().training_step(batch, batch_idx)

    module = Still()
    if kind != "none":
        nn.init.zeros_(module.net[4].weight)
        nn.init.ones_(module.net[4].bias)
    readouts = Readouts(health=Health(view_images=0), bank_loader=BANK)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(tmp_path, readouts, max_steps=0).fit(module)
        assert not any("collapsed" in str(warning.message) for warning in said)
        if kind != "none":
            module = Still()
        trainer(tmp_path, Collapse(kind), readouts, max_epochs=3).fit(module)
    messages = [str(warning.message) for warning in said if "collapsed" in str(warning.message)]
    if kind == "none":
        assert messages == []
    else:
        assert len(messages) == 1
        assert messages[0].startswith("h has collapsed after 3 steps: effective rank 1")


def test_values_are_there_after_a_resume_and_under_validate(tmp_path: Path) -> None:
    readouts, module, data = Readouts(health=Health(view_images=0)), mmcl(), shapes()
    run = trainer(tmp_path, readouts, limit_val_batches=1.0)
    run.fit(module, data)
    run.save_checkpoint(tmp_path / "end.ckpt")
    (result,) = run.validate(module, data, verbose=False)
    values = readouts.state_dict()["values"]["health"]
    assert result["health/rankme_z"] == pytest.approx(values["health/rankme_z"])
    resumed = Readouts(every_n_epochs=5, health=Health(view_images=0))
    run = trainer(tmp_path, resumed, max_epochs=3, log=True)
    run.fit(mmcl(), shapes(), ckpt_path=str(tmp_path / "end.ckpt"))
    assert [step for step, _ in scalars(tmp_path, "health/rankme_z")] == [11]  # not again before training


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"images": 1}, "images must be an integer >= 2, got 1"),
        ({"view_images": -1}, "view_images must be an integer >= 0"),
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Health(**options)
