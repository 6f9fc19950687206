"""Files of every kind that lie among pictures are read right, counted as left out, or refused."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.walking import Walk
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms import EvalTransform
from mmcl_lightning.transforms.images import crop_image


def test_every_kind_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m use_cases`` takes each through the command line besides, and makes the table."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from use_cases import kinds

    wrong = {}
    for index, kind in enumerate(kinds.KINDS):
        place = tmp_path / str(index)
        place.mkdir()
        monkeypatch.chdir(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.write(Path(kind.name))
            found = kinds.reading(kind)
        walk = Walk(str(place))
        listed = walk.entries(str(place))[0]
        if left := [f"{why}: {count}" for why, count in walk.ignored.items()]:
            found = f"not read: {left[0]}"
        if not kinds.is_right(found, kind) or (listed == [kind.name]) == bool(left):
            wrong[kind.what] = found
    assert wrong == {}
    assert len(kinds.KINDS) >= 50


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no users")
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Its class would be missed without a word."""
    for name in "abc":
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    (tmp_path / "b").chmod(0)
    before = os.geteuid()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-", tmp_path.name)):
            folder.chmod(0o755)
    try:
        os.seteuid(before or 65534)
        with pytest.raises(DataError, match=r"/b cannot be read \(Permission denied\): make it readable"):
            ImageFolderDataModule(str(tmp_path)).setup()
        with pytest.raises(DataError, match=r"folder .*/b/c cannot be read \(Permission denied\)"):
            ImageFolderDataModule(str(tmp_path / "b" / "c")).setup()
    finally:
        os.seteuid(before)
        (tmp_path / "b").chmod(0o755)


def test_names_of_classes_that_are_no_utf_8_can_be_shown(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"\xd9\x85\xe2\x80\x8c\xd9\x85", b"tea"):  # latin-1; a joiner that writing needs
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        for index in range(2):
            Image.new("RGB", (4, 4)).save(folder / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path))
    assert data.class_names == ["caf\\udce9", "tea", "\u0645\u200c\u0645"]
    assert np.bincount(data.splits.pretrain.targets).tolist() == [1, 1, 1]
    "".join(data.class_names).encode()


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 700)])
def test_a_long_picture_does_not_fill_the_memory(size: tuple[int, int]) -> None:
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    middle = size[1] // 2, size[0] // 2
    pixels[max(0, middle[0] - 2) : middle[0] + 2, max(0, middle[1] - 2) : middle[1] + 2] = 255
    found = EvalTransform.imagenet(32, 40)(Image.fromarray(pixels))
    assert found.shape == (3, 32, 32)
    assert found.mean() > 0.9  # the middle is seen


@pytest.mark.parametrize("size", [(20, 100), (81, 700), (50, 50)])
def test_the_ends_that_are_cut_off_are_not_seen(size: tuple[int, int]) -> None:
    """Up to 8 times as long as wide nothing is cut off; beyond, the centre is the same to rounding."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    found = EvalTransform.imagenet(32, 40)(Image.fromarray(pixels))
    high = round(40 * size[1] / size[0])
    whole = Image.fromarray(pixels).resize((40, high), Image.Resampling.BICUBIC)
    expected = np.asarray(whole)[(high - 32) // 2 :][:32, 4:36].transpose(2, 0, 1) / 255
    assert np.abs(found.numpy() - expected).max() < (1e-6 if size[1] <= 8 * size[0] else 0.1)


def test_large_pictures_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow calls a cut of many pixels a bomb, and refuses twice as many."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert crop_image(Image.new("RGB", (20, 20)), 0, 0, 10, 10).size == (10, 10)


def test_a_picture_that_is_upright_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies were most of the time of a picture of 169 million pixels."""
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    made: list[str] = []
    monkeypatch.setattr(Image.Image, "copy", lambda self: made.append("copy"))
    assert PictureReader()(tmp_path / "x.png").size == (8, 8)
    assert made == []


def test_a_message_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["check-data", f"{tmp_path}/\x1b[2Jgone"])
    assert "/\\x1b[2Jgone does not exist" in capsys.readouterr().err
