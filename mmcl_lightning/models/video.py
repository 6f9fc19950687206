"""The video network of the paper: S3D, from clips ``(B, 3, T, H, W)`` to representations ``(B, 1024)``."""

from __future__ import annotations

import torchvision
from torch import Tensor, nn

from mmcl_lightning.errors import ShapeError

__all__ = ["S3D"]

_FRAMES, _PIXELS = 5, 32  # fewer leave nothing to pool, or one value for batch norm


class S3D(nn.Module):
    """S3D without gates, of torchvision, with the constants of the paper's baseline.

    77 convolutions, each in space or in time, 7,910,048 weights; the representation is the mean over time and
    space. Source: Xie et al., ECCV 2018. As in the published code of CoCLR (Han et al., NeurIPS 2020), with
    whose network it agrees weight by weight, batch norm has eps 1e-5 and momentum 0.1 in place of
    torchvision's 1e-3 for both, convolutions start from N(0, 0.01), and the pooling takes any size.

    Shape:
        Input ``(B, 3, T, H, W)``, T >= 5, H, W >= 32; output ``(B, 1024)``.
    """

    num_features = 1024

    def __init__(self) -> None:
        super().__init__()
        # The name of torchvision's part: a file of its weights fits.
        self.features = torchvision.models.video.s3d().features
        for part in self.features.modules():
            if isinstance(part, nn.BatchNorm3d):
                part.eps, part.momentum = 1e-5, 0.1
            elif isinstance(part, nn.Conv3d):
                nn.init.normal_(part.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map clips ``(B, 3, T, H, W)`` to representations ``(B, 1024)``.

        Raises:
            ShapeError: If they are no clips, or too short or too small.
        """
        if not isinstance(x, Tensor) or x.ndim != 5 or x.shape[2] < _FRAMES or min(x.shape[3:]) < _PIXELS:
            raise ShapeError(
                f"s3d takes clips (B, 3, T, H, W) of {_FRAMES} frames and {_PIXELS} x {_PIXELS} pixels or "
                f"more, got {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}: set data to "
                "videos, data.clip_frames and data.image_size"
            )
        maps: Tensor = self.features(x)
        return maps.mean(dim=(2, 3, 4))
