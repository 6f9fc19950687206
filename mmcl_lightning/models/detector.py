"""Faster R-CNN on a pretrained ResNet: torchvision's, with the options of detectron2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from mmcl_lightning._options import check_whole
from mmcl_lightning.models.dense import check_resnet

__all__ = ["box_predictor", "build_detector", "freeze_batch_norm"]

_LAYERS = ("layer1", "layer2", "layer3", "layer4")
_LEVELS = [str(level) for level in range(len(_LAYERS))]
_RESOLUTION = 7  # places of a region along a side
_PROPOSALS = 1000  # regions of an image in training; torchvision's own default is 2000


def build_detector(
    backbone: nn.Module, channels: int = 256, hidden: int = 1024, regions: int = 512
) -> FasterRCNN:
    """Build torchvision's Faster R-CNN with a feature pyramid on the four layers of a ResNet.

    Batch norm becomes a fixed scale and shift, with the statistics and weights that it has; all other
    weights of the backbone can be trained. It takes images as they are, a list of ``(C, H, W)``, normalised
    and of any sizes, which it pads by zeros to one size, a multiple of 32: torchvision's own resizing draws
    its lengths from the global random state. As in detectron2 training goes on with 1000 proposals of an
    image, not 2000, and a place of a region is sampled as finely as its size asks for, not by 2 x 2 points.

    Args:
        backbone: A torchvision ResNet; its layers are taken over, and changed in place.
        channels: Channels of the pyramid.
        hidden: Width of the head that classifies regions.
        regions: Regions of an image that it is trained on in each step.

    Returns:
        A detector of no class but the background; :func:`box_predictor` makes the last layers.

    Raises:
        ConfigError: If the backbone is another network, or a size out of range.
    """
    check_whole(1, channels=channels, hidden=hidden, regions=regions)
    resnet = check_resnet(backbone, "the feature pyramid")
    freeze_batch_norm(resnet)
    widths = [_width(getattr(resnet, layer)) for layer in _LAYERS]
    detector = FasterRCNN(
        BackboneWithFPN(resnet, dict(zip(_LAYERS, _LEVELS, strict=True)), widths, channels),
        box_roi_pool=MultiScaleRoIAlign(_LEVELS, _RESOLUTION, sampling_ratio=0),
        box_head=TwoMLPHead(channels * _RESOLUTION**2, hidden),
        box_predictor=FastRCNNPredictor(hidden, 1),
        rpn_post_nms_top_n_train=_PROPOSALS,
        box_batch_size_per_image=regions,
    )
    detector.transform = _Padding()
    return detector


def box_predictor(detector: FasterRCNN, classes: int) -> nn.Module:
    """Return new last layers of a detector: scores and boxes of the background, 0, and of classes from 1.

    Args:
        detector: What :func:`build_detector` gave.
        classes: Number of classes without the background.
    """
    layer: Any = detector.roi_heads.box_head.fc7
    predictor: nn.Module = FastRCNNPredictor(layer.out_features, classes + 1)
    return predictor.to(layer.weight.device)


def freeze_batch_norm(module: nn.Module) -> None:
    """Turn every 2-d batch norm within a module into a fixed scale and shift of the same values, in place."""
    for name, child in module.named_children():
        if not isinstance(child, nn.BatchNorm2d):
            freeze_batch_norm(child)
            continue
        fixed = FrozenBatchNorm2d(child.num_features, child.eps)
        with torch.no_grad():
            for part, value in fixed.named_buffers():
                value.copy_(getattr(child, part))
        setattr(module, name, fixed)


class _Padding(GeneralizedRCNNTransform):  # type: ignore[misc]  # torchvision has no types
    """Batches images that are resized and normalised already."""

    def __init__(self) -> None:
        super().__init__(min_size=1, max_size=1, image_mean=[], image_std=[])  # which nothing reads

    def normalize(self, image: Tensor) -> Tensor:
        return image

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        return image, target

    def postprocess(self, result: Any, image_shapes: Sequence[Any], original_image_sizes: Any) -> Any:
        return result  # boxes are those of the image that came in

    def __repr__(self) -> str:
        return f"{type(self).__name__}(multiple={self.size_divisible})"


def _width(layer: Any) -> int:
    """Return the channels that a layer of a ResNet gives."""
    last = layer[-1]
    conv: nn.Conv2d = getattr(last, "conv3", last.conv2)
    return conv.out_channels
