"""Images to search for that are not in the file of representations: the network sees them now."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmcl_lightning._embed import embed_folder
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.modules import PretrainedBackbone
from mmcl_lightning.representations import EmbeddedImages

__all__ = ["with_new_images"]


def with_new_images(
    images: EmbeddedImages,
    files: Sequence[str],
    checkpoint: str,
    backbone: str | None,
    reading: dict[str, Any],
) -> EmbeddedImages:
    """Return images of a file of representations, and after them others, each with its absolute path.

    Args:
        images: Those of the file.
        files: The others.
        checkpoint: Weights that the representations of the file are of, as ``embed`` takes them.
        backbone: The network, where the weights do not say it.
        reading: How the files are read: options of an image folder.

    Raises:
        ConfigError: If the weights do not say how images are made, or give representations of another width.
        DataError: If one cannot be read.
    """
    if PretrainedBackbone(checkpoint, backbone).preprocessing is None:
        raise ConfigError(
            f"--checkpoint {checkpoint} does not say how its images are made, so others could not be "
            "compared: write them into the file too, by embed, and leave --checkpoint out"
        )
    with tempfile.TemporaryDirectory() as place:
        for number, file in enumerate(files):  # links: they may lie anywhere, and have equal names
            os.symlink(Path(file).absolute(), Path(place) / f"{number:06}{Path(file).suffix}")
        data = ImageFolderDataModule(
            place, layout="flat", holdout=0.0, num_workers=0, on_bad_image="error", **reading
        )
        out = Path(place) / "new.npz"
        try:
            logging.disable(logging.INFO)  # on a folder that nobody has heard of
            with contextlib.redirect_stdout(io.StringIO()):
                embed_folder(data, checkpoint, backbone, out=str(out), map="none")
        except DataError as error:
            text = str(error)
            for number, file in enumerate(files):
                text = text.replace(str(Path(place) / f"{number:06}{Path(file).suffix}"), file)
            raise DataError(text) from error
        finally:
            logging.disable(logging.NOTSET)
        new = EmbeddedImages.read(str(out))
    if new.h.shape[1] != images.h.shape[1]:
        raise ConfigError(
            f"--checkpoint {checkpoint} gives h of {new.h.shape[1]} features, and the file has "
            f"{images.h.shape[1]}: give the weights that the file was made with"
        )
    paths = [*images.paths, *(str(Path(file).absolute()) for file in files)]
    none = [""] * len(files)
    return EmbeddedImages(
        torch.cat([images.h, new.h]), paths, [*images.classes, *none], [*images.splits, *none]
    )
