"""Networks of graphs: modules that map a batch of B graphs to representations ``(B, F)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import ConfigError, ShapeError

__all__ = ["GIN", "GraphEncoder"]


class GIN(nn.Module):
    """Graph isomorphism network, the encoder of GraphCL's experiments on the TU data sets.

    Layer l maps the features of node v to BN(ReLU(MLP(x_v + sum of x_u over edges u -> v))), MLP being
    Linear, ReLU, Linear. The nodes of a graph are summed up after each layer, and h is these sums side by
    side.

    Source: Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019, arXiv:1810.00826, with eps = 0;
    sizes, and the norm after the second ReLU, are those of You et al., NeurIPS 2020, arXiv:2010.13902.

    Args:
        in_features: Features of a node.
        hidden: Width of every layer.
        layers: Number of layers.

    Shape:
        A batch of torch_geometric with ``x (N, in_features)`` of any type, ``edge_index (2, E)`` and
        ``batch (N,)``; output ``(B, layers * hidden)``.
    """

    def __init__(self, in_features: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        check_whole(1, in_features=in_features, hidden=hidden, layers=layers)
        self.in_features, self.num_features = in_features, layers * hidden
        widths = [in_features, *[hidden] * layers]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            for width in widths[:-1]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))

    def forward(self, graphs: Any) -> Tensor:
        """Map B graphs to representations ``(B, F)``.

        Raises:
            ShapeError: If nodes have other features than the first layer takes.
        """
        x, (source, target), batch = _parts(graphs)
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ShapeError(
                f"the nodes of the graphs have features {tuple(x.shape[1:])}, and the backbone takes "
                f"{self.in_features} of each: set --model.backbone gin:{x.shape[-1]}"
            )
        # Sums of many nodes, which the 16 bits of a mixed precision do not hold.
        dtype = next(self.parameters()).dtype
        x, sums = x.to(dtype), []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            # index_select, since its gradient is added up in one order; that of x[source] is not.
            x = norm(layer(x.index_add(0, target, x.index_select(0, source)))).to(dtype)
            sums.append(x.new_zeros(len(graphs), x.shape[1]).index_add(0, batch, x))
        return torch.cat(sums, dim=1)


class GraphEncoder(nn.Module):
    """A backbone out of any network ``f(x, edge_index, batch)``, as those of torch_geometric are called.

    Args:
        module: Network from node features ``(N, K)``, edges ``(2, E)`` and the graph of each node ``(N,)`` to
            ``(B, F)``; one that gives a row per node has to be pooled within.
        num_features: Width F; ``None`` reads ``num_features`` or ``out_channels`` of the network.

    Raises:
        ConfigError: If the width is not known.
    """

    def __init__(self, module: nn.Module, num_features: int | None = None) -> None:
        super().__init__()
        known = [num_features, *(getattr(module, name, None) for name in ("num_features", "out_channels"))]
        width = next((number for number in known if number is not None), None)
        if width is None:
            kind = type(module).__name__
            raise ConfigError(f"GraphEncoder needs num_features, the width F of what {kind} gives")
        check_whole(1, num_features=width)
        self.module, self.num_features = module, width

    def forward(self, graphs: Any) -> Tensor:
        """Map B graphs to representations ``(B, F)``.

        Raises:
            ShapeError: If the network gives something else.
        """
        h: Tensor = self.module(*_parts(graphs))
        if h.ndim == 2 and len(h) == len(graphs) and h.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self.module).__name__} gives {h.shape[1]} features of a graph, and num_features of "
                f"GraphEncoder is {self.num_features}: give the number that it gives"
            )
        if tuple(h.shape) != (len(graphs), self.num_features):
            raise ShapeError(
                f"expected ({len(graphs)}, {self.num_features}), a row per graph, from "
                f"{type(self.module).__name__}, got {tuple(h.shape)}: let it pool the nodes of each graph"
            )
        return h


def _parts(graphs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of nodes, edges and the graph of each node."""
    found = tuple(getattr(graphs, name, None) for name in ("x", "edge_index", "batch"))
    if not all(isinstance(part, Tensor) for part in found):
        raise ShapeError(
            "a backbone of graphs takes a batch of torch_geometric with x, edge_index and batch, got "
            f"{type(graphs).__name__}"
            + (
                f" {tuple(graphs.shape)}: set data to graphs, such as --data TUDataModule"
                if isinstance(graphs, Tensor)
                else ""
            )
        )
    return found  # type: ignore[return-value]
