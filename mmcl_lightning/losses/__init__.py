"""Contrastive losses, each called as ``loss(z0, z1)`` on un-normalised projections ``(B, D)``."""

from mmcl_lightning.losses.base import ContrastiveLoss
from mmcl_lightning.losses.max_margin import MMCLLoss
from mmcl_lightning.losses.ntxent import NTXentLoss

__all__ = ["ContrastiveLoss", "MMCLLoss", "NTXentLoss"]
