"""Judge a pretrained backbone by labels: a linear classifier on frozen features, or fine-tuning of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from mmcl_lightning._options import check_flags, check_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules.classifier import ClassifierModule
from mmcl_lightning.modules.frozen import FrozenClassifier

__all__ = ["FineTune", "LinearEvaluation"]


class LinearEvaluation(FrozenClassifier):
    """Train a linear classifier on the frozen representation: the field's measure of a pretraining.

    Frozen is checked, not promised: at the end every tensor of the backbone has to be what it was at the
    start, bit for bit, batch norm included, or the run fails and says which is not. The accuracy at the end
    is the result; the best one is logged beside it.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start, the floor under all.
        protocol: ``"mmcl_small"``, the paper's for CIFAR and STL-10: Adam, lr 1e-3, constant, batch 512, on
            augmented images; ``"imagenet"``: SGD, lr 1.6 at batch 4096, linearly to 0, classifier from 0; or
            ``"coclr"``, for videos: SGD, lr 0.1, a tenth after 60 and 80 epochs, batch 64, on h of unit
            length through batch norm. All 100 epochs.
        bn_train: Let batch norm see batch statistics and move its running ones, as the published code does
            by calling ``train()`` on the frozen network. The check is then on the weights alone.
        **kwargs: Backbone, classes, lr and weight decay: see :class:`ClassifierModule`.

    Logs:
        ``train/loss``, ``train/lr`` each step; ``linear/top1``, ``linear/top5``, ``linear/mean_per_class``,
        the mean of the accuracies within each class, ``linear/best_top1`` and ``linear/loss`` of clean
        held-out images; the text ``linear/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
        NumericalError: At the end of ``fit``, if the backbone is not what it was.
    """

    tag = "linear"
    refused: ClassVar[dict[type, str]] = dict.fromkeys(
        (EMAWeightAveraging, StochasticWeightAveraging),
        "averages the frozen backbone too, and would change it (WeightAveraging does not)",
    )

    def __init__(
        self,
        checkpoint: str | None = None,
        protocol: Literal["mmcl_small", "imagenet", "coclr"] = "mmcl_small",
        bn_train: bool = False,
        **kwargs: Any,
    ):
        super().__init__(checkpoint=checkpoint, protocol=protocol, **kwargs)
        check_flags(bn_train=bn_train)
        self.bn_train = bn_train
        self.train()

    @torch.no_grad()
    def represent(self, images: Tensor) -> Tensor:
        """Return h ``(B, F)`` of images ``(B, 3, H, W)``, without a gradient."""
        h: Tensor = self(images)
        return h

    def trained(self) -> Iterable[nn.Parameter]:
        """Return the classifier's weights."""
        parts = [part for part in (self.feature_norm, self.classifier) if part is not None]
        return [weight for part in parts for weight in part.parameters()]

    def on_train_start(self) -> None:
        """Remember what the backbone is."""
        super().on_train_start()
        self.remember_frozen()
        self._warn_of_few_steps()

    def _warn_of_few_steps(self) -> None:
        """Say so where the accuracy will tell how short the run was, and not what the features are worth."""
        trainer, fewest = self.trainer, self.protocol.fewest_steps
        steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
        if steps < fewest:
            rank_zero_warn(
                f"this run takes {steps:.0f} optimizer steps, and SGD of fewer than {fewest} ends far from "
                "its optimum, so that its accuracy tells how short it was: judge small sets by "
                "folder_logistic.yaml, or set trainer.max_epochs"
            )
        parts = trainer.accumulate_grad_batches
        left = int(batches) % parts if batches < 10 * parts else 0  # else it is one step of more than ten
        if left:
            rank_zero_warn(
                f"an epoch has {batches:.0f} batch{'es' * (batches != 1)}, and "
                f"trainer.accumulate_grad_batches takes {parts} for a step: the gradient of the last step "
                f"has {left} of {parts} parts of its size. Set it to 1, or to another divisor"
            )


class FineTune(ClassifierModule):
    """Train backbone and classifier on labels, starting from the pretrained weights.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start: training from scratch.
        protocol: ``"many_shot"``, the paper's transfer to other data sets (Ericsson et al., CVPR 2021): SGD
            with Nesterov momentum, batch 64, 5000 steps, cosine to 0. There ``lr`` and ``relative_decay`` are
            chosen on validation images: ``mmcl transfer finetune`` does it.
        relative_decay: Weight decay times learning rate, in place of ``weight_decay``: the published search
            lists it, so that weights shrink alike in a step at every learning rate.
        **kwargs: Backbone, classes, lr and weight decay: see :class:`ClassifierModule`.

    Logs:
        ``train/loss``, ``train/lr`` each step; ``finetune/top1``, ``finetune/top5``,
        ``finetune/mean_per_class``, the mean of the accuracies within each class, or ``finetune/map_11point``
        where images may be of several classes, ``finetune/best_...`` of what the data set is judged by, and
        ``finetune/loss`` of clean held-out images; the text ``finetune/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
    """

    tag = "finetune"

    def __init__(
        self,
        checkpoint: str | None = None,
        protocol: Literal["many_shot"] = "many_shot",
        relative_decay: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(checkpoint=checkpoint, protocol=protocol, **kwargs)
        self.relative_decay = None if relative_decay is None else float(relative_decay)
        if relative_decay is not None:
            check_number("relative_decay", relative_decay, ">= 0")
            if kwargs.get("weight_decay") is not None:
                raise ConfigError("relative_decay / lr is the weight decay: give one of the two")

    def configure_optimizers(self) -> Any:
        """Build the protocol's optimizer, with the weight decay that goes with its learning rate."""
        if self.relative_decay is not None:
            lr = self.protocol.lr if self.lr is None else self.lr
            if lr == 0:
                raise ConfigError("relative_decay is divided by lr, which is 0: give weight_decay")
            self.weight_decay = self.relative_decay / lr
            check_number("relative_decay / lr", self.weight_decay, ">= 0")
        return super().configure_optimizers()

    def represent(self, images: Tensor) -> Tensor:
        """Return h ``(B, F)`` of images ``(B, 3, H, W)``."""
        h: Tensor = self(images)
        return h

    def trained(self) -> Iterable[nn.Parameter]:
        """Return all weights."""
        return self.parameters()

    def mode(self) -> str:
        """Say in words what happens to the backbone."""
        return "all weights trained"
