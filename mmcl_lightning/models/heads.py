"""Projection heads: small networks from the representation ``h`` to the projection ``z``."""

from __future__ import annotations

from torch import Tensor, nn

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import ShapeError

__all__ = ["ProjectionHead"]


class ProjectionHead(nn.Module):
    """Multi-layer perceptron ``h -> z`` with ReLU between its layers; ``z`` is not normalised.

    The loss brings ``z`` to unit length. The two heads of MMCL (Shah et al., AAAI 2022, published code), and
    that of MoCo v2:

    * :meth:`imagenet`: Linear 2048-2048, BN, ReLU, Linear 2048-128, BN whose bias stays 0; no other bias.
    * :meth:`cifar` (also STL-10): Linear 2048-512, BN, ReLU, Linear 512-128 with a bias.
    * :meth:`moco`: Linear 2048-2048, ReLU, Linear 2048-128, both with a bias.

    A linear layer before a batch norm has no bias, because the batch norm would remove it.

    Args:
        input_dim: Width F of the representation.
        hidden_dim: Width of the hidden layers.
        output_dim: Width D of the projection.
        num_layers: Number of linear layers, >= 1. SimCLR v1 has 2, its later releases 3.
        batch_norm: Batch norm after each hidden layer.
        last_batch_norm: Batch norm after the last layer, its bias frozen at 0.

    Shape:
        Input ``(B, input_dim)``; output ``(B, output_dim)``.

    Example:
        >>> import torch
        >>> ProjectionHead.cifar(input_dim=256)(torch.randn(4, 256)).shape
        torch.Size([4, 128])
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int = 2048,
        output_dim: int = 128,
        num_layers: int = 2,
        batch_norm: bool = True,
        last_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = {
            "input_dim": input_dim,
            "hidden_dim": hidden_dim,
            "output_dim": output_dim,
            "num_layers": num_layers,
        }
        check_whole(1, **sizes)
        self.input_dim, self.output_dim = input_dim, output_dim
        widths = [input_dim] + [hidden_dim] * (num_layers - 1) + [output_dim]
        layers: list[nn.Module] = []
        for i in range(num_layers):
            last = i == num_layers - 1
            normalised = last_batch_norm if last else batch_norm
            layers.append(nn.Linear(widths[i], widths[i + 1], bias=not normalised))
            if normalised:
                layers.append(nn.BatchNorm1d(widths[i + 1]))
            if not last:
                layers.append(nn.ReLU(inplace=True))
        if last_batch_norm:
            layers[-1].bias.requires_grad_(False)
        self.layers = nn.Sequential(*layers)

    @classmethod
    def imagenet(cls, input_dim: int = 2048, hidden_dim: int = 2048, output_dim: int = 128) -> ProjectionHead:
        """Build the head of the paper's ImageNet runs: batch norm after both layers."""
        return cls(input_dim, hidden_dim, output_dim, last_batch_norm=True)

    @classmethod
    def cifar(cls, input_dim: int = 2048, hidden_dim: int = 512, output_dim: int = 128) -> ProjectionHead:
        """Build the head of the paper's CIFAR-100 and STL-10 runs: the last layer has a bias, no norm."""
        return cls(input_dim, hidden_dim, output_dim, last_batch_norm=False)

    @classmethod
    def moco(
        cls, input_dim: int = 2048, hidden_dim: int | None = None, output_dim: int = 128
    ) -> ProjectionHead:
        """Build the head of MoCo v2 (Chen et al. 2020): no batch norm; the hidden layer is as wide as h."""
        return cls(input_dim, hidden_dim or input_dim, output_dim, batch_norm=False)

    def forward(self, h: Tensor) -> Tensor:
        """Map representations ``(B, input_dim)`` to un-normalised projections ``(B, output_dim)``."""
        if h.ndim != 2 or h.shape[1] != self.input_dim:
            raise ShapeError(f"Expected representations (B, {self.input_dim}), got {tuple(h.shape)}.")
        z: Tensor = self.layers(h)
        return z
