"""Representations for TensorBoard's projector, with thumbnails and classes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from mmcl_lightning._text import plain
from mmcl_lightning.representations.images import EmbeddedImages
from mmcl_lightning.representations.pictures import Read, thumbnail

__all__ = ["write_projector"]

_SIDE = 48  # pixels of a thumbnail; the sprite of 5,000 has 3,408, and TensorBoard takes 8,192


def write_projector(images: EmbeddedImages, folder: Path, root: Path | None, read: Read | None) -> None:
    """Write representations as TensorBoard's projector reads them.

    Args:
        images: At most 5,000, as :func:`~mmcl_lightning.representations.maps.sample` takes them.
        folder: Folder to write, for ``tensorboard --logdir``.
        root: Folder that the paths of the images are relative to; None for no thumbnails.
        read: Reads one of them; None for no thumbnails.

    Raises:
        DataError: If an image cannot be read.
    """
    pictures = None
    if root is not None and read is not None:
        pictures = torch.stack([_square(thumbnail(read, root / path, _SIDE)) for path in images.paths])
    rows = [
        [plain(text) or "-" for text in row]
        for row in zip(images.classes, images.splits, images.paths, strict=True)
    ]
    with SummaryWriter(str(folder)) as board:
        board.add_embedding(
            images.h, rows, pictures, tag="h", metadata_header=["class", "split", "path"]
        )  # fmt: skip


def _square(picture: Tensor) -> Tensor:
    """Put a picture into the middle of a white square."""
    page = torch.ones(3, _SIDE, _SIDE)
    top, left = (_SIDE - picture.shape[1]) // 2, (_SIDE - picture.shape[2]) // 2
    page[:, top : top + picture.shape[1], left : left + picture.shape[2]] = picture
    return page
