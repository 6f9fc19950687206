"""Backbones (image or graph -> representation ``h``), and heads on ``h`` or on its places."""

from mmcl_lightning.models.backbones import Conv4, build_backbone, feature_dim
from mmcl_lightning.models.dense import dilate, feature_map
from mmcl_lightning.models.detector import build_detector
from mmcl_lightning.models.graphs import GIN, GraphEncoder
from mmcl_lightning.models.heads import ProjectionHead
from mmcl_lightning.models.ppm import PyramidPooling
from mmcl_lightning.models.refusals import explained

__all__ = [
    "GIN",
    "Conv4",
    "GraphEncoder",
    "ProjectionHead",
    "PyramidPooling",
    "build_backbone",
    "build_detector",
    "dilate",
    "explained",
    "feature_dim",
    "feature_map",
]
