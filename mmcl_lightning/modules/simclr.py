"""SimCLR, the baseline beside MMCL."""

from __future__ import annotations

from typing import Any

from mmcl_lightning.losses import NTXentLoss
from mmcl_lightning.modules.contrastive import ContrastiveModule

__all__ = ["SimCLR"]


class SimCLR(ContrastiveModule):
    """Pretraining by NT-Xent (Chen et al., ICML 2020, arXiv:2002.05709).

    Args:
        temperature: T > 0; 0.1 in the ImageNet recipe, 0.5 in the CIFAR and STL-10 recipes.
        **kwargs: As in :class:`ContrastiveModule`.

    Logs:
        As :class:`ContrastiveModule`.
    """

    def __init__(self, temperature: float = 0.5, **kwargs: Any):
        super().__init__(criterion=NTXentLoss(temperature), **kwargs)
