"""Backbones (image -> representation ``h``) and projection heads (``h`` -> projection ``z``)."""

from mmcl_lightning.models.backbones import Conv4, build_backbone, explained, feature_dim
from mmcl_lightning.models.heads import ProjectionHead

__all__ = ["Conv4", "ProjectionHead", "build_backbone", "explained", "feature_dim"]
