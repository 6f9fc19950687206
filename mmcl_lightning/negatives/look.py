"""Solve the SVMs of a few images as a network is now."""

from __future__ import annotations

import copy

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.features import evaluating
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.negatives.findings import SupportVectors
from mmcl_lightning.negatives.held_out import HeldOutImages

__all__ = ["find_support_vectors", "mmcl_criterion"]

_CHUNK = 128  # images that pass the network at a time, or clips of as many frames


def find_support_vectors(trainer: Trainer, module: LightningModule, images: HeldOutImages) -> SupportVectors:
    """Solve one SVM per image, against the other images, on projections in evaluation mode.

    Modes, batch-norm statistics, random states and the loss of the module stay as they are. Every process
    that calls it computes the same, without waiting for others.

    Args:
        trainer: Says the precision.
        module: Its ``criterion`` is an MMCLLoss, whose options count; on its device.
        images: The images, of one view or two.

    Raises:
        ConfigError: If the module has another criterion.
    """
    criterion = mmcl_criterion(module, "a picture of support vectors")
    z = _project(trainer, module, torch.cat(images.views)).chunk(len(images.views))
    inspected = copy.copy(criterion)  # the same options, while the criterion keeps what training found
    inspected._announced = True
    inspected.gather = inspected.symmetric = False
    inspected.negatives = criterion.negatives if len(z) == 2 else "one"  # one view is no two candidates
    with torch.no_grad():
        inspected(z[0], z[-1])
    (dual,) = inspected.last_duals
    return SupportVectors(images, inspected, dual)


def mmcl_criterion(module: LightningModule, user: str) -> MMCLLoss:
    """Return the loss of a module that trains by SVMs.

    Args:
        module: The module.
        user: Who needs it, for the message.

    Raises:
        ConfigError: If its ``criterion`` is no MMCLLoss.
    """
    criterion = getattr(module, "criterion", None)
    if not isinstance(criterion, MMCLLoss):
        raise ConfigError(
            f"{user} needs a module with support vectors, whose attribute criterion is an MMCLLoss; that of "
            f"{type(module).__name__} is {'missing' if criterion is None else type(criterion).__name__}"
        )
    return criterion


def _project(trainer: Trainer, module: LightningModule, images: Tensor) -> Tensor:
    """Return the projections ``(N, D)`` of images in evaluation mode, in float32."""
    head = getattr(module, "projection_head", None)
    parts = []
    with evaluating(module), trainer.precision_plugin.forward_context():
        frames = images.shape[2] if images.ndim == 5 else 1
        for chunk in torch.split(images, max(1, _CHUNK // frames)):
            h = module(trainer.precision_plugin.convert_input(chunk).to(module.device))
            parts.append((h if head is None else head(h)).float())
    return torch.cat(parts)
