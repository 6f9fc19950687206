"""Optimisation: LARS, learning-rate schedules per step, and parameter groups by module type."""

from mmcl_lightning.optim.lars import LARS
from mmcl_lightning.optim.param_groups import parameter_groups
from mmcl_lightning.optim.schedules import (
    WarmupConstant,
    WarmupCosine,
    WarmupLinear,
    WarmupPolynomial,
    WarmupSteps,
    scale_learning_rate,
)

__all__ = [
    "LARS",
    "WarmupConstant",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupPolynomial",
    "WarmupSteps",
    "parameter_groups",
    "scale_learning_rate",
]
