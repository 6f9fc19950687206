"""Augmentations and evaluation transforms on the CPU: from image to float32 tensor, from graph to graph."""

from __future__ import annotations

from mmcl_lightning.transforms.base import ImageTransform, MultiView
from mmcl_lightning.transforms.blur import GaussianBlur
from mmcl_lightning.transforms.evaluation import CentralCrop, EvalTransform, ShortSide, StretchedCrop
from mmcl_lightning.transforms.graphs import (
    DropEdges,
    DropNodes,
    GraphTransform,
    GraphViews,
    MaskFeatures,
    OneOf,
    Subgraph,
    WholeGraph,
)
from mmcl_lightning.transforms.simclr import CIFAR_MEAN, CIFAR_STD, SimCLRTransform

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "CentralCrop",
    "DropEdges",
    "DropNodes",
    "EvalTransform",
    "GaussianBlur",
    "GraphTransform",
    "GraphViews",
    "ImageTransform",
    "MaskFeatures",
    "MultiView",
    "OneOf",
    "ShortSide",
    "SimCLRTransform",
    "StretchedCrop",
    "Subgraph",
    "WholeGraph",
]
