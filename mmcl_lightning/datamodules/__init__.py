"""Data modules: two augmented views for training, clean images for the readout; one file per data set."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmcl_lightning.datamodules.base import SSLDataModule
    from mmcl_lightning.datamodules.cifar import CIFAR10DataModule, CIFAR100DataModule
    from mmcl_lightning.datamodules.detection import VOCDetectionDataModule
    from mmcl_lightning.datamodules.few_shot import FewShotDataModule
    from mmcl_lightning.datamodules.image_folder import ImageFolderDataModule
    from mmcl_lightning.datamodules.images import ImageDataModule
    from mmcl_lightning.datamodules.normals import NormalsDataModule
    from mmcl_lightning.datamodules.shapes import ShapesDataModule
    from mmcl_lightning.datamodules.splits import Splits
    from mmcl_lightning.datamodules.stl10 import STL10DataModule
    from mmcl_lightning.datamodules.stream import StreamDataModule
    from mmcl_lightning.datamodules.transfer import TransferDataModule
    from mmcl_lightning.datamodules.tu import TUDataModule
    from mmcl_lightning.datamodules.ucf101 import UCF101DataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "FewShotDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "NormalsDataModule",
    "SSLDataModule",
    "STL10DataModule",
    "ShapesDataModule",
    "Splits",
    "StreamDataModule",
    "TUDataModule",
    "TransferDataModule",
    "UCF101DataModule",
    "VOCDetectionDataModule",
]

# Loaded when asked for: a worker that is spawned reads images, and needs no Lightning (several seconds).
_HOMES = {
    "CIFAR10DataModule": "cifar",
    "CIFAR100DataModule": "cifar",
    "FewShotDataModule": "few_shot",
    "ImageDataModule": "images",
    "ImageFolderDataModule": "image_folder",
    "NormalsDataModule": "normals",
    "SSLDataModule": "base",
    "STL10DataModule": "stl10",
    "ShapesDataModule": "shapes",
    "Splits": "splits",
    "StreamDataModule": "stream",
    "TUDataModule": "tu",
    "TransferDataModule": "transfer",
    "UCF101DataModule": "ucf101",
    "VOCDetectionDataModule": "detection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
