"""Backbones (image -> representation ``h``) and projection heads (``h`` -> projection ``z``)."""

from mmcl_lightning.models.backbones import Conv4, build_backbone, feature_dim
from mmcl_lightning.models.heads import ProjectionHead
from mmcl_lightning.models.refusals import explained

__all__ = ["Conv4", "ProjectionHead", "build_backbone", "explained", "feature_dim"]
