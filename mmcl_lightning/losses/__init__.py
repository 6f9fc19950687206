"""Contrastive losses, each called as ``loss(z0, z1)`` on un-normalised projections ``(B, D)``.

The softmax losses are one loss, ``WeightedContrastiveLoss``: a form with a rule that weighs the negatives.
NT-Xent, decoupled, debiased, HCL and, in two of its three forms, MMCL are named settings of it; the rules are
in :mod:`mmcl_lightning.losses.weights`. ``InfoNCELoss`` alone takes a queue of negatives too:
``loss(query, key, queue)``.
"""

from mmcl_lightning.losses.base import ContrastiveLoss
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.debiased import DebiasedLoss, HCLLoss
from mmcl_lightning.losses.decoupled import DecoupledLoss
from mmcl_lightning.losses.hinge import HingeLoss
from mmcl_lightning.losses.max_margin import MMCLLoss
from mmcl_lightning.losses.mixing import HardNegativeMixing
from mmcl_lightning.losses.ntxent import NTXentLoss
from mmcl_lightning.losses.queue import InfoNCELoss
from mmcl_lightning.losses.weighted import WeightedContrastiveLoss
from mmcl_lightning.losses.weights import (
    Hard,
    Near,
    NegativeWeights,
    Shuffled,
    SupportVectors,
    Uniform,
    Weights,
)

__all__ = [
    "Contrast",
    "ContrastiveLoss",
    "DebiasedLoss",
    "DecoupledLoss",
    "HCLLoss",
    "Hard",
    "HardNegativeMixing",
    "HingeLoss",
    "InfoNCELoss",
    "MMCLLoss",
    "NTXentLoss",
    "Near",
    "NegativeWeights",
    "Shuffled",
    "SupportVectors",
    "Uniform",
    "WeightedContrastiveLoss",
    "Weights",
]
