"""Pictures that cannot be read: an error with file and reason, or skipped, counted and replaced by others."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import mmcl, trainer

from mmcl_lightning.batches import views_of
from mmcl_lightning.callbacks import skipped
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.skipping import read_or_replace
from mmcl_lightning.datamodules.sources import ArraySource
from mmcl_lightning.errors import DataError
from mmcl_lightning.negatives.held_out import take_images

BAD = ("train/a/03.png", "train/b/02.png", "test/a/00.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes with 8 training pictures and 4 test ones each, of one grey level each; three are bad."""
    root = tmp_path / "photos"
    for part, count, start in (("train", 8, 0), ("test", 4, 16)):
        for place, name in enumerate("ab"):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                level = 10 * (start + count * place + index)
                path = root / part / name / f"{index:02d}.png"
                Image.new("RGB", (16, 16), (level,) * 3).save(path)
    for name in BAD:
        (root / name).write_bytes((root / name).read_bytes()[:40])
    return root


def folder(root: Path, **options: Any) -> ImageFolderDataModule:
    given = {"image_size": 16, "batch_size": 4, "num_workers": 0, "on_bad_image": "skip", **options}
    return ImageFolderDataModule(str(root), **given)


def epoch(data: ImageFolderDataModule, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First views and targets of an epoch, in its order."""
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader)
    found = [views_of(batch)[0] for batch in batches]
    return torch.cat(found), torch.cat([targets for _, targets in batches])


def test_an_error_names_file_reason_and_option(photos: Path) -> None:
    data = folder(photos, on_bad_image="error")
    with pytest.raises(DataError, match=r"03\.png cannot be read \(.+\); .* --data.on_bad_image skip goes"):
        data.splits.pretrain.item(3)


def test_another_picture_takes_the_place_by_seed_epoch_and_position_alone(photos: Path) -> None:
    views, targets = epoch(folder(photos), 1)
    for options in ({"num_workers": 2}, {"batch_size": 8}, {"cache": True}):
        again, labels = epoch(folder(photos, **options), 1)
        assert torch.equal(views, again), options
        assert torch.equal(targets, labels), options
    seen = [epoch(folder(photos), number)[0] for number in range(4)]
    assert len({tuple(batch.flatten().tolist()) for batch in seen}) == 4


def test_all_others_come_when_they_would(photos: Path) -> None:
    found = epoch(folder(photos), 0)[0]
    order = [position for _, position in folder(photos).train_dataloader().sampler]
    for name in BAD[:2]:
        Image.new("RGB", (16, 16)).save(photos / name)
    whole = epoch(folder(photos), 0)[0]
    same = [torch.equal(one, other) for one, other in zip(found, whole, strict=True)]
    assert [position for position, equal in zip(order, same, strict=True) if not equal] in ([3, 10], [10, 3])


def test_a_resumed_epoch_goes_on_with_the_same_pictures(photos: Path) -> None:
    whole = epoch(folder(photos), 0)[0]
    loader = folder(photos).train_dataloader()
    loader.load_state_dict({"epoch": 0, "batches": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rest = torch.cat([views[0] for views, _ in loader])
    assert torch.equal(rest, whole[8:])


def test_views_made_on_the_device_have_them_too(photos: Path) -> None:
    views, targets = epoch(folder(photos, augment="device"), 0)
    plain, labels = epoch(folder(photos), 0)
    assert torch.equal(targets, labels)
    assert (views - plain).abs().max() < 0.05  # Pillow rounds to 8 bits in between


@pytest.mark.parametrize("cache", [False, True])
def test_readouts_do_not_count_them(photos: Path, cache: bool) -> None:
    data = folder(photos, cache=cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bank, query = (torch.cat([t for _, t in loader]) for loader in data.knn_dataloaders())
        test = torch.cat([t for _, t in data.test_dataloader()])
    assert bank.tolist() == [0, 0, 0, -1, 0, 0, 0, 0, 1, 1, -1, 1, 1, 1, 1, 1]
    assert query.tolist() == test.tolist() == [-1, 0, 0, 0, 1, 1, 1, 1]
    assert data.skipped_images() == [str(photos / name) for name in BAD]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_is_said_once_with_its_reason_and_counted_from_workers_too(photos: Path, workers: int) -> None:
    data = folder(photos, num_workers=workers)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            list(data.train_dataloader())
    assert data.skipped_images() == [str(photos / name) for name in BAD[:2]]
    if not workers:  # those of a worker are printed by it
        assert len([w for w in said if "skipped: the image" in str(w.message)]) == 2


def test_of_many_twenty_are_named(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index:02d}.png").write_bytes(b"no picture")
        Image.new("RGB", (16, 16), (index,) * 3).save(tmp_path / f"good{index:02d}.png")
    data = folder(tmp_path, holdout=0.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        list(data.health_dataloader())
    assert len(said) == 20
    assert "they are counted only" in str(said[-1].message)
    assert len(data.skipped_images()) == 40


def test_a_disk_that_has_gone_ends_the_run(tmp_path: Path) -> None:
    class Gone(ArraySource):
        def item(self, index: int) -> Image.Image:
            raise DataError(f"no {index}")

    with pytest.raises(DataError, match="100 images in a row cannot be read, the first of them: no 7"):
        read_or_replace(Gone(np.zeros((50, 4, 4, 3), np.uint8)), 7, 0)


def test_the_pictures_of_negatives_are_those_that_are_named(photos: Path) -> None:
    data = folder(photos)
    with pytest.warns(UserWarning, match="skipped"):
        found = take_images(data.knn_dataloaders()[1], 8, seed=0, datamodule=data)
    assert len(found.paths) == 7
    assert str(photos / BAD[2]) not in found.paths
    levels = [10 * (16 + position) for position in found.positions.tolist()]
    assert (found.views[0][:, 0, 0, 0] * 255).round().int().tolist() == levels


def test_processes_count_together(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, counted = folder(photos), skipped.SkippedImages()
    monkeypatch.setattr(skipped, "gather_objects", lambda mine: [mine, ["elsewhere.png"]])
    run = trainer(photos.parent, counted)
    with pytest.warns(UserWarning, match="skipped"):
        run.fit(mmcl(), data)
    assert run.callback_metrics["data/skipped_images"] == 4 - 1  # no readout has looked at the test images
    assert counted.summary()[0].startswith("Skipped:      3 images that cannot be read: ")
    fresh = skipped.SkippedImages()
    fresh.load_state_dict(counted.state_dict())
    assert fresh.summary() == counted.summary()


def test_a_run_shows_and_records_the_count(
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(photos.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    main([
        "fit", "--config=folder_mmcl", "--data.root=photos", "--data.image_size=16", "--data.batch_size=8",
        "--data.num_workers=0", "--data.on_bad_image=skip", "--model.backbone=conv4",
        "--model.projection_head=cifar", "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
    ])  # fmt: skip
    shown = capsys.readouterr().out
    assert "Skipped:      3 images that cannot be read: " in shown
    assert "skipped 3" in caplog.text
    (path,) = Path("runs").rglob("ledger.json")
    record = json.loads(path.read_text())
    assert record["metrics"]["data/skipped_images"]["last"] == 3
    # Of 16 and 8 pictures 14 and 7 can be read, and each place says so.
    protocol = "k=14 T=0.5 cosine h, bank 14, queries 7"
    assert "k-NN: k clamped from 200 to 14, the size of the labelled bank" in caplog.text
    assert f"({protocol})" in shown
    assert record["protocols"]["knn/top1"] == protocol
    main(["report", "runs"])
    assert protocol in capsys.readouterr().out


def test_a_class_that_is_lost_is_named(photos: Path) -> None:
    for path in (photos / "train" / "b").iterdir():
        path.write_bytes(b"no picture")
    data, counted = folder(photos), skipped.SkippedImages()
    run = trainer(photos.parent, counted, max_epochs=1)
    with pytest.warns(UserWarning, match="skipped"):
        run.fit(mmcl(), data)
    assert counted.summary()[1].strip() == "among them all training images of b"
    assert data.unread_classes(["x"]) == []
