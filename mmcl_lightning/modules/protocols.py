"""How a classifier is trained for an evaluation, as the paper did it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

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
