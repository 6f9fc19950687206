"""Augmentations and evaluation transforms, from image to float32 tensor, on the CPU."""

from __future__ import annotations

from mmcl_lightning.transforms.base import ImageTransform, MultiView
from mmcl_lightning.transforms.blur import GaussianBlur
from mmcl_lightning.transforms.evaluation import CentralCrop, EvalTransform
from mmcl_lightning.transforms.simclr import CIFAR_MEAN, CIFAR_STD, SimCLRTransform

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "CentralCrop",
    "EvalTransform",
    "GaussianBlur",
    "ImageTransform",
    "MultiView",
    "SimCLRTransform",
]
