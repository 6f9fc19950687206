"""ResNets as networks of places: their last features at an eighth of the image's size."""

from __future__ import annotations

from typing import Any

import torchvision
from torch import Tensor, nn

from mmcl_lightning.errors import ConfigError

__all__ = ["check_resnet", "dilate", "feature_map"]

_STRIDE = 8  # pixels of the image from one place to the next
_LAYERS = ("layer1", "layer2", "layer3", "layer4")


def dilate(backbone: nn.Module) -> nn.Module:
    """Let a ResNet keep an eighth of the image's size to its end, by the same weights.

    A pooled representation has a stride of 32 pixels, too coarse for a value at every place. Where the
    stride passes 8, a convolution of stride 2 loses it, and the 3 x 3 ones after it look at places as far
    apart as before: layer3 with dilation 2, layer4 with 4. With the stem for small images the stride is 8 as
    it is. Of Bottlenecks this is torchvision's ``replace_stride_with_dilation=[False, True, True]``, which
    refuses BasicBlocks.

    Args:
        backbone: A torchvision ResNet; it is changed in place, and called twice it stays.

    Returns:
        The same module.

    Raises:
        ConfigError: If it is another network.
    """
    resnet = check_resnet(backbone, "a value at every place")
    stride = resnet.conv1.stride[0] * (1 if isinstance(resnet.maxpool, nn.Identity) else 2)
    dilation = 1
    for name in _LAYERS:
        convs = [part for part in getattr(backbone, name).modules() if isinstance(part, nn.Conv2d)]
        if all(conv.stride == (1, 1) for conv in convs):
            continue
        if 2 * stride <= _STRIDE:
            stride *= 2
            continue
        dilation *= 2
        for conv in convs:
            _dilate_conv(conv, dilation)
    return backbone


def check_resnet(backbone: nn.Module, need: str) -> torchvision.models.ResNet:
    """Return a backbone, which is to be a torchvision ResNet.

    Args:
        backbone: Any network.
        need: What needs its layers, for the message.

    Raises:
        ConfigError: If it is another network.
    """
    if not isinstance(backbone, torchvision.models.ResNet):
        raise ConfigError(
            f"{need} needs the layers of a torchvision ResNet, such as resnet50, and this backbone is "
            f"{type(backbone).__module__.partition('.')[0]}'s {type(backbone).__name__}: pretrain a ResNet, "
            "--model.backbone resnet18, and give its checkpoint"
        )
    return backbone


def feature_map(backbone: nn.Module, images: Tensor) -> Tensor:
    """Return the features of layer4 ``(B, F, H/8, W/8)`` of images ``(B, C, H, W)``, sides rounded up.

    Args:
        backbone: What :func:`dilate` gave.
        images: The images.
    """
    resnet: Any = backbone
    x: Tensor = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(images))))
    for name in _LAYERS:
        x = getattr(resnet, name)(x)
    return x


def _dilate_conv(conv: nn.Conv2d, dilation: int) -> None:
    """Take the stride of a convolution away; before it places lie half as far apart as after it."""
    own = dilation if conv.stride == (1, 1) else dilation // 2
    conv.stride = (1, 1)
    if conv.kernel_size == (3, 3):
        conv.dilation = conv.padding = (own, own)
