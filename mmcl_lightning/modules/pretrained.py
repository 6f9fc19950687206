"""A backbone from a file, for ``predict``."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning.batches import images_and_labels, names_of
from mmcl_lightning.models import explained
from mmcl_lightning.modules.preprocessing import take_over
from mmcl_lightning.modules.weights import backbone_from

__all__ = ["PretrainedBackbone"]


class PretrainedBackbone(LightningModule):
    """A backbone from a file that gives the representations of images, and is not trained.

    Args:
        checkpoint: Where the weights come from: a checkpoint of this package, an exported backbone,
            torchvision's or timm's own file, or a published one; ``"pretrained"`` for the weights that the
            network's library publishes; or ``"random"``.
        backbone: Name of the network, such as ``resnet50``; None for what the file says.
        cifar_stem: Stem of a torchvision ResNet for small images; None for what the weights have.

    Raises:
        ConfigError: If the network is not known, or the weights do not fit it one by one.
    """

    def __init__(self, checkpoint: str, backbone: str | None = None, cifar_stem: bool | None = None) -> None:
        super().__init__()
        self.backbone, source, report = backbone_from(checkpoint, backbone, cifar_stem)
        self.backbone.requires_grad_(False)
        self.preprocessing = source["preprocessing"]
        rank_zero_info(report)

    def setup(self, stage: str) -> None:
        """Make images as those that the weights were trained on."""
        take_over(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the representation h ``(B, F)`` of images ``(B, C, H, W)``."""
        h: Tensor = self.backbone(x)
        return h

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return ``h`` ``(B, F)``, ``target`` ``(B,)``; ``name`` if given."""
        images, labels = images_and_labels(batch)
        with explained(self.backbone, images):
            found = {"h": self(images), "target": labels}
        return found if (names := names_of(batch)) is None else {**found, "name": names}
