"""How a classifier is trained for an evaluation, as the paper did it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.optim import WarmupCosine, WarmupLinear, WarmupSteps, scale_learning_rate

__all__ = ["EVALUATION_PROTOCOLS", "LOGISTIC_PROTOCOLS", "EvaluationProtocol", "LogisticProtocol"]


@dataclass(frozen=True)
class EvaluationProtocol:
    """Optimizer, schedule and start of a classifier, and the batch and length that go with them.

    Accuracies compare only under one protocol. Images and augmentation belong to the data module.

    Args:
        optimizer: Class of torch.
        options: Its options beside the next two.
        lr: Learning rate of the first step.
        weight_decay: Weight decay of all trained weights.
        lr_schedule: ``"constant"``, ``"linear"`` or ``"cosine"`` down to 0 at the last step, or ``"step"``: a
            tenth after each of ``lr_drops``.
        lr_scaling: How ``lr`` grows with the batch: :func:`~mmcl_lightning.optim.scale_learning_rate`.
        init_std: Standard deviation of the classifier's first weights, 0 to start it at zero; None for
            torch's random start.
        batch_size: Images per step; the data module has to set it.
        epochs: Length, or None where it counts in steps; the trainer has to set it.
        steps: Length in optimizer steps, or None where it counts in epochs.
        lr_drops: Shares of the length after which ``"step"`` takes a tenth of the learning rate.
        batch_norm: Bring h to unit length, and then through batch norm, before the classifier.
        fewest_steps: Steps below which a classifier on frozen features ends far from its optimum.
    """

    optimizer: type[torch.optim.Optimizer]
    options: dict[str, Any]
    lr: float
    weight_decay: float
    lr_schedule: Literal["constant", "linear", "cosine", "step"]
    lr_scaling: Literal["none", "linear"]
    init_std: float | None
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    lr_drops: tuple[float, ...] = ()
    batch_norm: bool = False
    fewest_steps: int = 0

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
        if self.lr_schedule == "step":
            drops = [round(share * steps) for share in self.lr_drops]
            scheduler: Any = WarmupSteps(optimizer, 0, sorted(set(drops)))
        else:
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
        init_std=0.0,
        batch_size=4096,
        epochs=100,
        fewest_steps=400,  # docs/results/linear_steps.md: from there on as good as a logistic regression
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
        init_std=None,
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
        init_std=None,
        batch_size=512,
        epochs=100,
        fewest_steps=1000,  # the paper's on STL-10; enough for 400 images, too few for 2,000: the same page
    ),
    # UCF-101, the paper's video code: CoCLR's linear probe (Han et al., NeurIPS 2020), 2 x 32 clips. There
    # the epoch is picked on 30 % of the test videos.
    "coclr": EvaluationProtocol(
        optimizer=torch.optim.SGD,
        options={"momentum": 0.9},
        lr=0.1,
        weight_decay=1e-3,
        lr_schedule="step",
        lr_drops=(0.6, 0.8),
        lr_scaling="none",
        init_std=0.01,
        batch_norm=True,
        batch_size=64,
        epochs=100,
    ),
}


@dataclass(frozen=True)
class LogisticProtocol:
    """How a logistic regression on frozen features is fitted, and how its penalty is chosen.

    The loss is the sum over the images, and the penalty ``|W|^2 / (2 C)``; see
    :func:`~mmcl_lightning.metrics.fit_logistic`. A share of the training images is held out, one model after
    the other is fitted to the rest, each from where the last one ended, and the first with the best accuracy
    on the held-out ones wins; its C is used for a last fit to all.

    Args:
        Cs: Inverse strengths of the penalty, in the order of the fits.
        standardise: Fit on features less their mean, over their standard deviation.
        max_iter: Most iterations of a fit.
        gtol: Largest entry of the gradient of the sum at which a fit stops.
        ftol: Relative decrease of the sum at which it stops.
        held_out: Share of the training images on which C is chosen.
    """

    Cs: tuple[float, ...]
    standardise: bool
    max_iter: int
    gtol: float = 1e-4
    ftol: float = 2.2e-9
    held_out: float = 0.2

    #: What a classifier needs to know of every protocol: nothing here decays or starts at random.
    weight_decay = 0.0
    init_std = 0.0
    batch_norm = False

    def describe(self) -> str:
        """Return the fit in words."""
        of = "standardised h" if self.standardise else "h"
        end = f"L-BFGS to a gradient of {self.gtol:g} or {self.max_iter} steps"
        return f"logistic regression on {of}, {end}"


LOGISTIC_PROTOCOLS: dict[str, LogisticProtocol] = {
    # Ours: every fit goes to its optimum, from the strongest penalty on: of equals the strongest wins.
    "converged": LogisticProtocol(
        Cs=tuple(10 ** (exponent / 2) for exponent in range(-10, 3)), standardise=True, max_iter=2000
    ),
    # Linear transfer of Ericsson et al., CVPR 2021, arXiv:2011.13377: the rule of scikit-learn 0.22, by which
    # many fits stop at 100 iterations, which acts as a penalty of its own; from the weakest penalty on.
    "transfer": LogisticProtocol(
        Cs=tuple(10.0 ** (6 - 11 * step / 44) for step in range(45)), standardise=False, max_iter=100
    ),
}
