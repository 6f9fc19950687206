"""Labels of pictures from a table, from nowhere, and what can be wrong with the table."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_tree import found, module, pictures

from mmcl_lightning.datamodules.labels import sorted_names
from mmcl_lightning.datamodules.tree import scan_tree
from mmcl_lightning.errors import ConfigError, DataError


def table(root: Path, *lines: str, name: str = "labels.csv") -> str:
    (root / name).write_text("\n".join(lines) + "\n")
    return str(root / name)


def scan(root: Path, *lines: str, layout: Any = "auto", **columns: str) -> Any:
    return scan_tree(str(root), layout, table(root, *lines), columns)


DEEP = ("2019/05/a.png", "2019/06/b.png", "2020/c.png")


@pytest.mark.parametrize(
    "rows",
    [
        ("path,label", "2019/05/a.png,cat", "2019/06/b.png,dog", "2020/c.png,cat"),
        ("Filename;Class", "a.png;cat", "b.png;dog", "c.png;cat"),
        ("ID\tTarget", "a\tcat", "06/b\tdog", "2020/c\tcat"),
        ("label, Image ID", "cat, ./a.png", "dog,2019\\06\\b.png", "", "cat,{root}/2020/c.png"),
        ("\ufefffile name,label", '"a",cat', "b,dog", "photos/2020/c.png,cat"),
    ],
)
def test_a_row_fits_the_picture_that_it_means(rows: tuple[str, ...], tmp_path: Path) -> None:
    root = tmp_path / "photos"
    pictures(root, *DEEP)
    tree = scan(root, *(row.format(root=root) for row in rows))
    assert found(tree, root) == dict(zip(DEEP, ("cat", "dog", "cat"), strict=True))
    assert tree.class_names == ["cat", "dog"]
    assert +tree.ignored == {}, "the file of labels itself is read"


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    pictures(tmp_path, *DEEP)
    rows = ("lesion,image_id,dx", "1,a,nv", "1,b,mel", "2,c,nv")
    tree = scan(tmp_path, *rows, label="dx")
    assert found(tree, tmp_path) == dict(zip(DEEP, ("nv", "mel", "nv"), strict=True))
    assert tree.read_as == "all pictures at any depth, labels from labels.csv (columns image_id, dx)"
    with pytest.raises(
        DataError, match=r"no column label: its first line .* '\{label: dx\}'; it is 'lesion, "
    ):
        scan(tmp_path, *rows)
    with pytest.raises(ConfigError, match=r"labels.csv has no column 'DX'; it has lesion, image_id, dx"):
        scan(tmp_path, *rows, label="DX")
    with pytest.raises(ConfigError, match="label_columns names path, label and split, got 'lable'"):
        scan(tmp_path, *rows, lable="dx")


def test_classes_are_sorted_as_numbers_where_all_are() -> None:
    assert sorted_names(["10", "9", "-1", "2.5", "9"]) == ["-1", "2.5", "9", "10"]
    assert sorted_names(["10", "9", "b"]) == ["10", "9", "b"]
    with pytest.raises(DataError, match=r"the labels '1' and '1.0' are one number: write them alike"):
        sorted_names(["1.0", "1"])


def test_folders_stay_splits(tmp_path: Path) -> None:
    pictures(tmp_path, "Train/x/1.png", "Train/2.png", "val/3.png", "test/y/4.png", "test/5.png")
    rows = ("id,label", "1,7", "2,10", "3,10")
    tree = scan(tmp_path, *rows)
    assert tree.class_names == ["7", "10"]
    assert found(tree, tmp_path) == {"Train/x/1.png": "7", "Train/2.png": "10"}
    assert found(tree, tmp_path, "test") == {"val/3.png": "10"}
    assert +tree.ignored == {"pictures in test, none of which has a label": 2}
    flat = scan(tmp_path, *rows, layout="flat")
    assert sorted(found(flat, tmp_path).items(), key=str) == [
        ("Train/2.png", "10"), ("Train/x/1.png", "7"), ("test/5.png", None), ("test/y/4.png", None),
        ("val/3.png", "10"),
    ]  # fmt: skip
    assert flat.test is None


def test_splits_of_the_file(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"{name}.png" for name in "abcdefg"))
    rows = (
        "path,label,split",
        "a,cat,Training",
        "b,dog,Training",
        "c,cat,valid",
        "d,dog,test",
        "e,cat,spare",
    )
    tree = scan(tmp_path, *rows, "f,cat,", "a,cat,Training")
    assert found(tree, tmp_path) == {"a.png": "cat", "b.png": "dog"}
    assert found(tree, tmp_path, "test") == {"d.png": "dog"}
    assert tree.read_as == "Training and test, labels from labels.csv (columns path, label, split)"
    assert +tree.ignored == {
        "pictures in spare, which is no split": 1,
        "pictures in valid, as test is held out": 1,
        "pictures without a split in labels.csv": 2,
        "repeated rows of labels.csv": 1,
    }
    with pytest.raises(ConfigError, match=r"layout is 'splits', and labels.csv has a column of splits"):
        scan(tmp_path, *rows, layout="splits")
    with pytest.raises(DataError, match=r"labels.csv has no split train \(or .*\), but valid"):
        scan(tmp_path, rows[0], rows[3])
    with pytest.raises(
        DataError, match=r"the split test of .*labels.csv has the class 'dog', which the train"
    ):
        scan(tmp_path, rows[0], rows[1], rows[4])


def test_what_is_not_used_is_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures(tmp_path, *(f"video{i // 5}/frame{i % 5}.png" for i in range(20)), "video9/frame0.png")
    rows = [f"video{i // 5}/frame{i % 5}.png,{'yn'[i % 2]}" for i in range(18)]
    rows += [rows[0], rows[1], "video3/frame3.png,", "gone.png,y", "video7/frame0.png,n"]
    data = module(tmp_path, labels=table(tmp_path, "path,label", *rows), holdout=0.2)
    with caplog.at_level(logging.INFO):
        data.setup("fit")
    (said,) = [record.getMessage() for record in caplog.records if "labels from" in record.getMessage()]
    assert said.splitlines()[1:] == [
        "  train          16 images, 14 with a label",
        "  held out        5 images, 4 with a label",
        "  2 classes: n, y",
        "  not read: repeated rows of labels.csv: 2, "
        "rows of labels.csv without a picture, such as gone.png: 2, rows of labels.csv without a label: 1",
    ]
    bank, query = data.knn_dataloaders()
    assert (len(bank.dataset), len(query.dataset)) == (14, 4)
    assert len(data.predict_dataloader().dataset) == 21
    rows_of = data.rows(range(21))
    assert sum(not name for name in rows_of["class"]) == 3
    assert len(module(tmp_path, labels=data.labels, task="classify").train_dataloader().dataset) == 16


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ("path,label", "a.png,cat", "a,dog"),
            r"several rows for .*a.png, 'cat' and 'dog': leave one of them",
        ),
        (
            ("path,label", "twin,cat"),
            r"line 2 of labels.csv, 'twin', fits several pictures, such as .*write the",
        ),
        (("path,label", "x.png,cat"), r"no row of .* fits a picture of .*'x.png', the first picture 'a.png'"),
        (("a.png,cat", "b.png,dog"), r"no column path: its first line must name .* it is 'a.png, cat'"),
        (
            ("path,label", "a.png,cat", "b.png"),
            r"line 3 of .* has 1 columns, and the first line names at least 2",
        ),
        (("path,label", 'a.png,"cat'), r"labels.csv is no CSV \(unexpected end of data\): double quotes"),
        (("path,label",), r"labels.csv names columns and has no row: add one for each picture"),
        (("path,Label,label", "a.png,cat,dog"), r"labels.csv has 2 columns label: leave one of them"),
        ((), r"no column path: its first line must name the columns"),
    ],
)
def test_what_is_ambiguous_is_refused(rows: tuple[str, ...], message: str, tmp_path: Path) -> None:
    pictures(tmp_path, "a.png", "b.png", "c/twin.png", "d/twin.png")
    with pytest.raises(DataError, match=message):
        scan(tmp_path, *rows)


def test_a_name_that_is_exact_is_not_ambiguous(tmp_path: Path) -> None:
    pictures(tmp_path, "twin.png", "d/twin.png")
    assert found(scan(tmp_path, "path,label", "twin.png,cat"), tmp_path) == {
        "twin.png": "cat",
        "d/twin.png": None,
    }


def test_no_labels_whatever_the_folders_are(tmp_path: Path) -> None:
    pictures(tmp_path, "train/cat/1.png", "train/2.png", "test/3.png", "test/dog/4.png", "raw/5.png")
    tree = scan_tree(str(tmp_path), labels="none")
    assert found(tree, tmp_path) == {"train/2.png": None, "train/cat/1.png": None}
    assert found(tree, tmp_path, "test") == {"test/3.png": None, "test/dog/4.png": None}
    assert tree.class_names is None
    assert +tree.ignored == {"pictures in raw, which is no split": 1}
    assert len(scan_tree(str(tmp_path), "flat", "none").train[0]) == 5
    assert len(scan_tree(str(tmp_path / "test"), labels="none").train[0]) == 2
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(
        DataError, match=r"if train is no split, set data.layout to flat; if it is the training"
    ):
        scan_tree(str(tmp_path), labels="none")


def test_options_do_not_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, "cat/1.png")
    with pytest.raises(
        ConfigError, match=r"layout is 'classes', which takes the labels from folders, and labels"
    ):
        scan_tree(str(tmp_path), "classes", "none")
    with pytest.raises(ConfigError, match="label_columns are of a file, and labels is 'folder'"):
        scan_tree(str(tmp_path), label_columns={"label": "dx"})
    with pytest.raises(
        ConfigError, match=r"must be 'folder', 'none' or a CSV file, got 'folders': there is no"
    ):
        scan_tree(str(tmp_path), labels="folders")
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "cat", "path,label", "1,lion", name="in_root.csv")
    table(tmp_path, "path,label", "1,tiger", name="here.csv")
    assert scan_tree("cat", labels="in_root.csv").class_names == ["lion"]
    assert scan_tree("cat", labels="here.csv").class_names == ["tiger"]


def test_labels_of_held_out_pictures_alone_are_said(tmp_path: Path) -> None:
    pictures(tmp_path, "train/1.png", "test/2.png", "test/3.png")
    tree = scan(tmp_path, "path,label", "2,cat")
    assert found(tree, tmp_path, "test") == {"test/2.png": None, "test/3.png": None}
    assert +tree.ignored == {"labels of held-out pictures, as none to train on has one": 1}


def test_a_label_that_pandas_left_out_is_none(tmp_path: Path) -> None:
    pictures(tmp_path, *DEEP)
    tree = scan(tmp_path, "id,label", "a,1", "b,nan", "c,NaN")
    assert tree.class_names == ["1"]
    assert sum(tree.ignored.values()) == 2
    assert found(tree, tmp_path)[DEEP[0]] == "1"


@pytest.mark.parametrize("head", ['path;"label,x"', '"path";"label,x"', 'path;"label,x";"a,b"'])
def test_a_comma_within_a_name_does_not_separate(head: str, tmp_path: Path) -> None:
    pictures(tmp_path, "a.png", "b.png")
    rest = ";1" * (head.count(";") - 1)
    tree = scan(tmp_path, head, f"a.png;cat{rest}", f"b.png;dog{rest}", label="label,x")
    assert found(tree, tmp_path) == {"a.png": "cat", "b.png": "dog"}


def test_a_file_of_labels_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, "a.png")
    name = table(tmp_path, "path,label", "a.png,cat")

    def refuse(*args: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mmcl_lightning.datamodules.labels.open", refuse, raising=False)
    with pytest.raises(DataError, match=r"labels\.csv cannot be read \(\[Errno 13\] Permission denied\)"):
        scan_tree(str(tmp_path), "auto", name)
    monkeypatch.undo()
    (tmp_path / "labels.csv").write_bytes("path,label\na.png,\u00e9t\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"labels\.csv is no text in UTF-8 .*: save it as CSV in UTF-8"):
        scan_tree(str(tmp_path), "auto", name)
