"""CIFAR and STL-10 from files in the official layouts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from mmcl_lightning.datamodules import CIFAR10DataModule, CIFAR100DataModule, STL10DataModule
from mmcl_lightning.errors import ConfigError, DataError


def _check_views(batch: list, batch_size: int, size: int) -> None:
    views, targets = batch
    assert isinstance(views, list)
    assert len(views) == 2
    for view in views:
        assert view.shape == (batch_size, 3, size, size)
        assert view.dtype == torch.float32
        assert -3 < view.min() < view.max() < 3
    assert not torch.equal(views[0], views[1])
    assert targets.shape == (batch_size,)
    assert targets.dtype == torch.int64


def test_cifar10_batches(cifar10_root: Path) -> None:
    data = CIFAR10DataModule(root=str(cifar10_root), batch_size=16, num_workers=0)
    assert data.num_classes == 10
    assert len(data.train_dataloader()) == 100 // 16
    _check_views(next(iter(data.train_dataloader())), 16, 32)
    _check_views(next(iter(data.val_dataloader())), 16, 32)
    bank, query = data.knn_dataloaders()
    assert (len(bank.dataset), len(query.dataset)) == (100, 20)
    images, targets = next(iter(bank))
    assert images.shape == (100, 3, 32, 32)
    assert targets.tolist() == [i % 10 for _ in range(5) for i in range(20)]
    assert data.class_names[9] == "truck"


@pytest.mark.parametrize(("split", "expected"), [("train", 100), ("test", 20), ("all", 120)])
def test_predict_split(cifar10_root: Path, split: str, expected: int) -> None:
    data = CIFAR10DataModule(root=str(cifar10_root), num_workers=0, predict_split=split)
    assert sum(len(targets) for _, targets, _ in data.predict_dataloader()) == expected


def test_evaluation_images_are_the_stored_pixels(cifar10_root: Path) -> None:
    data = CIFAR10DataModule(root=str(cifar10_root), num_workers=0)
    image, _ = data.knn_dataloaders()[1].dataset[3]
    stored = torch.from_numpy(np.array(data.splits.query.item(3))).permute(2, 0, 1) / 255
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    torch.testing.assert_close(image, (stored - mean) / std)


def test_cifar100_batches_and_names(cifar100_root: Path) -> None:
    data = CIFAR100DataModule(root=str(cifar100_root), batch_size=16, num_workers=0)
    assert data.num_classes == 100
    assert CIFAR100DataModule(root="nowhere").num_classes == 100
    assert data.class_names[42] == "class042"
    _check_views(next(iter(data.train_dataloader())), 16, 32)


def test_stl10_trains_on_small_crops_and_evaluates_at_96(stl10_root: Path) -> None:
    data = STL10DataModule(root=str(stl10_root), batch_size=10, num_workers=0)
    batches = list(data.train_dataloader())
    assert len(batches) == 5
    _check_views(batches[0], 10, 32)
    assert (torch.cat([targets for _, targets in batches]) == -1).sum() == 30
    bank, query = data.knn_dataloaders()
    images, targets = next(iter(bank))
    assert images.shape == (20, 3, 96, 96)
    assert targets.min() >= 0
    assert len(query.dataset) == 20
    assert data.num_classes == 10


@pytest.mark.parametrize(("split", "expected"), [("train+unlabeled", 50), ("unlabeled", 30), ("train", 20)])
def test_stl10_pretrain_split(stl10_root: Path, split: str, expected: int) -> None:
    data = STL10DataModule(root=str(stl10_root), batch_size=10, num_workers=0, pretrain_split=split)
    assert len(data.splits.pretrain) == expected
    assert len(data.splits.bank) == 20


def test_stl10_full_size_and_large_subset(stl10_root: Path) -> None:
    data = STL10DataModule(root=str(stl10_root), batch_size=4, num_workers=0, crop_size=96, train_subset=40)
    _check_views(next(iter(data.train_dataloader())), 4, 96)
    assert len(data.splits.pretrain) == 40
    assert len(data.splits.bank) == 20


def test_stl10_rejects_unknown_options() -> None:
    with pytest.raises(ConfigError, match="pretrain_split must be"):
        STL10DataModule(pretrain_split="test")
    with pytest.raises(ConfigError, match="crop_size must be an integer >= 1, got 0"):
        STL10DataModule(crop_size=0)


@pytest.mark.parametrize("kind", [CIFAR10DataModule, CIFAR100DataModule, STL10DataModule])
def test_missing_folder(tmp_path: Path, kind: type) -> None:
    with pytest.raises(DataError, match=r"folder .* is missing; --data.download true fetches it") as error:
        kind(root=str(tmp_path)).setup()
    assert str(tmp_path.absolute()) in str(error.value)


def test_missing_file_is_named(cifar10_root: Path) -> None:
    path = cifar10_root / "cifar-10-batches-py" / "data_batch_3"
    path.unlink()
    with pytest.raises(
        DataError, match=r"CIFAR-10: the file .*data_batch_3 is missing; --data.download"
    ) as error:
        CIFAR10DataModule(root=str(cifar10_root)).setup()
    assert str(path) in str(error.value)


def test_damaged_file_is_named(stl10_root: Path) -> None:
    with (stl10_root / "stl10_binary" / "test_X.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"STL-10: the file .*test_X.bin is damaged .* --data.download true"):
        STL10DataModule(root=str(stl10_root)).setup()


def test_missing_class_names_are_named(cifar100_root: Path) -> None:
    (cifar100_root / "cifar-100-python" / "meta").unlink()
    with pytest.raises(DataError, match="meta"):
        CIFAR100DataModule(root=str(cifar100_root)).setup()


def test_failed_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", _no_network)
    with pytest.raises(DataError, match=r"the download failed .*no network"):
        CIFAR10DataModule(root=str(tmp_path), download=True).prepare_data()


def _no_network(*args: object, **kwargs: object) -> None:
    raise OSError("no network")


def test_the_generators_are_reproducible(tmp_path: Path, fake: ModuleType) -> None:
    assert fake.write_stl10(tmp_path / "a") == fake.write_stl10(tmp_path / "b")
