"""Folders as people have them: what is trained on, what is held out, and what is left out."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.image_files import FileSource, hold_out
from mmcl_lightning.datamodules.sources import balanced_subset
from mmcl_lightning.datamodules.tree import PictureTree, scan_tree
from mmcl_lightning.errors import DataError


def pictures(root: Path, *names: str) -> None:
    for index, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(abs(hash(name)) % 2**32 + index).integers(0, 256, (8, 8, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(path)


def found(tree: PictureTree, root: Path, split: str = "train") -> dict[str, str | None]:
    listed = getattr(tree, split)
    names = tree.class_names
    return {
        str(Path(path).relative_to(root)): None if target < 0 else names[target]
        for path, target in zip(listed[0], listed[1].tolist(), strict=True)
    }


@pytest.mark.parametrize("train", ["train", "Train", "Training", "training_set", "TRAIN"])
@pytest.mark.parametrize("test", ["test", "Testing", "val", "Validation", "valid"])
def test_split_names_in_any_case(train: str, test: str, tmp_path: Path) -> None:
    pictures(tmp_path, f"{train}/cat/1.png", f"{train}/dog/2.png", f"{test}/dog/3.png")
    tree = scan_tree(str(tmp_path))
    assert found(tree, tmp_path) == {f"{train}/cat/1.png": "cat", f"{train}/dog/2.png": "dog"}
    assert found(tree, tmp_path, "test") == {f"{test}/dog/3.png": "dog"}
    assert tree.read_as == f"{train} and {test}, with class folders"


def test_a_wrapping_folder_is_entered(tmp_path: Path) -> None:
    pictures(tmp_path, "archive/data/train/cat/1.png", "archive/data/test/cat/2.png")
    pictures(tmp_path, "__MACOSX/data/train/cat/._1.png", "archive/.DS_Store.png")
    tree = scan_tree(str(tmp_path))
    assert found(tree, tmp_path) == {"archive/data/train/cat/1.png": "cat"}
    assert tree.read_as == "train and test within archive/data, with class folders"
    assert tree.ignored["hidden or system"] == 2


def test_copies_in_hidden_and_system_folders_are_not_read(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/1.png", "cat/.thumbnails/1.png", "cat/@eaDir/1.png", "dog/2.png")
    pictures(tmp_path, "dog/.ipynb_checkpoints/2.png", "dog/._2.png", "cat/2020/3.png")
    tree = scan_tree(str(tmp_path))
    assert found(tree, tmp_path) == {"cat/1.png": "cat", "cat/2020/3.png": "cat", "dog/2.png": "dog"}
    assert tree.ignored["hidden or system"] == 4


def test_links_into_the_folder_itself_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    pictures(root, "cat/1.png", "dog/2.png")
    pictures(tmp_path, "elsewhere/3.png")
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "other").symlink_to(root / "dog")
    (root / "dog" / "above").symlink_to(tmp_path)
    (root / "bird").symlink_to(tmp_path / "elsewhere")
    (root / "dog" / "again").symlink_to(tmp_path / "elsewhere")
    tree = scan_tree(str(root))
    assert found(tree, root) == {"bird/3.png": "bird", "cat/1.png": "cat", "dog/2.png": "dog"}
    assert tree.ignored["links into the folder itself, or twice to one place"] == 4


def test_a_flat_test_folder_without_labels_is_said_and_not_used(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"train/{name}/{i}.png" for name in ("cat", "dog") for i in range(5)))
    pictures(tmp_path, "test/a.png", "test/b.png", "val/cat/c.png")
    tree = scan_tree(str(tmp_path))
    assert found(tree, tmp_path, "test") == {"val/cat/c.png": "cat"}
    assert tree.ignored["pictures in test, which has no class folders"] == 2
    (tmp_path / "val" / "cat" / "c.png").unlink()
    (tmp_path / "val" / "cat").rmdir()
    (tmp_path / "val").rmdir()
    data = ImageFolderDataModule(str(tmp_path), image_size=8, holdout=0.2, num_workers=0)
    assert (len(data.splits.pretrain), len(data.splits.query)) == (8, 2)
    assert "not read: pictures in test, which has no class folders: 2" in data.description()


def test_split_folders_that_are_not_used_are_counted_and_never_in_the_way(tmp_path: Path) -> None:
    pictures(tmp_path, "train/cat/1.png", "test/cat/2.png", "val/cat/3.png", "val/loose.png", "val/cat/4.png")
    pictures(tmp_path, "raw/5.png", "raw/deep/6.png")
    (tmp_path / "eval").mkdir()
    tree = scan_tree(str(tmp_path))
    assert found(tree, tmp_path, "test") == {"test/cat/2.png": "cat"}
    assert +tree.ignored == {
        "pictures in val, as test is held out": 3,
        "pictures in raw, which is no split": 2,
    }


@pytest.mark.parametrize("name", ["2019/05/1.png", "video1/frame1.png"])
def test_any_depth_without_labels(name: str, tmp_path: Path) -> None:
    pictures(tmp_path, name, "beside.png")
    with pytest.raises(DataError, match=r"holds both images .* set data.layout to flat"):
        scan_tree(str(tmp_path))
    tree = scan_tree(str(tmp_path), "flat")
    assert found(tree, tmp_path) == {name: None, "beside.png": None}


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    pictures(tmp_path, "bus/1.png", "car/2.png", "train/3.png")
    with pytest.raises(DataError, match=r"if train is a class, rename it or set data.layout to classes"):
        scan_tree(str(tmp_path))
    assert scan_tree(str(tmp_path), "classes").class_names == ["bus", "car", "train"]
    with pytest.raises(DataError, match=r"layout is 'splits', and .* has no folder train"):
        scan_tree(str(tmp_path / "bus"), "splits")


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/1.png")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "cat" / "labels.xml").write_text("x")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "film.mp4").write_bytes(b"x")
    tree = scan_tree(str(tmp_path))
    assert +tree.ignored == {".txt": 1, ".xml": 1, ".mp4": 1, "class folders without a picture": 1}


def module(root: Path, **options: Any) -> ImageFolderDataModule:
    return ImageFolderDataModule(
        str(root), **({"image_size": 8, "batch_size": 2, "num_workers": 0} | options)
    )


def test_a_run_begins_with_what_was_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures(tmp_path, *(f"{name}/{i}.png" for name in "abcdefg" for i in range(4)))
    (tmp_path / "a" / "notes.txt").write_text("x")
    with caplog.at_level(logging.INFO):
        module(tmp_path).setup("fit")
    (said,) = [record.getMessage() for record in caplog.records if "class folders" in record.getMessage()]
    assert said == (
        f"{tmp_path}: class folders\n  train          21 images\n  held out        7 images\n"
        "  7 classes: a, b, c, d, e, ...\n  not read: .txt: 1"
    )


def test_copies_of_training_images_among_the_held_out_ones_are_warned_of(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"train/cat/{i}.png" for i in range(4)), *(f"test/cat/{i}.png" for i in range(3)))
    copy = tmp_path / "test" / "cat" / "copy.png"
    copy.write_bytes((tmp_path / "train" / "cat" / "2.png").read_bytes())
    with pytest.warns(UserWarning, match=r"1 of 4 held-out images are copies .*copy\.png of .*2\.png"):
        module(tmp_path).setup("fit")


@pytest.mark.parametrize("options", [{"holdout": 0.0}, {}])
def test_labels_without_held_out_images_are_labels(options: dict[str, Any], tmp_path: Path) -> None:
    pictures(tmp_path, *(f"{name}/1.png" for name in "abc"))
    data = module(tmp_path, **options)
    assert data.num_classes == 3
    assert len(data.splits.bank) == 3
    assert data.knn_dataloaders() is None
    assert len(module(tmp_path, task="classify", **options).train_dataloader().dataset) == 3


def test_the_choice_of_images_is_that_of_a_loop_over_classes() -> None:
    """Whose time grows with the square of the number of classes; the choice must stay the same."""
    targets = np.random.default_rng(0).integers(-1, 40, 300)
    held, generator = np.zeros(300, dtype=bool), np.random.default_rng(3)
    for label in np.unique(targets):
        members = generator.permutation(np.flatnonzero(targets == label))
        held[members[: min(max(1, round(0.3 * len(members))), len(members) - 1)]] = True
    train, test = hold_out(FileSource([""] * 300, targets), 0.3, 3)
    assert np.array_equal(test.indices, np.flatnonzero(held))
    assert np.array_equal(train.indices, np.flatnonzero(~held))
    known, generator = targets.clip(0), np.random.default_rng(5)
    order = generator.permutation(300)
    rank = np.empty(300, dtype=np.int64)
    for label in np.unique(known):
        members = order[known[order] == label]
        rank[members] = np.arange(len(members))
    expected = np.sort(np.lexsort((generator.random(300), rank))[:77])
    assert np.array_equal(balanced_subset(known, 77, 5), expected)


@pytest.mark.parametrize(
    ("top", "options", "warned"),
    [(4095, {}, True), (60000, {}, False), (4095, {"value_range": (0, 4095)}, False)],
)
def test_twelve_bits_in_sixteen_are_warned_of(
    top: int, options: dict[str, Any], warned: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for index in range(6):
        Image.fromarray(np.full((8, 8), top - index, np.uint16)).save(tmp_path / f"{index}.png")
    module(tmp_path, **options).check_options()
    said = [str(warning.message) for warning in recwarn if "nearly black" in str(warning.message)]
    assert len(said) == warned
    assert all("--data.value_range '[0, 4095]'" in message for message in said)


def test_a_slow_walk_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two seconds, four and eight: here every folder takes one."""
    for index in range(9):
        (tmp_path / f"class{index}").mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / f"class{index}" / "a.png")
    clock, said = itertools.count(), []
    monkeypatch.setattr("mmcl_lightning.datamodules.walking.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("mmcl_lightning.datamodules.walking.rank_zero_info", said.append)
    tree = scan_tree(str(tmp_path))
    assert len(tree.train[0]) == 9
    assert [text.rpartition(": ")[2] for text in said] == [
        "1 so far, in 2 folders", "3 so far, in 4 folders", "7 so far, in 8 folders",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("train", "test"),
    [("train_images", "test_images"), ("images-train", "images-val"), ("TrainData", "testdata")],
)
def test_names_of_splits_with_what_they_hold(train: str, test: str, tmp_path: Path) -> None:
    for name in (train, test):
        for label in "ab":
            (tmp_path / name / label).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / name / label / "1.png")
    tree = scan_tree(str(tmp_path))
    assert tree.read_as == f"{train} and {test}, with class folders"
