"""LightningModules: wiring of backbone, projection head, loss and optimisation."""

from mmcl_lightning.modules.contrastive import ContrastiveModule
from mmcl_lightning.modules.mmcl import MMCL
from mmcl_lightning.modules.simclr import SimCLR

__all__ = ["MMCL", "ContrastiveModule", "SimCLR"]
