"""``mmcl neighbours``: tables and a picture of what a file of representations says."""

from __future__ import annotations

import csv
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from test_cli import complaint

from mmcl_lightning.callbacks.tables import write_table
from mmcl_lightning.cli import main

PATHS = ["train/cat/1.png", "train/cat/2.png", "train/dog/3.png", "test/dog/4.png", "test/cat/5.png"]
#: Degrees of h in the plane: 1 and 5 are 2 degrees apart, across splits; 2 and 3 are 1 degree apart.
ANGLES = np.deg2rad([0, 30, 31, 80, 2])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    h = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)
    columns = {
        "h": h,
        "path": np.array(PATHS),
        "class": np.array([Path(path).parent.name for path in PATHS]),
        "split": np.array([path.partition("/")[0] for path in PATHS]),
    }
    write_table(Path("out.npz"), columns)
    for index, path in enumerate(PATHS):
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (40 * index, 0, 0)).save(tmp_path / "photos" / path)
    return tmp_path


def read(name: str) -> list[list[str]]:
    with open(name, newline="") as file:
        return list(csv.reader(file))


def test_tables_name_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    main(["neighbours", "out.npz", "--k=2", "--duplicates=0.999"])
    rows = read("neighbours.csv")
    assert rows[0] == ["query", "rank", "neighbour", "similarity"]
    assert len(rows) == 1 + 5 * 2
    assert rows[1:3] == [
        ["train/cat/1.png", "1", "test/cat/5.png", "0.999391"],
        ["train/cat/1.png", "2", "train/cat/2.png", "0.866025"],
    ]
    assert read("neighbours.duplicates.csv") == [
        ["first", "second", "similarity", "first_split", "second_split"],
        ["train/cat/1.png", "test/cat/5.png", "0.999391", "train", "test"],  # across splits first
        ["train/cat/2.png", "train/dog/3.png", "0.999848", "train", "train"],
    ]
    said = capsys.readouterr().out
    assert "similarity of an image to its nearest: 0.9994 in the median" in said
    assert "2 pairs of 5 images have a cosine similarity of 0.999 or more, 1 of them across splits" in said
    assert "  0.999391 train/cat/1.png test/cat/5.png (train and test)\n" in said
    assert said.endswith(
        "Wrote neighbours.csv, neighbours.duplicates.csv\n"
        "next: mmcl neighbours out.npz --picture --root FOLDER\n"
    )
    main(["neighbours", "out.npz", "--k=2", "--duplicates=0.999"])
    assert read("neighbours_2.csv") == rows
    assert "half of the images are that similar to their nearest" in said
    capsys.readouterr()
    main(["neighbours", "out.npz", "--k=2", "--duplicates=0.9995"])
    assert "near duplicates, if that is far above the median" in capsys.readouterr().out
    main(["neighbours", "out.npz", "--k=2", "--duplicates=0.999", "--query", "cat/1.png"])
    said = capsys.readouterr().out
    assert "half of the images" not in said
    assert "similarity of a query to its nearest: 0.9994" in said
    assert "median of all images, which is said without --query" in said


def test_the_next_command_can_be_given_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    main(["neighbours", "out.npz"])
    for name in ("neighbours.png", "neighbours_2.png"):
        (command,) = re.findall("^next: mmcl (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
        main(command.replace("FOLDER", "photos").split())
        assert Image.open(name).width > 100
        capsys.readouterr()
        main(["neighbours", "out.npz"])


def test_a_picture_of_some_queries() -> None:
    options = ["--k=2", "--out=made/n.csv", "--picture=made/n.png", "--root=photos"]
    main(["neighbours", "out.npz", "--query", "4", "cat/1.png", *options])
    assert [row[:3] for row in read("made/n.csv")[1:]] == [
        ["test/dog/4.png", "1", "train/dog/3.png"],
        ["test/dog/4.png", "2", "train/cat/2.png"],
        ["train/cat/1.png", "1", "test/cat/5.png"],
        ["train/cat/1.png", "2", "train/cat/2.png"],
    ]
    with Image.open("made/n.png") as picture:
        colours = {pixel for _, pixel in picture.convert("RGB").getcolors(2**24)}
    assert {(40 * index, 0, 0) for index in range(5)} <= colours
    assert {
        (0, 0x9E, 0x73),
        (0, 0x72, 0xB2),
        (0xD5, 0x5E, 0),
    } <= colours  # query, neighbour, of another class


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none.npz"], "there is no file none.npz: give one that predict or embed wrote"),
        (["out.npz", "--query=7.png"], "--query 7.png fits 0 of the 5 images"),
        (["out.npz", "--query=cat"], "--query cat fits 0 of the 5 images"),
        (["out.npz", "--out=out.npz"], "out.npz exists: give another path to write to, or remove it"),
        (["out.npz", "--picture=n.png"], "--picture needs the images: set --root to the folder"),
        (["out.npz", "--picture=n.jpg"], "--picture is a file whose name ends in .png, got n.jpg"),
        (["out.npz", "--k=0"], "k must be an integer >= 1, got 0"),
    ],
)
def test_what_cannot_work(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in complaint(["neighbours", *options], capsys, code=1)


def test_names_and_numbers_in_place_of_paths() -> None:
    h = np.eye(3, dtype=np.float32)
    write_table(Path("names.npz"), {"h": h, "name": np.array(["a", "b", "c"])})
    write_table(Path("bare.npz"), {"h": h})
    main(["neighbours", "names.npz", "--query=b", "--k=1"])
    main(["neighbours", "bare.npz", "--query=1", "--k=1"])
    assert read("neighbours.csv")[1] == ["b", "1", "a", "0.000000"]
    assert read("neighbours_2.csv")[1] == ["1", "1", "0", "0.000000"]


def test_the_same_name_in_two_splits_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"path": np.array(["0", "1", "0"]), "split": np.array(["train", "train", "test"])}
    write_table(Path("two.npz"), {"h": np.eye(3, dtype=np.float32), **columns})
    said = complaint(["neighbours", "two.npz", "--query=0"], capsys, code=1)
    assert "--query 0 fits 2 of the 3 images, such as train/0 and test/0" in said
    main(["neighbours", "two.npz", "--query=test/0", "--k=2"])
    assert read("neighbours.csv")[1:] == [
        ["test/0", "1", "train/0", "0.000000"],
        ["test/0", "2", "train/1", "0.000000"],
    ]
    write_table(Path("same.npz"), {"h": np.eye(2, dtype=np.float32), "name": np.array(["a", "a"])})
    said = complaint(["neighbours", "same.npz", "--query=a"], capsys, code=1)
    assert "--query a fits 2 of the 2 images" in said


H = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"h": H + 1j}, "h of x.npz must be real numbers (N, F), a row per image, got complex64 (3, 3)"),
        ({"h": np.array(["a", "b"])}, "got <U1 (2,)"),
        ({"h": np.float32(3)}, "got float32 ()"),
        ({"h": H[0]}, "got float32 (3,)"),
        ({"h": H, "path": np.array(["a", "b"])}, "path of x.npz must have a value for each of the 3 rows"),
        ({"h": H, "split": np.array("train")}, "split of x.npz must have a value for each of the 3 rows"),
    ],
)
def test_a_table_of_another_kind(
    columns: dict[str, np.ndarray], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("x.npz", **columns)
    assert message in complaint(["neighbours", "x.npz"], capsys, code=1)
    assert not list(Path().glob("*.csv*"))


def test_names_of_other_bytes_than_utf8_reach_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = [os.fsdecode(name) for name in (b"\xff.png", b"b.png")]
    write_table(Path("odd.npz"), {"h": np.ones((2, 2), np.float32), "path": np.array(names)})
    main(["neighbours", "odd.npz"])
    assert Path("neighbours.csv").read_bytes().splitlines()[1] == b"\xff.png,1,b.png,1.000000"
    assert "  1.000000 \\udcff.png b.png\n" in capsys.readouterr().out
    assert sorted(path.name for path in Path().glob("neighbours*")) == [
        "neighbours.csv",
        "neighbours.duplicates.csv",
    ]


def test_a_picture_of_images_of_many_bands(capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(2):
        bands = np.full((5, 8, 8), 100 * (index + 1), np.uint16)
        tifffile.imwrite(f"{index}.tif", bands, photometric="minisblack", planarconfig="separate")
    table = {"h": np.eye(2, dtype=np.float32), "path": np.array(["0.tif", "1.tif"])}
    write_table(Path("bands.npz"), table)
    command = ["neighbours", "bands.npz", "--picture=n.png", "--root=."]
    said = complaint(command, capsys, code=1)
    assert "has 5 bands, expected 3: set --channels to 5, or say which to take, as in --bands '[0" in said
    assert not list(Path().glob("*.csv")), "the next try is not told that they exist"
    main([*command, "--bands=[4, 0, 1]", "--value_range=[0, 255]"])
    with Image.open("n.png") as picture:
        colours = {pixel for _, pixel in picture.convert("RGB").getcolors(2**24)}
    assert {(100, 100, 100), (200, 200, 200)} <= colours
    main([*command[:2], "--picture=all.png", "--root=.", "--channels=5", "--value_range=[0, 255]"])
    assert Path("all.png").read_bytes() == Path("n.png").read_bytes()


@pytest.mark.parametrize("kind", [">f4", "<f8", np.longdouble, "<i2"])
def test_numbers_of_any_kind_are_read(kind: Any) -> None:
    np.savez("x.npz", h=(10 * H).astype(kind))
    main(["neighbours", "x.npz", "--query=1", "--k=1"])
    assert read("neighbours.csv")[1] == ["1", "1", "0", "0.000000"]


@pytest.mark.parametrize(
    "head", [b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**6, 10**6)}", b"(" * 60]
)
def test_arrays_with_a_head_that_cannot_be(head: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("good.npz", h=H)
    head = head.replace(b"10**6", b"1000000").ljust(117) + b"\n"
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("h.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    assert "x.npz cannot be read as representations" in complaint(["neighbours", "x.npz"], capsys, code=1)


def test_a_list_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[" * 5000, "7", "[1,"):
        with pytest.raises(SystemExit):
            main(["neighbours", "out.npz", f"--value_range={text}"])
        said = capsys.readouterr().err
        assert "argument --value_range: expected a list, such as '[0, 1]', got '" in said
        assert text[:60] in said
        assert "[" * 100 not in said
