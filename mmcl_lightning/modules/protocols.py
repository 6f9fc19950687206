"""How a classifier is trained for an evaluation, as the paper did it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.optim import WarmupCosine, WarmupLinear, scale_learning_rate

__all__ = ["EVALUATION_PROTOCOLS", "EvaluationProtocol"]


@dataclass(frozen=True)
class EvaluationProtocol:
    """Optimizer, schedule and start of a classifier, and the batch and length that go with them.

    Accuracies compare only under one protocol. Images and augmentation belong to the data module.

    Args:
        optimizer: Class of torch.
        options: Its options beside the next two.
        lr: Learning rate of the first step.
        weight_decay: Weight decay of all trained weights.
        lr_schedule: ``"constant"``, or ``"linear"`` or ``"cosine"`` down to 0 at the last step.
        lr_scaling: How ``lr`` grows with the batch: :func:`~mmcl_lightning.optim.scale_learning_rate`.
        zero_init: Start the classifier at zero instead of torch's random start.
        batch_size: Images per step; the data module has to set it.
        epochs: Length, or None where it counts in steps; the trainer has to set it.
        steps: Length in optimizer steps, or None where it counts in epochs.
    """

    optimizer: type[torch.optim.Optimizer]
    options: dict[str, Any]
    lr: float
    weight_decay: float
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_scaling: Literal["none", "linear"]
    zero_init: bool
    batch_size: int
    epochs: int | None = None
    steps: int | None = None

    def optimize(
        self,
        weights: Iterable[nn.Parameter],
        lr: float | None,
        weight_decay: float,
        batch_size: int | None,
        steps: float,
    ) -> Any:
        """Return what ``configure_optimizers`` returns: an optimizer, and its schedule per step.

        Args:
            weights: What is trained.
            lr: Learning rate in place of the protocol's, not scaled by the batch.
            weight_decay: Weight decay.
            batch_size: Images per optimizer step; None if it is not known.
            steps: Optimizer steps of the run, possibly infinite.

        Raises:
            ConfigError: If a schedule has no end, or a learning rate no batch size to grow with.
        """
        if self.lr_schedule != "constant" and math.isinf(steps):
            raise ConfigError("the protocol's schedule needs an end: set trainer.max_epochs or max_steps")
        if lr is None and batch_size is None and self.lr_scaling != "none":
            raise ConfigError(
                "the protocol's learning rate grows with the batch size, and the training loader has no "
                "batch_size: give lr itself"
            )
        if lr is None:
            lr = scale_learning_rate(self.lr, batch_size or 1, self.lr_scaling)
        options = {**self.options, "lr": lr, "weight_decay": weight_decay}
        optimizer = self.optimizer(list(weights), **options)
        if self.lr_schedule == "constant":
            return optimizer
        schedule = WarmupLinear if self.lr_schedule == "linear" else WarmupCosine
        scheduler = schedule(optimizer, 0, int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


EVALUATION_PROTOCOLS: dict[str, EvaluationProtocol] = {
    # The paper's ImageNet code: lr 1.6 at its batch; crops and flips. 28,080 steps, in its text 100 epochs.
    "imagenet": EvaluationProtocol(
        optimizer=torch.optim.SGD,
        options={"momentum": 0.9},
        lr=0.1,
        weight_decay=0.0,
        lr_schedule="linear",
        lr_scaling="linear",
        zero_init=True,
        batch_size=4096,
        epochs=100,
    ),
    # Transfer by fine-tuning: Ericsson et al., CVPR 2021, arXiv:2011.13377. There lr is chosen on validation
    # images from 0.1, 0.01, 0.001 and 0.0001, weight decay from 0, 1e-6, 1e-5, 1e-4 and 1e-3, each over lr.
    "many_shot": EvaluationProtocol(
        optimizer=torch.optim.SGD,
        options={"momentum": 0.9, "nesterov": True},
        lr=0.01,
        weight_decay=0.0,
        lr_schedule="cosine",
        lr_scaling="none",
        zero_init=False,
        batch_size=64,
        steps=5000,
    ),
    # CIFAR and STL-10: the paper's CIFAR code, which has it from HCL. Images under the training augmentation.
    "mmcl_small": EvaluationProtocol(
        optimizer=torch.optim.Adam,
        options={},
        lr=1e-3,
        weight_decay=1e-6,
        lr_schedule="constant",
        lr_scaling="none",
        zero_init=False,
        batch_size=512,
        epochs=100,
    ),
}
