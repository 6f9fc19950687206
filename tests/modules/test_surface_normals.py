"""Surface normals: a decoder learns them from features that stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import image_loader, trainer, write_normals
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mmcl_lightning.callbacks import Ledger
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import NormalsDataModule
from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import AngularErrors, angular_error
from mmcl_lightning.models import feature_map
from mmcl_lightning.modules import SurfaceNormals
from mmcl_lightning.modules.weights import digests

RIGHT, UP = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


@pytest.fixture
def data(tmp_path: Path) -> NormalsDataModule:
    write_normals(tmp_path / "pairs")
    return dataset(tmp_path)


def dataset(folder: Path, **options: Any) -> NormalsDataModule:
    root = str(folder / "pairs")
    return NormalsDataModule(
        root, **({"short_sides": (32,), "eval_short_side": 32, "num_workers": 0} | options)
    )


def pairs(count: int, places: int, value: float) -> DataLoader[Any]:
    """One batch of random images, with normals of one value."""
    images, normals = torch.rand(count, 3, 32, 32), torch.full((count, 3, places, places), value)
    return DataLoader(TensorDataset(images, normals), batch_size=count)


def normals(**options: Any) -> SurfaceNormals:
    torch.manual_seed(0)
    small = {"checkpoint": "random", "codes": 2, "hidden": 8, "backbone": "resnet18"}
    return SurfaceNormals(**(small | options))


def fitted(folder: Path, data: Any, *callbacks: Callback, module: Any = None, **options: Any) -> Any:
    module = normals() if module is None else module
    run = trainer(folder, *callbacks, **({"limit_val_batches": 1.0, "max_epochs": 8} | options))
    run.fit(module, datamodule=data)
    return module


def test_it_learns_and_the_backbone_stays(
    data: NormalsDataModule, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = normals()
    before = digests(module.backbone.state_dict())
    fitted(tmp_path, data, Ledger(str(tmp_path)), module=module)
    assert digests(module.backbone.state_dict()) == before
    assert f"the backbone is unchanged: {len(before)} tensors" in caplog.text
    found = module.codebook[module.codebook[:, 0].argsort(descending=True)]
    assert torch.allclose(found, torch.tensor([RIGHT, UP]), atol=0.01)
    step, values = module.result
    assert step == 16
    assert values["median_degrees"] < 30  # of a constant normal 45
    assert module.summary()[0].endswith(f"mean {values['mean_degrees']:.2f}°: the result")
    record = json.loads((tmp_path / "ledger.json").read_text())
    metric = record["metrics"]["normals/median_degrees"]
    assert metric["smaller_is_better"]
    assert metric["curve"][-1][3] == pytest.approx(values["median_degrees"], rel=1e-4)
    assert not record["metrics"]["normals/within_30"]["smaller_is_better"]
    text = record["protocols"]["normals/within_22.5"]
    assert (
        "2 codes by k-means of the training normals, SGD lr=0.02 wd=0.0001 polynomial, batch 2, 16 st" in text
    )
    assert "ShortSide(side=32" in text


def test_test_is_the_metric_and_twice_the_same(data: NormalsDataModule, tmp_path: Path) -> None:
    module = fitted(tmp_path, data, max_epochs=1).eval()
    errors = AngularErrors()
    with torch.no_grad():
        for images, expected in data.test_dataloader():
            scores = module.decoder(feature_map(module.backbone, images))
            shares = F.interpolate(scores, expected.shape[2:], mode="bilinear").softmax(1)
            mean = (shares[:, :, None] * module.codebook[None, :, :, None, None]).sum(1)
            valid = expected.norm(dim=1) > 0
            errors.update(angular_error(mean.movedim(1, 3)[valid], expected.movedim(1, 3)[valid]))
            assert torch.allclose(module(images)[:, :, 0, 0].norm(dim=1), torch.ones(1))
    assert int(errors.counts.sum()) == 3 * 29 * 40
    expected = {f"normals/{name}": value for name, value in errors.compute().items()}
    for name in ("median", "mean"):
        expected[f"normals/{name}_degrees"] = expected.pop(f"normals/{name}")
    runs = [trainer(tmp_path).test(module, datamodule=data, verbose=False)[0] for _ in range(2)]
    assert runs[0] == runs[1] == pytest.approx(expected, rel=1e-3)


def test_the_loss_is_over_places_with_a_normal(data: NormalsDataModule, tmp_path: Path) -> None:
    losses = []

    class Compare(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            images, codes = batch[0], (batch[1][:, 1] > batch[1][:, 0]).long()
            codes[batch[1].norm(dim=1) == 0] = -1
            if pl_module.codebook[0, 1] > 0.5:  # the first code is up
                codes = torch.where(codes < 0, codes, 1 - codes)
            assert not pl_module.backbone.training
            assert pl_module.decoder.training
            with torch.random.fork_rng():
                losses.append(float(F.cross_entropy(pl_module.scores(images), codes, ignore_index=-1)))

    class Seen(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
            assert float(outputs["loss"]) == pytest.approx(losses[-1], rel=1e-5)

    fitted(tmp_path, data, Compare(), Seen(), max_epochs=1)
    assert len(losses) == 2


def test_optimizer(data: NormalsDataModule, tmp_path: Path) -> None:
    module = fitted(tmp_path, data, max_steps=4, max_epochs=-1)
    (optimizer,), decayed = [module.trainer.optimizers[0]], {}
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.02, 0.02]
    assert optimizer.param_groups[0]["momentum"] == 0.9
    for group in optimizer.param_groups:
        decayed |= {id(weight): group["weight_decay"] for weight in group["params"]}
    assert {id(weight) for weight in module.decoder.parameters()} == set(decayed)
    for weight in module.decoder.parameters():
        assert decayed[id(weight)] == (1e-4 if weight.ndim == 4 else 0.0)


def test_a_run_goes_on_and_a_file_has_all(data: NormalsDataModule, tmp_path: Path) -> None:
    whole = fitted(tmp_path / "a", data, max_steps=4, max_epochs=-1)
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = trainer.global_step >= 2

    fitted(tmp_path / "b", dataset(tmp_path), saver, Stop(), max_steps=4, max_epochs=-1, min_epochs=0)
    path = tmp_path / "step=2.ckpt"
    resumed = normals()
    run = trainer(tmp_path / "c", limit_val_batches=1.0, max_steps=4, max_epochs=-1)
    torch.manual_seed(5)
    run.fit(resumed, datamodule=dataset(tmp_path), ckpt_path=path)
    assert resumed.result[0] == whole.result[0] == 4
    assert torch.equal(resumed.codebook, whole.codebook)
    loaded = SurfaceNormals.load_from_checkpoint(path)
    assert torch.equal(loaded.codebook, whole.codebook)
    assert loaded.checkpoint == "random"
    (values,) = trainer(tmp_path).test(loaded, datamodule=dataset(tmp_path), verbose=False)
    assert 0 < values["normals/median_degrees"] < 180
    np.save(tmp_path / "c.npy", np.eye(3)[1:])
    other = normals(codebook=str(tmp_path / "c.npy"))
    with pytest.raises(
        ConfigError, match=r"with another codebook than that of model\.codebook: leave it out"
    ):
        trainer(tmp_path).test(other, datamodule=dataset(tmp_path), ckpt_path=path)


def test_a_changed_backbone_fails_the_run(data: NormalsDataModule, tmp_path: Path) -> None:
    class Writes(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            pl_module.backbone.layer2[0].bn1.running_mean[3] += 1e-3

    with pytest.raises(
        NumericalError, match=r"1 of 120 tensors, the first being layer2\.0\.bn1\.running_mean"
    ):
        fitted(tmp_path, data, Writes(), max_epochs=1)


def test_codebooks_from_files(data: NormalsDataModule, tmp_path: Path) -> None:
    path = tmp_path / "codes.npy"
    np.save(path, np.array([UP, RIGHT]))
    module = fitted(tmp_path, data, module=normals(codebook=str(path)), max_epochs=1)
    assert module.codebook.tolist() == [list(UP), list(RIGHT)]
    for values, why in (
        (np.ones((2, 4)), r"must hold numbers \(K, 3\), got \(2, 4\) of type float64"),
        (np.array([["a", "b", "c"]]), r"must hold numbers \(K, 3\), got \(1, 3\) of type <U1"),
        (np.eye(3), r"has 3 normals, and --model\.codes is 2: set it to 3"),
        (
            np.eye(3)[:2] * [[1.0], [2.0]],
            r"must hold unit vectors, and their lengths are from 1 to 2: divide",
        ),
        (np.full((2, 3), np.nan), r"must hold unit vectors"),
        (np.array([{}, 1]), r"cannot be read as a \.npy file of numbers"),
    ):
        np.save(path, values, allow_pickle=True)
        with pytest.raises(ConfigError, match=why):
            normals(codebook=str(path))
    with pytest.raises(ConfigError, match=r"c\.pklz is a pickle, which can run code, and is not read"):
        normals(codebook="c.pklz")
    with pytest.raises(
        ConfigError, match=r"no\.npy cannot be read as a \.npy file of numbers \(.*No such file"
    ):
        normals(codebook="no.npy")


def test_bad_input_is_said(data: NormalsDataModule, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an evaluation needs weights"):
        SurfaceNormals()
    with pytest.raises(ConfigError, match="such as resnet50, and this backbone is mmcl_lightning's Conv4"):
        normals(backbone="conv4")
    for option in ("codes", "hidden"):
        with pytest.raises(ConfigError, match=f"{option} must be an integer >= "):
            normals(**{option: 0})
    for option in ("lr", "weight_decay"):
        with pytest.raises(ConfigError, match=f"{option} must be a finite number >= 0"):
            normals(**{option: -1.0})
    with pytest.raises(
        ConfigError, match="there is no codebook yet: a fit makes it; give --ckpt_path of one"
    ):
        trainer(tmp_path).test(normals(), datamodule=data, verbose=False)
    with pytest.raises(ConfigError, match="predict writes representations, and SurfaceNormals has none"):
        trainer(tmp_path).predict(normals(), data)
    module = normals()
    module.codebook.copy_(torch.tensor([UP, RIGHT]))
    with pytest.raises(DataError, match=r"expected a batch \(images, normals\), .*: use NormalsDataModule"):
        trainer(tmp_path).test(module, dataloaders=image_loader(20, 0), verbose=False)
    with pytest.raises(ConfigError, match=r"has no training_normals\(\) to make a codebook of"):
        trainer(tmp_path).fit(normals(), train_dataloaders=image_loader(20, 0))
    bare = pairs(2, 4, 0.0)
    with pytest.raises(DataError, match="no pixel of the training images has a valid normal"):
        trainer(tmp_path).fit(module, train_dataloaders=bare)
    with pytest.raises(DataError, match="no pixel has a valid normal"):
        trainer(tmp_path).test(module, dataloaders=bare, verbose=False)
    coarse = pairs(2, 2, 1.0)
    with pytest.raises(
        ShapeError, match="expected normals of 4 x 4 places, an eighth of the images, got 2 x 2"
    ):
        trainer(tmp_path).fit(module, train_dataloaders=coarse)
    with pytest.raises(
        ShapeError, match=r"2 images or more in training, got 1: .* set data\.batch_size to 2"
    ):
        trainer(tmp_path).fit(module, train_dataloaders=pairs(1, 4, 1.0))


def test_the_command_line_and_its_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_normals(tmp_path / "kitchen")
    options = [
        "--config=normals_nyuv2", "--model.backbone=resnet18", "--model.codes=2", "--model.hidden=4",
        "--data.root=kitchen", "--data.short_sides=[32]", "--data.eval_short_side=32", "--data.num_workers=0",
        "--trainer.accelerator=cpu", "--trainer.enable_model_summary=false",
    ]  # fmt: skip
    main(
        [
            "fit",
            *options,
            "--model.checkpoint=random",
            "--trainer.max_steps=6",
            "--trainer.val_check_interval=4",
        ]
    )
    said = capsys.readouterr()
    assert "surface normals: median " in said.out
    assert "°: the result\npixels below:    11.25° " in said.out
    assert "in [0, 1]: --data.mean and --data.std change that" in caplog.text
    main(["test", *options, "--ckpt_path=last"])
    tested = capsys.readouterr()
    assert "normals/median_degrees" in tested.out
    assert "random weights" not in tested.err
    record = json.loads(next(tmp_path.rglob("ledger.json")).read_text())
    assert [point[1] for point in record["metrics"]["normals/mean_degrees"]["curve"]] == [3, 6]
    main(["report", "runs/normals_nyuv2", "--out", "r.md"])
    text = (tmp_path / "r.md").read_text()
    assert "## Surface normals kitchen, 4 training images, batch 2" in text
    assert "| surface normals of a random start | 1 |" in text
    assert "| surface normals, median in degrees |" in text
    with pytest.raises(SystemExit):
        main(["fit", *options, "--model.checkpoint=random", "--data.batch_size=1"])
    complaint = capsys.readouterr().err
    assert "data.batch_size must be at least 2, got 1" in complaint
    assert "Traceback" not in complaint


def test_another_module_on_it_sees_images_alone(data: NormalsDataModule, tmp_path: Path) -> None:
    assert data.knn_dataloaders() is None
    image, target, position = next(iter(data.predict_dataloader()))
    assert (image.shape, target.tolist(), position.tolist()) == ((1, 3, 32, 48), [-1], [0])
    assert data.rows([0])["path"] == ["image/test/00001.jpg"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_processes_count_each_pixel_once(data: NormalsDataModule, tmp_path: Path) -> None:
    module = fitted(tmp_path / "fit", data, max_epochs=1)

    def tested(name: str, **options: Any) -> dict[str, float]:

        class Keep(Callback):
            def on_test_end(self, trainer: Any, pl_module: Any) -> None:
                if trainer.is_global_zero:
                    values = {key: float(value) for key, value in trainer.callback_metrics.items()}
                    counted = int(pl_module._errors.counts.sum())
                    (tmp_path / name).write_text(json.dumps([values, counted]))

        run = trainer(tmp_path, Keep(), **options)
        run.test(module, datamodule=dataset(tmp_path), verbose=False)
        return json.loads((tmp_path / name).read_text())

    (one, all_pixels), (two, own_pixels) = tested("one"), tested("two", devices=2, strategy="ddp_fork")
    assert two == pytest.approx(one, rel=1e-6)
    assert (all_pixels, own_pixels) == (3 * 29 * 40, 2 * 29 * 40)  # of three images and one filling
