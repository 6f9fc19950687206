"""A backbone from a file, for ``predict``."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._loading import PlainlyLoaded
from mmcl_lightning._options import check_choice
from mmcl_lightning.batches import clean_views, names_of
from mmcl_lightning.models import explained
from mmcl_lightning.modules.preprocessing import take_over
from mmcl_lightning.modules.weights import backbone_from, given_weights
from mmcl_lightning.views import mean_over_views

__all__ = ["PretrainedBackbone"]


class PretrainedBackbone(PlainlyLoaded, LightningModule):
    """A backbone from a file, for the representations of images: it is not trained.

    Args:
        checkpoint: Where the weights come from: a checkpoint of this package, an exported backbone,
            torchvision's or timm's own file, or a published one; ``"pretrained"``, the ImageNet weights of
            the library that has the network; or ``"random"``.
        backbone: Name of the network, such as ``resnet50``, or a mapping of its name and options; None for
            what the file says.
        cifar_stem: Stem of a torchvision ResNet for small images; None for what the weights have.
        preprocessing: ``"checkpoint"``: images are made as those that the weights were trained on, where the
            weights say so and the data module leaves it open. ``"data"``: as the data module makes them.

    Raises:
        ConfigError: If the network is not known, or the weights do not fit it one by one.
    """

    def __init__(
        self,
        checkpoint: str | None,
        backbone: str | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
    ) -> None:
        super().__init__()
        check_choice("preprocessing", preprocessing, ("checkpoint", "data"))
        self.backbone, source, report = backbone_from(given_weights(checkpoint), backbone, cifar_stem)
        self.checkpoint = source["checkpoint"]  # the ledger says with it what pretraining was judged
        self.preprocessing, self.own_preprocessing = source["preprocessing"], False
        self.keep_data = preprocessing == "data"
        self.backbone.requires_grad_(False)
        rank_zero_info(report)

    def setup(self, stage: str) -> None:
        """Let images be made as those of the weights were."""
        take_over(self, keep_data=self.keep_data)

    def forward(self, x: Tensor) -> Tensor:
        """Return the representation h ``(B, F)`` of images ``(B, C, H, W)``."""
        h: Tensor = self.backbone(x)
        return h

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return ``h`` ``(B, F)``, ``target`` ``(B,)``; ``name`` if given."""
        views, labels = clean_views(batch)
        with explained(self.backbone, views[0]):
            found = {"h": mean_over_views(self, views), "target": labels}
        return found if (names := names_of(batch)) is None else {**found, "name": names}
