"""Pictures as people have them: every kind is read right, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmcl_lightning.datamodules.pictures import PictureReader, is_picture
from mmcl_lightning.errors import ConfigError, DataError

RAMP = np.linspace(0.0, 1.0, 64).reshape(8, 8)


def read(path: Path, **options: Any) -> np.ndarray:
    image = PictureReader(**options)(path)
    assert image.mode == "RGB"
    return np.asarray(image)


def grey(path: Path, **options: Any) -> np.ndarray:
    pixels = read(path, **options)
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def save(path: Path, values: np.ndarray, **options: Any) -> Path:
    Image.fromarray(values).save(path, **options)
    return path


@pytest.mark.parametrize(
    ("name", "values", "options"),
    [
        ("float in [0, 1].tif", RAMP.astype(np.float32), {}),
        ("16 bits.png", (RAMP * 65535).round().astype(np.uint16), {}),
        ("16 bits.tif", (RAMP * 65535).round().astype(np.uint16), {}),
        ("12 bits in 16.tif", (RAMP * 4095).round().astype(np.uint16), {"value_range": (0, 4095)}),
        ("32-bit integers.tif", (RAMP * 1e6).round().astype(np.int32), {"value_range": (0, 1e6)}),
        ("32-bit integers of 16 bits.tif", (RAMP * 65535).round().astype(np.int32), {}),
        ("temperature.tif", (RAMP * 80 - 40).astype(np.float32), {"value_range": (-40, 40)}),
        ("8 bits.pgm", (RAMP * 255).round().astype(np.uint8), {}),
        ("8 bits.gif", (RAMP * 255).round().astype(np.uint8), {}),
    ],
)
def test_black_is_black_and_white_is_white(
    name: str, values: np.ndarray, options: dict[str, Any], tmp_path: Path
) -> None:
    found = grey(save(tmp_path / name, values), **options)
    assert np.abs(found - RAMP * 255).max() <= 1
    assert len(np.unique(found)) > 60


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            (RAMP * 255).astype(np.float32),
            r"floats from 0 to 255, .*set data.value_range, .*'\[0, 255\]'",
        ),
        ((RAMP * 1e6).astype(np.int32), "has integers of more than 16 bits from 0 to 1e"),
        (
            np.where(RAMP > 0.5, np.nan, RAMP).astype(np.float32),
            "has floats from 0 to 0.492063 and others that are not finite",
        ),
    ],
)
def test_values_without_a_known_range_are_refused(values: np.ndarray, match: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=match):
        read(save(tmp_path / "x.tif", values))


def test_transparent_pixels_show_the_background_and_not_what_they_hide(tmp_path: Path) -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[..., 0] = 200  # red everywhere, seen in one corner
    pixels[0, 0, 3] = 255
    path = save(tmp_path / "x.png", pixels)
    assert read(path).tolist() == [[[200, 0, 0], [255, 255, 255]], [[255, 255, 255]] * 2]
    assert read(path, background=(1, 2, 3))[1, 1].tolist() == [1, 2, 3]
    assert read(path, background=0)[1, 1].tolist() == [0, 0, 0]
    Image.fromarray(pixels).convert("RGB").convert("P").save(tmp_path / "p.gif", transparency=0)
    assert read(tmp_path / "p.gif").shape == (2, 2, 3)


def test_a_picture_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # the left half is white: after turning it is the upper one
    Image.fromarray(pixels).save(tmp_path / "x.jpg", exif=exif, quality=100)
    found = read(tmp_path / "x.jpg")
    assert found.shape == (16, 8, 3)
    assert found[:8].mean() > 250
    assert found[8:].mean() < 5


def test_the_size_has_a_limit_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.png", np.zeros((40, 50), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow's, which would call it a bomb
    assert read(path).shape == (40, 50, 3)
    assert Image.MAX_IMAGE_PIXELS == 100
    with pytest.raises(
        DataError, match=r"has 50 x 40 pixels, more than max_pixels, 1999: set data.max_pixels"
    ):
        read(path, max_pixels=1999)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.tif").write_bytes(b"II*\0 and no more")
    with pytest.raises(DataError, match=r"x\.tif cannot be read .*repair or remove it"):
        read(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"nowhere\.png cannot be read"):
        read(tmp_path / "nowhere.png")


def test_what_is_a_picture(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.jfif", "c.gif", "d.pgm", "e.jp2", "f.avif", "g.webp", "h.TIFF"):
        assert is_picture(str(tmp_path / name)), name
    for name in ("a.txt", "b.pdf", "c.mp4", "d.h5", ".hidden.png", "._x.jpg", "Thumbs.db"):
        assert not is_picture(str(tmp_path / name)), name
    Image.new("RGB", (4, 4)).save(tmp_path / "picture", format="PNG")
    (tmp_path / "README").write_text("nothing to see")
    assert is_picture(str(tmp_path / "picture"))
    assert not is_picture(str(tmp_path / "README"))


@pytest.mark.parametrize(
    "options",
    [{"value_range": (1, 0)}, {"value_range": (0, "1")}, {"background": 256}, {"background": (0, 0)}],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        PictureReader(**options)
