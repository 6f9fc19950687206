"""Pictures whose pixels are surface normals, and the images that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning.datamodules.pictures import PictureReader, is_picture
from mmcl_lightning.datamodules.sources import ImageSource
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import PixelImage

__all__ = ["NormalSource", "list_normals", "unit_normals"]

_PICKLES = (".pklz", ".pkl", ".pickle")


class NormalSource(ImageSource):
    """Images, and beside them their normals as colours.

    Args:
        files: Two files for each image, its own and that of its normals.
    """

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        self.files = list(files)
        self.targets = np.full(len(self.files), -1)
        self._read = PictureReader()

    def item(self, index: int) -> PixelImage:
        """Return image ``index``."""
        return self._read(self.files[index][0])

    def pair(self, index: int) -> tuple[Image.Image, Image.Image]:
        """Return image ``index`` and its normals, of one size, in mode RGB."""
        image, normals = (self._read(path) for path in self.files[index])
        assert isinstance(image, Image.Image)
        assert isinstance(normals, Image.Image)
        if image.size != normals.size:
            sizes = [f"{path} has {picture.width} x {picture.height} pixels" for path, picture in
                     zip(self.files[index], (image, normals), strict=True)]  # fmt: skip
            raise DataError(f"an image and its normals differ in size: {sizes[0]}, {sizes[1]}")
        return image, normals

    def digest(self, index: int) -> bytes:
        """Return size and pixels of image ``index``, and its normals."""
        return super().digest(index) + np.asarray(self.pair(index)[1]).tobytes()

    def path(self, index: int) -> str:
        """Return the file of image ``index``."""
        return self.files[index][0]

    def subset(self, indices: Any) -> NormalSource:
        """Return the images at ``indices``."""
        return NormalSource([self.files[index] for index in indices])


def unit_normals(colours: np.ndarray) -> Tensor:
    """Return unit normals ``(3, H, W)``, float32, of colours ``(H, W, 3)``, uint8; 0 where none is valid.

    Args:
        colours: Normals as ``(n + 1) / 2 * 255``.
    """
    normals = torch.tensor(colours).permute(2, 0, 1).float() * (2 / 255) - 1
    lengths = normals.norm(dim=0)
    valid = (lengths >= 0.9) & (lengths <= 1.1)
    return torch.where(valid, normals / lengths.clamp_min(0.9), 0.0)


def list_normals(root: Path, split: str) -> NormalSource:
    """List the images of a split, each with its normals.

    Args:
        root: The folder with ``image`` and ``normal``.
        split: ``"train"`` or ``"test"``.

    Raises:
        DataError: If a folder or a file is missing.
    """
    found = [_pictures(root, kind, split) for kind in ("image", "normal")]
    images, normals = found
    if lost := sorted(images.keys() ^ normals.keys()):
        where = "normal" if lost[0] in images else "image"
        raise DataError(
            f"{len(lost)} of the {len(images.keys() | normals.keys())} names in {root}/image/{split} and "
            f"{root}/normal/{split} are in one of them alone, the first being {lost[0]}, which is not in "
            f"{root / where / split}: an image and its normals have one name"
        )
    return NormalSource([(images[name], normals[name]) for name in sorted(images)])


def _pictures(root: Path, kind: str, split: str) -> dict[str, str]:
    """Return the pictures of a folder by their name without its ending."""
    folder = root / kind / split
    if not folder.is_dir():
        raise DataError(
            f"the folder {folder} is missing; set --data.root to the folder that has image/train, "
            f"image/test, normal/train and normal/test, fetched by hand{_of_pickles(root)}"
        )
    paths = sorted(str(path) for path in folder.iterdir() if is_picture(str(path)))
    if not paths:
        raise DataError(f"the folder {folder} has no picture{_of_pickles(folder)}")
    return {Path(path).stem: path for path in paths}


def _of_pickles(folder: Path) -> str:
    """Say what to do about the published ground truth, if it lies there."""
    found = [path for path in folder.glob("*") if path.suffix in _PICKLES]
    if not found:
        return ""
    return (
        f". {found[0].name} is a pickle, which can run code, and is not read: write its normals as PNGs, "
        "round((n + 1) / 2 * 255) in three channels, and 127 in all where its mask leaves pixels out"
    )
