"""Data modules: two augmented views for training, clean images for the readout; one file per data set."""

from __future__ import annotations

from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.datamodules.cifar import CIFAR10DataModule, CIFAR100DataModule
from mmcl_lightning.datamodules.image_folder import ImageFolderDataModule
from mmcl_lightning.datamodules.shapes import ShapesDataModule
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.stl10 import STL10DataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "ImageFolderDataModule",
    "SSLDataModule",
    "STL10DataModule",
    "ShapesDataModule",
    "Splits",
]
