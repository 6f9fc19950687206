"""Max-margin contrastive pretraining in PyTorch Lightning.

``from mmcl_lightning import MMCLLoss`` needs torch alone; ``MMCL``, ``MoCo`` and ``SimCLR`` bring Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmcl_lightning.losses import MMCLLoss, NTXentLoss
    from mmcl_lightning.modules import MMCL, ContrastiveModule, MoCo, SimCLR

__version__ = "0.1.0"
__all__ = ["MMCL", "ContrastiveModule", "MMCLLoss", "MoCo", "NTXentLoss", "SimCLR", "__version__"]

# Loaded when asked for, so that the loss alone does not import Lightning (several seconds).
_HOMES = {
    "MMCL": "modules",
    "ContrastiveModule": "modules",
    "MMCLLoss": "losses",
    "MoCo": "modules",
    "NTXentLoss": "losses",
    "SimCLR": "modules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
