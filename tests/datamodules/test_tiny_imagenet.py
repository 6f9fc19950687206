"""Tiny-ImageNet's archive as it unpacks: labels of val in a table, none of test."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from test_tree import found, pictures

from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.tree import scan_tree
from mmcl_lightning.errors import DataError

A, B = "n01443537", "n01443637"


@pytest.fixture
def root(tmp_path: Path, fake: ModuleType) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    assert fake.write_tiny_imagenet(folder, per_class=2, val=3) == [A, B]
    return folder


def test_the_archive_is_read_as_it_is(root: Path) -> None:
    tree = scan_tree(str(root))
    assert tree.class_names == [A, B]
    train = {f"train/{name}/images/{name}_{index}.JPEG": name for name in (A, B) for index in (0, 1)}
    assert found(tree, root) == train
    val = {"val/images/val_0.JPEG": B, "val/images/val_1.JPEG": A, "val/images/val_2.JPEG": B}
    assert found(tree, root, "test") == val
    assert tree.read_as == "train and val, with class folders"
    # Two tables of boxes, wnids.txt and words.txt; val_annotations.txt is read.
    assert +tree.ignored == {"pictures in test, which has no class folders": 3, ".txt": 4}
    assert scan_tree(str(root.parent)).class_names == [A, B], "the folder around it is entered"


def test_the_data_module_judges_by_val(root: Path) -> None:
    data = ImageFolderDataModule(str(root), image_size=64, num_workers=0)
    data.setup()
    assert data.num_classes == 2
    assert data.splits.query is not None
    assert data.splits.query.targets.tolist() == [0, 1, 1]


def test_without_the_labels_of_val_it_is_named(root: Path) -> None:
    (root / "val" / "val_annotations.txt").unlink()
    what = "pictures in val, whose labels, val_annotations.txt of Tiny-ImageNet, are missing"
    tree = scan_tree(str(root))
    assert +tree.ignored == {what: 3, "pictures in test, which has no class folders": 3, ".txt": 4}
    assert tree.test is None


def test_some_classes_of_it(root: Path) -> None:
    (root.parent / "one.txt").write_text(f"{B}\n")
    tree = scan_tree(str(root), class_list=str(root.parent / "one.txt"))
    assert found(tree, root, "test") == {"val/images/val_0.JPEG": B, "val/images/val_2.JPEG": B}
    assert tree.ignored["pictures of classes that class_list does not have"] == 1


def test_rows_and_pictures_that_do_not_meet_are_counted(root: Path) -> None:
    (root / "val" / "images" / "val_1.JPEG").rename(root / "val" / "images" / "val_7.JPEG")
    tree = scan_tree(str(root))
    assert found(tree, root, "test")["val/images/val_7.JPEG"] is None
    assert tree.ignored["rows of val_annotations.txt without a picture"] == 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"val_0.JPEG n1 0 0\n", r"line 1 of .*val_annotations\.txt is no name and label with a tab between"),
        (b"val_0.JPEG\tn1\nval_0.JPEG\tn2\n", r"line 2 of .*is a second row of val_0\.JPEG"),
        (b"\xff\xfe", r"val_annotations\.txt cannot be read .*: unpack the official archive again"),
        (f"val_0.JPEG\t{A}\nval_1.JPEG\tn7\n".encode(), r"val has the class folder 'n7', which the training"),
    ],
)
def test_tables_that_are_none(table: bytes, said: str, root: Path) -> None:
    (root / "val" / "val_annotations.txt").write_bytes(table)
    with pytest.raises(DataError, match=said):
        scan_tree(str(root))


def test_a_split_of_images_alone_has_no_class_images(tmp_path: Path) -> None:
    pictures(tmp_path, "train/images/1.png", "train/images/2.png", "val/images/3.png")
    tree = scan_tree(str(tmp_path))
    assert tree.class_names is None
    assert found(tree, tmp_path, "test") == {"val/images/3.png": None}
    pictures(tmp_path, "train/cat/4.png", "val/cat/5.png")  # beside another folder it is a class
    assert scan_tree(str(tmp_path)).class_names == ["cat", "images"]
