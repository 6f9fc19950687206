"""Pictures of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from mmcl_lightning.datamodules.pictures import PictureReader, is_picture
from mmcl_lightning.modules import SimCLR
from use_cases.cases import case, error_of, fit, folder, picture, tree

RAMP = np.linspace(0.0, 1.0, 64).reshape(8, 8)


def levels(path: Path | str, **options: Any) -> str:
    """Read a picture and say which levels it has."""
    image: Any = PictureReader(**options)(path)
    values = np.asarray(image if isinstance(image, Image.Image) else image.numpy())
    shape = image.mode if isinstance(image, Image.Image) else f"{len(values)} channels"
    return f"{shape}, {len(np.unique(values))} levels from {values.min()} to {values.max()}"


def save(values: np.ndarray, name: str = "a.tif") -> str:
    """Write an array as a picture."""
    Image.fromarray(values).save(name)
    return name


def bands(count: int, dtype: Any = np.uint8, **options: Any) -> str:
    """Write a TIFF of several bands."""
    values = (np.arange(8 * 8 * count).reshape(8, 8, count) % 200).astype(dtype)
    tifffile.imwrite("a.tif", values, **({"photometric": "minisblack", "planarconfig": "contig"} | options))
    return "a.tif"


GROUP = "Pictures"
case(GROUP, "float TIFF in [0, 1]", "64 levels from 0 to 255")(
    lambda _: levels(save(RAMP.astype(np.float32)))
)
case(GROUP, "float TIFF of temperatures, no range given", "--data.value_range '[-40, 40]'")(
    lambda _: error_of(levels, save((RAMP * 80 - 40).astype(np.float32)))
)
case(GROUP, "the same with `value_range: [-40, 40]`", "64 levels from 0 to 255")(
    lambda _: levels(save((RAMP * 80 - 40).astype(np.float32)), value_range=(-40, 40))
)
case(GROUP, "16-bit PNG", "64 levels from 0 to 255")(
    lambda _: levels(save((RAMP * 65535).astype(np.uint16), "a.png"))
)
case(GROUP, "12 bits in 16, `value_range: [0, 4095]`", "64 levels from 0 to 255")(
    lambda _: levels(save((RAMP * 4095).astype(np.uint16)), value_range=(0, 4095))
)
case(GROUP, "32-bit integers", "set data.value_range")(
    lambda _: error_of(levels, save((RAMP * 1e6).astype(np.int32)))
)
case(GROUP, "four bands, of which Pillow shows three", "has 4 bands, expected 3: set data.channels to 4")(
    lambda _: error_of(levels, bands(4, photometric="rgb", extrasamples=[0]))
)
case(GROUP, "two bands, of which Pillow shows one", "has 2 bands, expected 3")(
    lambda _: error_of(levels, bands(2))
)
case(GROUP, "five bands, `channels: 5`", "5 channels")(lambda _: levels(bands(5), channels=5))
case(GROUP, "five bands, `bands: [3, 2, 1]`", "RGB")(lambda _: levels(bands(5), bands=(3, 2, 1)))
case(GROUP, "five bands of 16 bits, LZW, `channels: 5, value_range: [0, 200]`", "5 channels, 200 levels")(
    lambda _: levels(bands(5, np.uint16, compression="lzw"), channels=5, value_range=(0, 200))
)
case(GROUP, "colour read as grey, `channels: 1`", "1 channels, 1 levels from 76 to 76")(
    lambda _: levels(picture("a.png", (255, 0, 0)), channels=1)
)


@case(GROUP, "hidden colours of transparent pixels", "white where transparent")
def _(_: Path) -> str:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save("a.png")
    pixel = PictureReader()("a.png").getpixel((0, 0))  # type: ignore[union-attr]
    colour = "white" if pixel == (255, 255, 255) else pixel
    return f"{colour} where transparent; `background` sets another colour"


@case(GROUP, "EXIF orientation", "upright")
def _(_: Path) -> str:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture("a.jpg", size=(20, 16), exif=exif)
    size = PictureReader()("a.jpg").size  # type: ignore[union-attr]
    return f"upright, {size[0]} x {size[1]} pixels of 20 x 16 in the file"


@case(GROUP, ".gif, .pgm, .jfif, .jp2, .avif, .webp, no ending", "7 of 7 are read")
def _(_: Path) -> str:
    for end in ("gif", "pgm", "jfif", "jp2", "avif", "webp"):
        picture(f"a.{end}", format="JPEG" if end == "jfif" else None)
    picture("picture", format="PNG")
    names = sorted(path.name for path in Path().iterdir())
    read = [name for name in names if is_picture(name) and PictureReader()(name)]
    return f"{len(read)} of {len(names)} are read"


@case(GROUP, "more pixels than `max_pixels`", "set data.max_pixels if that is right")
def _(_: Path) -> str:
    return error_of(PictureReader(max_pixels=100), picture("a.png"))


@case(GROUP, "a damaged picture", "repair or remove it")
def _(_: Path) -> str:
    Path("a.jpg").write_bytes(b"no picture")
    return error_of(PictureReader(), "a.jpg")


@case(GROUP, "12 bits in 16 without a range, in a run", "have 16 bits and values below 4096 alone")
def _(_: Path) -> str:
    import warnings

    for index in range(6):
        Image.fromarray((RAMP * 4095).astype(np.uint16)).save(f"{index}.png")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(SimCLR(backbone="conv4", projection_head="cifar"), folder(batch_size=2))
    return next((str(w.message) for w in said if "16 bits" in str(w.message)), "nothing is said")


@case(GROUP, "`image_size: [16, 24]`", "(4, 3, 16, 24)")
def _(_: Path) -> str:
    tree("a", "b")
    (view, _), _ = next(iter(folder(image_size=(16, 24)).train_dataloader()))
    return f"views {tuple(view.shape)}"


@case(GROUP, "training on five bands", "2 steps")
def _(_: Path) -> str:
    for index in range(10):
        bands(5)
        Path("a.tif").rename(f"{index}.tif")
    module = SimCLR(backbone={"name": "conv4", "in_channels": 5}, projection_head="cifar")
    return f"{fit(module, folder(channels=5)).global_step} steps"


@case(GROUP, "five bands and a network of three channels", "first layer takes 3")
def _(_: Path) -> str:
    for index in range(10):
        bands(5)
        Path("a.tif").rename(f"{index}.tif")
    return error_of(fit, SimCLR(backbone="conv4", projection_head="cifar"), folder(channels=5))
