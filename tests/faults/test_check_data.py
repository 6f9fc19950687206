"""``mmcl check-data``: every problem is found before a run, whatever a picture does to its reader."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules.checking import Finding, check_pictures
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import DataError


def noise(path: Path, seed: int, size: tuple[int, int] = (20, 24)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for index in range(4):
        noise(tmp_path / "photos" / "ab"[index % 2] / f"{index}.png", index)
    return tmp_path / "photos"


def test_a_good_folder(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check-data", "photos", "--workers=1"])
    assert capsys.readouterr().out == (
        "photos: class folders, 4 pictures\n4 of 4 pictures are as they should be\n"
        "next: mmcl fit --config folder_mmcl_log --data.root photos\n"
    )


def test_every_problem_is_listed(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "a" / "empty.png").touch()
    (photos / "a" / "cut.png").write_bytes((photos / "a" / "0.png").read_bytes()[:300])
    (photos / "b" / "twice.png").write_bytes((photos / "a" / "0.png").read_bytes())
    noise(photos / "b" / "x.png", 7).rename(photos / "b" / "x.jpg")
    noise(photos / "b" / "long.png", 8, (2, 50))
    Image.new("RGB", (20, 20), "red").save(photos / "b" / "red.png")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20)).save(photos / "b" / "deep.png")
    frames = [Image.fromarray(np.full((20, 20), level, np.uint8)) for level in (0, 9)]
    frames[0].paste(200, (0, 0, 9, 9))
    frames[0].save(photos / "b" / "moves.gif", save_all=True, append_images=frames[1:])
    (photos / "a" / "notes.txt").touch()
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", "photos", "--workers=2", "--out=problems.csv"])
    shown = capsys.readouterr().out
    assert "not read: .txt: 1" in shown
    assert "4 of 12 pictures are as they should be" in shown
    with open("problems.csv", newline="") as file:
        rows = {Path(path).name: (problem, detail) for path, problem, detail in list(csv.reader(file))[1:]}
    assert rows.pop("cut.png")[0] == "damaged"
    assert rows == {
        "empty.png": ("empty", "has no bytes"),
        "twice.png": ("duplicate", f"has the content of {photos / 'a' / '0.png'}"),
        "x.jpg": ("odd", "is PNG, and named .jpg"),
        "long.png": ("odd", "has 50 x 2 pixels"),
        "red.png": ("odd", "has one colour everywhere"),
        "deep.png": (
            "odd", "has 16 bits and values below 4096 alone, and is nearly black: set data.value_range"
        ),
        "moves.gif": ("odd", "has 2 frames, of which the first is read"),
    }  # fmt: skip
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", "photos", "--out=problems.csv"])
    assert "problems.csv exists: give another path" in capsys.readouterr().err


def test_options_of_the_data_are_those_of_a_run(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = (np.arange(400, dtype=np.float32) - 200).reshape(20, 20)
    Image.fromarray(values).save(photos / "a" / "cold.tif")
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", "photos"])
    assert "a/cold.tif has floats from -200 to 199, whose black and white" in capsys.readouterr().out
    main(["check-data", "photos", "--data.value_range=[-200, 199]", "--data.layout=flat"])
    assert "5 of 5 pictures are as they should be" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", "photos", "--data.max_pixels=400", "--data.value_range=[-200,199]"])
    assert "has 24 x 20 pixels, more than max_pixels, 400" in capsys.readouterr().out


class Hostile(PictureReader):
    """Hangs on one picture, and ends the process on another."""

    def __call__(self, path: str | Path) -> Image.Image:
        if "hang" in Path(path).name:
            time.sleep(1000)
        if "bomb" in Path(path).name:
            os._exit(9)
        if "bad" in Path(path).name:
            raise DataError(f"the image {path} cannot be read (x)")
        return super().__call__(path)  # type: ignore[return-value]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_picture_that_hangs_or_ends_its_process_is_one_of_many(tmp_path: Path, workers: int) -> None:
    names = ["0.png", "bomb.png", "hang.png", "bad.png", "1.png", "bomb2.png", "2.png"]
    paths = [str(noise(tmp_path / name, seed)) for seed, name in enumerate(names)]
    found = [each for each in check_pictures(paths, Hostile(), workers, patience=2.0)]
    assert len(found) == 7
    said = {os.path.basename(f.path): f for each in found for f in each}
    assert sorted(said) == ["bad.png", "bomb.png", "bomb2.png", "hang.png"]
    assert said["hang.png"] == Finding(paths[2], "damaged", "was not read in 2 seconds")
    assert said["bad.png"].detail == "cannot be read (x)"
    assert said["bomb.png"].detail == "ended the process that read it (exit code 9): out of memory?"


def test_names_that_steer_a_terminal_are_written_out(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(os.fsdecode(os.fsencode(photos) + b"/a/\x1b[31m\xff.png")).write_bytes(b"no picture")
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", "photos", "--out=problems.csv"])
    assert "a/\\x1b[31m\\udcff.png cannot be read" in capsys.readouterr().out


def test_an_option_that_decides_nothing_of_the_reading(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["check-data", "photos", "--data.image_size=32"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --data.image_size=32; there are --data.background, --data.bands" in said
    assert "--data.layout" in said
