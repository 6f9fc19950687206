"""The decoder of surface normals: features pooled at several scales, upsampled and classified by place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.errors import ConfigError, ShapeError

__all__ = ["PyramidPooling"]


class PyramidPooling(nn.Module):
    """Pyramid pooling module (Zhao et al., CVPR 2017, arXiv:1612.01105) with a classifier of every place.

    The features are averaged over 1, 2 x 2, 3 x 3 and 6 x 6 parts of the image; each average passes a 1 x 1
    convolution, batch norm and ReLU, and is resized bilinear to the size of the features. With these beside
    it a 3 x 3 convolution, batch norm, ReLU, dropout of whole channels and a 1 x 1 convolution follow. With
    the defaults it has the 23,094,312 weights of the decoder of Ericsson et al., CVPR 2021.

    Args:
        in_channels: Channels C of the features.
        classes: Classes K, such as the normals of a codebook.
        hidden: Channels of each average, and of the layer before the last.
        pools: Parts by side of each average.
        dropout: Share of the channels that are dropped in training, in [0, 1).

    Shape:
        Input ``(B, C, H, W)``; output, scores before a softmax, ``(B, K, H, W)``.

    Raises:
        ConfigError: If an option is out of its range.
        ShapeError: In training, of a batch of one image, whose batch norm would see a single value.
    """

    def __init__(
        self,
        in_channels: int = 2048,
        classes: int = 40,
        hidden: int = 512,
        pools: tuple[int, ...] = (1, 2, 3, 6),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_whole(1, in_channels=in_channels, classes=classes, hidden=hidden)
        check_number("dropout", dropout, "in [0, 1)")
        if not pools:
            raise ConfigError("pools must name one number of parts or more, got none")
        for pool in pools:
            check_whole(1, pools=pool)
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(pool), *_conv(in_channels, hidden, 1)) for pool in pools
        )
        self.last = nn.Sequential(
            *_conv(in_channels + len(pools) * hidden, hidden, 3),
            nn.Dropout2d(dropout),
            nn.Conv2d(hidden, classes, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return scores ``(B, K, H, W)`` of features ``(B, C, H, W)``."""
        if self.training and len(features) < 2:
            raise ShapeError(
                "expected 2 images or more in training, got 1: the average of one image is a single value, "
                "of which batch norm has no deviation; set data.batch_size to 2"
            )
        size = features.shape[-2:]
        pooled = [F.interpolate(pool(features), size, mode="bilinear") for pool in self.pools]
        scores: Tensor = self.last(torch.cat([features, *pooled], dim=1))
        return scores


def _conv(in_channels: int, out_channels: int, size: int) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, size, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
