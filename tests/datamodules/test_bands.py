"""Pictures of other than three channels, from the file to the views."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import tifffile
import torch
from lightning.pytorch import Trainer
from PIL import Image, UnidentifiedImageError

from mmcl_lightning.batches import views_of
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.modules import MMCL

FIVE = np.arange(5 * 6 * 7, dtype=np.uint8).reshape(6, 7, 5)


def tiff(path: Path, values: np.ndarray, **options: Any) -> Path:
    tifffile.imwrite(path, values, **({"photometric": "minisblack", "planarconfig": "contig"} | options))
    return path


def test_all_bands_are_read_as_they_are(tmp_path: Path) -> None:
    image = PictureReader(channels=5)(tiff(tmp_path / "a.tif", FIVE))
    assert image.dtype == torch.uint8
    assert np.array_equal(image.numpy(), FIVE.transpose(2, 0, 1))


def test_bands_are_chosen_in_the_order_given(tmp_path: Path) -> None:
    path = tiff(tmp_path / "a.tif", FIVE)
    assert np.array_equal(np.asarray(PictureReader(bands=(3, 0, 4))(path)), FIVE[..., [3, 0, 4]])
    assert np.array_equal(PictureReader(bands=(2, 2))(path).numpy(), FIVE[..., [2, 2]].transpose(2, 0, 1))
    with pytest.raises(DataError, match=r"a\.tif has 5 bands, counted from 0, and data\.bands is \(5,\)"):
        PictureReader(bands=(5,))(path)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (FIVE.transpose(2, 0, 1), {"planarconfig": "separate"}),  # band by band
        (FIVE.transpose(2, 0, 1), {"planarconfig": None}),  # pages
        (FIVE, {"compression": "lzw"}),
        (FIVE, {"compression": "zlib", "bigtiff": True}),
        (FIVE.astype(np.uint16) * 257, {}),
        ((FIVE / 255).astype(np.float32), {}),
    ],
)
def test_layouts_and_types_of_files(values: np.ndarray, options: dict[str, Any], tmp_path: Path) -> None:
    image = PictureReader(channels=5)(tiff(tmp_path / "a.tif", values, **options))
    assert np.array_equal(image.numpy(), FIVE.transpose(2, 0, 1))


@pytest.mark.parametrize(("bands", "pillow"), [(2, "L"), (4, "RGB"), (5, None), (7, None)])
def test_bands_are_not_dropped_unsaid(bands: int, pillow: str | None, tmp_path: Path) -> None:
    """Of some of these files Pillow would show the first bands."""
    values = np.zeros((6, 7, bands), np.uint8)
    extra = {"photometric": "rgb", "extrasamples": [0]} if bands == 4 else {}
    path = tiff(tmp_path / "a.tif", values, **extra)
    if pillow is not None:
        known = bands != 2 or int(PIL.__version__.partition(".")[0]) >= 13
        with contextlib.nullcontext() if known else pytest.raises(UnidentifiedImageError):
            assert Image.open(path).mode == pillow
    with pytest.raises(DataError, match=rf"has {bands} bands, expected 3: set data\.channels to {bands}"):
        PictureReader()(path)
    with pytest.raises(DataError, match=f"has {bands} bands, expected 6"):
        PictureReader(channels=6)(path)


def test_three_bands_that_pillow_does_not_know_are_colours(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((6, 7, 3)).astype(np.float32)
    read = np.asarray(PictureReader()(tiff(tmp_path / "a.tif", values, photometric="rgb")))
    assert np.array_equal(read, np.rint(values * 255))
    assert read.shape == (6, 7, 3)


def test_grey_from_colour_and_colour_from_grey(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4), (255, 0, 0)).save(tmp_path / "red.png")
    assert PictureReader(channels=1)(tmp_path / "red.png").unique().tolist() == [76]  # 0.299 of red
    one = PictureReader(channels=1)(tiff(tmp_path / "deep.tif", np.full((4, 5), 32896, np.uint16)))
    assert one.shape == (1, 4, 5)
    assert one.unique().tolist() == [128]


def test_a_range_holds_for_colours_of_16_bits(tmp_path: Path) -> None:
    values = np.linspace(0, 4095, 6 * 7 * 3).round().astype(np.uint16).reshape(6, 7, 3)
    read = PictureReader(value_range=(0, 4095))(tiff(tmp_path / "a.tif", values, photometric="rgb"))
    assert np.abs(np.asarray(read) - values / 4095 * 255).max() <= 0.5
    assert PictureReader().is_dark_by_depth(tmp_path / "a.tif")
    assert PictureReader(channels=5).is_dark_by_depth(tiff(tmp_path / "b.tif", FIVE.astype(np.uint16)))


def test_a_stack_of_more_axes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((2, 3, 6, 7), np.uint8), imagej=True, metadata={"axes": "ZCYX"})
    with pytest.raises(
        DataError, match=r"has the axes ZCYX of sizes \(2, 3, 6, 7\); expected bands, Y and X"
    ):
        PictureReader(channels=3, bands=(0, 1, 2))(path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"channels": 0}, "channels must be an integer >= 1"),
        ({"bands": ()}, "bands must be numbers of bands, counted from 0"),
        ({"bands": (-1,)}, "bands must be numbers of bands, counted from 0"),
        ({"bands": (0, 1), "channels": 3}, "channels is 3, and bands names 2: leave channels out"),
    ],
)
def test_options_are_checked(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PictureReader(**options)


@pytest.mark.parametrize("augment", ["worker", "device"])
@pytest.mark.parametrize("cache", [False, True])
def test_a_network_trains_on_four_channels(augment: str, cache: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(12):
        path = tmp_path / "ab"[index % 2] / f"{index}.tif"
        path.parent.mkdir(exist_ok=True)
        tiff(path, rng.integers(0, 255, (20, 24, 4), np.uint8))
    options = {"mean": (0.5,) * 4, "std": (0.25,) * 4, "batch_size": 4, "num_workers": 0}
    data = ImageFolderDataModule(
        str(tmp_path), image_size=16, channels=4, cache=cache, augment=augment, **options
    )
    views = views_of(next(iter(data.train_dataloader())))
    assert [view.shape for view in views] == [(4, 4, 16, 16)] * 2
    assert -2 <= min(v.min() for v in views) < max(v.max() for v in views) <= 2
    module = MMCL(backbone={"name": "conv4", "in_channels": 4}, projection_head="cifar")
    trainer = Trainer(max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(module, data)
    assert trainer.global_step == 2
    assert module.preprocessing["channels"] == 4
    with pytest.raises(ConfigError, match="mean and std have 4 numbers, and images 3 channels"):
        ImageFolderDataModule(str(tmp_path), **options)


def test_pages_that_were_written_one_by_one(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for band in FIVE.transpose(2, 0, 1):
            file.write(band, photometric="minisblack", contiguous=False)
    image = PictureReader(channels=5)(tmp_path / "a.tif")
    assert np.array_equal(image.numpy(), FIVE.transpose(2, 0, 1))


def test_a_stack_of_pages_is_not_its_first_page(tmp_path: Path) -> None:
    path = tiff(tmp_path / "a.tif", FIVE.transpose(2, 0, 1), planarconfig=None)
    for options in ({}, {"channels": 1}):
        with pytest.raises(DataError, match=r"a\.tif has 5 pages: set data\.channels to 5, or say which"):
            PictureReader(**options)(path)
    assert np.array_equal(PictureReader(bands=(1,))(path)[0].numpy(), FIVE[..., 1])
    with tifffile.TiffWriter(tmp_path / "photo.tif") as file:  # as cameras write it, with a thumbnail
        file.write(FIVE[..., :3], photometric="rgb")
        file.write(FIVE[:3, :3, :3], photometric="rgb")
    assert np.array_equal(np.asarray(PictureReader()(tmp_path / "photo.tif")), FIVE[..., :3])


def test_types_of_values(tmp_path: Path) -> None:
    """Eight bits are taken as they are, whatever the range; what is not known is refused."""
    path = tiff(tmp_path / "a.tif", FIVE)
    assert np.array_equal(
        PictureReader(channels=5, value_range=(0, 4095))(path).numpy(), FIVE.transpose(2, 0, 1)
    )
    mask = tiff(tmp_path / "m.tif", FIVE > 100)
    assert PictureReader(channels=5)(mask).unique().tolist() == [0, 255]
    signed = tiff(tmp_path / "s.tif", FIVE.astype(np.int8))
    with pytest.raises(DataError, match=r"s\.tif has values of type int8, .*: set data\.value_range"):
        PictureReader(channels=5)(signed)
    assert PictureReader(channels=5, value_range=(-128, 127))(signed).max() == 255
    with pytest.raises(DataError, match=r"c\.tif has complex numbers, .*: convert it to floats"):
        PictureReader(channels=5)(tiff(tmp_path / "c.tif", FIVE.astype(np.complex64)))
    values = np.where(FIVE > 100, np.nan, FIVE).astype(np.float32)
    with pytest.raises(DataError, match=r"--data\.value_range '\[0, 100\]'"):
        PictureReader(channels=5)(tiff(tmp_path / "n.tif", values))


def test_colours_of_16_bits_in_other_files(tmp_path: Path) -> None:
    """Pillow reads the upper 8 bits of them, which is right without a range."""
    import imagecodecs

    values = np.linspace(0, 65535, 6 * 7 * 3).round().astype(np.uint16).reshape(6, 7, 3)
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(values))
    assert np.abs(np.asarray(PictureReader()(tmp_path / "a.png")) - values / 257).max() <= 1
    for options in ({"value_range": (0, 4095)}, {"bands": (0, 1, 2)}):
        with pytest.raises(DataError, match=r"a\.png has colours of 16 bits, of which Pillow reads 8: for"):
            PictureReader(**options)(tmp_path / "a.png")
