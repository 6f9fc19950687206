"""Folders of images: labelled trees, flat folders, and everything that can be wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from mmcl_lightning.datamodules import ImageFolderDataModule, image_files
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import CentralCrop


def folder(root: Path, **options: object) -> ImageFolderDataModule:
    return ImageFolderDataModule(
        **{"root": str(root), "image_size": 32, "batch_size": 4, "num_workers": 0, **options}
    )


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_tree_with_splits(tmp_path: Path, fake: ModuleType, name: str) -> None:
    fake.write_class_folders(tmp_path / "train", classes=3, per_class=4, suffix="jpg")
    fake.write_class_folders(tmp_path / name, classes=2, per_class=2)
    data = folder(tmp_path)
    assert data.num_classes == 3
    assert data.class_names == ["class0", "class1", "class2"]
    assert data.folder == tmp_path.name
    views, targets = next(iter(data.train_dataloader()))
    assert [view.shape for view in views] == [(4, 3, 32, 32)] * 2
    assert 0 <= views[0].min() < views[0].max() <= 1
    assert targets.dtype == torch.int64
    bank, query = data.knn_dataloaders()
    assert torch.cat([t for _, t in bank]).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.cat([t for _, t in query]).tolist() == [0, 0, 1, 1]


def test_tree_without_splits_holds_out_a_fraction_of_each_class(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path, classes=3, per_class=10)
    splits = folder(tmp_path, holdout=0.2).splits
    assert np.bincount(splits.pretrain.targets).tolist() == [8, 8, 8]
    assert np.bincount(splits.query.targets).tolist() == [2, 2, 2]
    again = folder(tmp_path, holdout=0.2).splits
    assert np.array_equal(splits.query.indices, again.query.indices)
    other = folder(tmp_path, holdout=0.2, seed=1).splits
    assert not np.array_equal(splits.query.indices, other.query.indices)


def test_nothing_held_out(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path, classes=2, per_class=4)
    data = folder(tmp_path, holdout=0.0)
    assert len(data.splits.pretrain) == 8
    assert data.val_dataloader() == []
    assert data.knn_dataloaders() is None
    assert len(data.predict_dataloader().dataset) == 8
    with pytest.raises(ConfigError, match="set predict_split to 'train'"):
        folder(tmp_path, holdout=0.0, predict_split="test").predict_dataloader()


@pytest.mark.parametrize("below", [".", "train"])
def test_flat_folder_is_unlabelled(tmp_path: Path, fake: ModuleType, below: str) -> None:
    fake.write_flat(tmp_path / below, 20)
    data = folder(tmp_path, train_subset=10)
    assert data.num_classes is None
    assert data.class_names is None
    assert data.knn_dataloaders() is None
    _, targets = next(iter(data.train_dataloader()))
    assert targets.tolist() == [-1] * 4
    assert len(data.splits.pretrain) == 10
    assert len(data.splits.heldout) == 2
    assert len(next(iter(data.val_dataloader()))[1]) == 2
    assert len(data.heldout_dataloader().dataset) == 2
    assert len(data.predict_dataloader().dataset) == 12


def test_large_images_take_the_imagenet_recipe(tmp_path: Path) -> None:
    assert folder(tmp_path).default_train_transform().interpolation == "bilinear"
    data = folder(tmp_path, image_size=112)
    assert data.default_train_transform().interpolation == "bicubic"


def test_normalisation_applies_to_both_transforms(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path, classes=2, per_class=5)
    data = folder(tmp_path, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert next(iter(data.train_dataloader()))[0][0].min() < 0
    assert next(iter(data.knn_dataloaders()[0]))[0].min() < 0


@pytest.mark.parametrize("size", [32, None])
def test_cache_holds_the_same_pixels(tmp_path: Path, fake: ModuleType, size: int | None) -> None:
    fake.write_flat(tmp_path, 6, size=32)
    if size is None:
        fake.write_flat(tmp_path, 2, size=40)
    plain, cached = folder(tmp_path), folder(tmp_path, cache=True, num_workers=1)
    for expected, actual in zip(plain.train_dataloader(), cached.train_dataloader(), strict=True):
        assert torch.equal(expected[0][0], actual[0][0])
    for path in tmp_path.glob("*.png"):
        path.unlink()
    assert len(list(cached.train_dataloader())) == 1


def test_cache_has_a_limit(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.write_flat(tmp_path, 6)
    monkeypatch.setattr(image_files, "_CACHE_LIMIT", 10_000)
    with pytest.raises(
        ConfigError, match=r"cache needs more than .* \(3 of 5 images decoded\); set cache to false"
    ):
        folder(tmp_path, cache=True).splits  # noqa: B018


@pytest.mark.parametrize(("content", "workers"), [(b"", 0), (b"no image at all", 0), (None, 0), (None, 1)])
def test_damaged_image_is_named(
    tmp_path: Path, fake: ModuleType, content: bytes | None, workers: int
) -> None:
    fake.write_flat(tmp_path, 5, suffix="jpg")
    path = tmp_path / "0003.jpg"
    path.write_bytes(path.read_bytes()[:400] if content is None else content)
    data = folder(tmp_path, holdout=0.0, batch_size=5, num_workers=workers)
    with pytest.raises(DataError, match=r"the image .*0003\.jpg cannot be read"):
        next(iter(data.train_dataloader()))


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"image folder .*nowhere does not exist; set --data.root"):
        folder(tmp_path / "nowhere").setup()


def test_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no image was found in .*; what is there is not read \(.txt: 1\)"):
        folder(tmp_path).setup()


def test_layouts_do_not_mix(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path / "train", classes=2, per_class=2)
    fake.write_flat(tmp_path / "train", 1)
    with pytest.raises(DataError, match=r"holds both images .* and folders of images"):
        folder(tmp_path).setup()


def test_unknown_test_class(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path / "train", classes=2, per_class=2)
    fake.write_class_folders(tmp_path / "test", classes=3, per_class=2)
    with pytest.raises(DataError, match="class folder 'class2', which the training images do not have"):
        folder(tmp_path).setup()


def test_one_image_is_too_few(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_flat(tmp_path, 1)
    with pytest.raises(ConfigError, match="needs 2 training images or more on each device, got 1"):
        folder(tmp_path).train_dataloader()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size must be an integer >= 1, got 0"),
        ({"holdout": 1.0}, "holdout is a fraction"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean and std go together"),
        ({"eval_resize": 0}, "resize must be an integer >= 1"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        folder(tmp_path, **options)


def test_an_image_size_in_vain_is_refused(tmp_path: Path) -> None:
    """Transforms that are given make images of their own size, as those of folder_linear.yaml do."""
    transform = CentralCrop(224)
    with pytest.raises(ConfigError, match="image_size is 96, and eval_transform makes images of 224 x 224"):
        ImageFolderDataModule(str(tmp_path), image_size=96, eval_transform=transform)
    ImageFolderDataModule(str(tmp_path), image_size=96, eval_transform=CentralCrop(96))
    ImageFolderDataModule(str(tmp_path), eval_transform=CentralCrop(96))


def test_a_mean_in_vain_is_refused(tmp_path: Path) -> None:
    given = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "eval_transform": CentralCrop(32)}
    folder(tmp_path, **given)  # the training's transform takes them
    with pytest.raises(ConfigError, match="mean and std are for the transforms of this data module, and"):
        folder(tmp_path, **given, train_transform=CentralCrop(32))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_ends_the_program(workers: int, tmp_path: Path) -> None:
    """Workers that outlive a signal to the group must not outlive the error of one of them."""
    for index in range(8):
        path = tmp_path / "photos" / f"class{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (30 * index, 0, 0)).save(path)
    path.write_bytes(path.read_bytes()[:30])
    command = [sys.executable, "-m", "mmcl_lightning", "fit", "--config=folder_mmcl", "--data.root=photos"]
    command += ["--data.image_size=16", "--data.batch_size=4", f"--data.num_workers={workers}"]
    command += ["--model.backbone=conv4", "--model.projection_head=cifar", "--data.holdout=0"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(
        [*command, "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.devices=1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "error: " in run.stderr
    assert path.name in run.stderr
    assert "Traceback" not in run.stderr
