"""Judge a pretrained backbone by labels: a linear classifier on frozen features, or fine-tuning of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from mmcl_lightning._lightning import callbacks_of
from mmcl_lightning._options import check_flags
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.modules.classifier import ClassifierModule
from mmcl_lightning.modules.weights import digests

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FineTune", "LinearEvaluation"]


class LinearEvaluation(ClassifierModule):
    """Train a linear classifier on the frozen representation: the field's measure of a pretraining.

    Frozen is checked, not promised: at the end every tensor of the backbone has to be what it was at the
    start, bit for bit, batch norm included, or the run fails and says which is not. The accuracy at the end
    is the result; the best one is logged beside it.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start, the floor under all.
        protocol: ``"mmcl_small"``, the paper's for CIFAR and STL-10: Adam, lr 1e-3, constant, batch 512, on
            augmented images; or ``"imagenet"``: SGD, lr 1.6 at batch 4096, linearly to 0, classifier from 0.
            Both 100 epochs.
        bn_train: Let batch norm see batch statistics and move its running ones, as the published code does
            by calling ``train()`` on the frozen network. The check is then on the weights alone.
        **kwargs: Backbone, classes, lr and weight decay: see :class:`ClassifierModule`.

    Logs:
        ``train/loss``, ``train/lr`` each step; ``linear/top1``, ``linear/top5``, ``linear/best_top1`` and
        ``linear/loss`` of clean held-out images; the text ``linear/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
        NumericalError: At the end of ``fit``, if the backbone is not what it was.
    """

    tag = "linear"

    def __init__(
        self,
        checkpoint: str | None = None,
        protocol: Literal["mmcl_small", "imagenet"] = "mmcl_small",
        bn_train: bool = False,
        **kwargs: Any,
    ):
        super().__init__(checkpoint=checkpoint, protocol=protocol, **kwargs)
        check_flags(bn_train=bn_train)
        self.bn_train = bn_train
        self.backbone.requires_grad_(False)
        self._frozen: dict[str, str] = {}  # what the backbone was at the start of the first fit
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the backbone, which stays in evaluation mode unless ``bn_train``."""
        super().train(mode)
        if not self.bn_train:
            self.backbone.eval()
        return self

    @torch.no_grad()
    def represent(self, images: Tensor) -> Tensor:
        """Return h ``(B, F)`` of images ``(B, 3, H, W)``, without a gradient."""
        h: Tensor = self(images)
        return h

    def trained(self) -> Iterable[nn.Parameter]:
        """Return the classifier's weights."""
        return [] if self.classifier is None else self.classifier.parameters()

    def mode(self) -> str:
        """Say in words what happens to the backbone."""
        return "frozen weights, batch norm in training mode" if self.bn_train else "frozen backbone"

    def on_train_start(self) -> None:
        """Remember what the backbone is."""
        super().on_train_start()
        if any(isinstance(callback, EMAWeightAveraging) for callback in callbacks_of(self)):
            raise ConfigError(
                "EMAWeightAveraging averages the frozen backbone too, and rounding would change it: leave it "
                "out of trainer.callbacks; WeightAveraging averages exactly what does not change"
            )
        self.train()
        if self._frozen:  # the checkpoint of an earlier part of this run says what it was
            self._check_frozen()
        self._frozen = self._digests()
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

    def on_train_end(self) -> None:
        """Check that the backbone is what it was."""
        self._check_frozen()
        rank_zero_info(f"the backbone is unchanged: {len(self._frozen)} tensors are bit-identical")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the backbone was."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["frozen"] = dict(self._frozen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what the backbone was."""
        super().on_load_checkpoint(checkpoint)
        self._frozen = dict(checkpoint.get("frozen", {}))

    def _digests(self) -> dict[str, str]:
        named = self.backbone.named_parameters() if self.bn_train else self.backbone.state_dict().items()
        return digests(dict(named))

    def _check_frozen(self) -> None:
        now = self._digests()
        changed = [name for name, digest in self._frozen.items() if now.get(name) != digest]
        if changed:
            raise NumericalError(
                f"the frozen backbone has changed: {len(changed)} of {len(now)} tensors, the first being "
                f"{changed[0]}. The accuracy is not that of a linear evaluation: find the callback, "
                "optimizer or hook that writes to the backbone"
            )


class FineTune(ClassifierModule):
    """Train backbone and classifier on labels, starting from the pretrained weights.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start: training from scratch.
        protocol: ``"many_shot"``, the paper's transfer to other data sets (Ericsson et al., CVPR 2021): SGD
            with Nesterov momentum, batch 64, 5000 steps, cosine to 0. Choose ``lr`` and ``weight_decay`` on
            validation images, from the values that the recipe lists.
        **kwargs: Backbone, classes, lr and weight decay: see :class:`ClassifierModule`.

    Logs:
        ``train/loss``, ``train/lr`` each step; ``finetune/top1``, ``finetune/top5``, ``finetune/best_top1``
        and ``finetune/loss`` of clean held-out images; the text ``finetune/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
    """

    tag = "finetune"

    def __init__(
        self, checkpoint: str | None = None, protocol: Literal["many_shot"] = "many_shot", **kwargs: Any
    ):
        super().__init__(checkpoint=checkpoint, protocol=protocol, **kwargs)

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
