"""Augmentations of graphs, drawn from torch's generator alone.

Each takes a graph of torch_geometric with ``x (N, F)`` and ``edge_index (2, E)`` and gives a new one with
these two; the one that was given stays as it is. A graph keeps at least one node, and an undirected one stays
undirected.

Differs from the published code of GraphCL (``unsupervised_TU``) where that has other effects than its paper
says: a subgraph grows beyond the neighbours of its first node; dropped edges lose both directions; nodes
without an edge stay, and so no graph vanishes; no self-loops are added, which the network has in itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_flags, check_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms.base import MultiView

__all__ = [
    "DropEdges",
    "DropNodes",
    "GraphTransform",
    "GraphViews",
    "MaskFeatures",
    "OneOf",
    "Subgraph",
    "WholeGraph",
]


class GraphTransform(ABC):
    """A callable from one graph to another, in the sense of this module."""

    @abstractmethod
    def __call__(self, graph: Any) -> Any:
        """Return a changed copy of a graph."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class WholeGraph(GraphTransform):
    """Take graphs as they are."""

    def __call__(self, graph: Any) -> Any:
        """Return the graph with its features and edges alone."""
        return _with(graph, graph.x, graph.edge_index)


class _OfAShare(GraphTransform):
    """A transform that changes a share of something."""

    def __init__(self, ratio: float = 0.1) -> None:
        check_number("ratio", ratio, "in [0, 1)")
        self.ratio = ratio


class DropNodes(_OfAShare):
    """Remove a share of the nodes, with their edges.

    Args:
        ratio: The share, in [0, 1); of ten nodes 0.25 removes two.
    """

    def __call__(self, graph: Any) -> Any:
        """Return the graph without some nodes."""
        kept = torch.ones(len(graph.x), dtype=torch.bool)
        kept[torch.randperm(len(kept))[: _share(len(kept), self.ratio)]] = False
        return _induced(graph, kept)


class DropEdges(_OfAShare):
    """Remove a share of the edges, both directions of one together.

    Args:
        ratio: The share, in [0, 1).
    """

    def __call__(self, graph: Any) -> Any:
        """Return the graph without some edges."""
        ends = graph.edge_index.sort(dim=0).values
        pairs, of_edge = torch.unique(ends[0] * len(graph.x) + ends[1], return_inverse=True)
        kept = torch.ones(len(pairs), dtype=torch.bool)
        kept[torch.randperm(len(pairs))[: _share(len(pairs), self.ratio)]] = False
        return _with(graph, graph.x, graph.edge_index[:, kept[of_edge]])


class Subgraph(GraphTransform):
    """Keep a connected part: a random node, then again and again a random neighbour of what is kept.

    Args:
        keep: Share of the nodes that is kept, in (0, 1]; fewer where the part can grow no further.
    """

    def __init__(self, keep: float = 0.2) -> None:
        check_number("keep", keep, "in (0, 1]")
        self.keep = keep

    def __call__(self, graph: Any) -> Any:
        """Return a part of the graph."""
        count = len(graph.x)
        both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
        order = both[0].argsort(stable=True)
        neighbours = both[1][order].tolist()
        ends = [0, *torch.bincount(both[0], minlength=count).cumsum(0).tolist()]
        kept = torch.zeros(count, dtype=torch.bool)
        seen: set[int] = set()
        frontier: list[int] = []
        for draw in torch.rand(max(1, _share(count, self.keep)), dtype=torch.float64).tolist():
            if not seen:
                node = int(draw * count)
                seen.add(node)
            elif frontier:
                place = int(draw * len(frontier))
                frontier[place], frontier[-1] = frontier[-1], frontier[place]
                node = frontier.pop()
            else:
                break
            kept[node] = True
            fresh = set(neighbours[ends[node] : ends[node + 1]]) - seen
            seen |= fresh
            frontier += sorted(fresh)
        return _induced(graph, kept)


class MaskFeatures(_OfAShare):
    """Replace the features of a share of the nodes by noise from N(0.5, 0.5²), as GraphCL's code does.

    Args:
        ratio: The share, in [0, 1).
    """

    def __call__(self, graph: Any) -> Any:
        """Return the graph with other features."""
        x = graph.x.clone()
        masked = torch.randperm(len(x))[: _share(len(x), self.ratio)]
        x[masked] = 0.5 + 0.5 * torch.randn(len(masked), *x.shape[1:], dtype=x.dtype)
        return _with(graph, x, graph.edge_index)


class OneOf(GraphTransform):
    """Apply one of several transforms, each as likely as the others.

    Args:
        transforms: At least one, from graph to graph.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        if not transforms:
            raise ConfigError("OneOf needs at least one transform, got none")
        self.transforms = list(transforms)

    def __call__(self, graph: Any) -> Any:
        """Return what one of them gives."""
        return self.transforms[int(torch.randint(len(self.transforms), ()))](graph)


class GraphViews(MultiView):
    """Make two views of a graph as GraphCL does: the graph as it is, and one augmentation of it.

    Which pool is for which data set is not published; the authors' rule of thumb is ``random2`` for
    molecules, and edges or features besides for social graphs.

    Args:
        pool: Of which one is drawn: ``"random2"``: nodes or subgraph; ``"random3"``: edges besides;
            ``"random4"``: features besides; or a single one.
        ratio: Share of the nodes, edges or features that is dropped, in [0, 1).
        keep: Share of the nodes of a subgraph, in (0, 1].
        both: Augment both views.

    Raises:
        ConfigError: If an option is out of its range.
    """

    def __init__(
        self,
        pool: Literal["random2", "random3", "random4", "nodes", "subgraph", "edges", "features"] = "random2",
        ratio: float = 0.1,
        keep: float = 0.2,
        both: bool = False,
    ) -> None:
        parts: dict[str, GraphTransform] = {
            "nodes": DropNodes(ratio),
            "subgraph": Subgraph(keep),
            "edges": DropEdges(ratio),
            "features": MaskFeatures(ratio),
        }
        counts = {"random2": 2, "random3": 3, "random4": 4}
        if pool not in [*counts, *parts]:
            raise ConfigError(f"pool must be one of {', '.join([*counts, *parts])}, got {pool!r}")
        check_flags(both=both)
        super().__init__(OneOf(list(parts.values())[: counts[pool]] if pool in counts else [parts[pool]]))
        self.both = both

    def __call__(self, graph: Any) -> list[Any]:
        """Return two graphs."""
        first = self.transform if self.both else WholeGraph()
        return [first(graph), self.transform(graph)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r}, both={self.both})"


def _share(count: int, ratio: float) -> int:
    """Return how many a share of some things are, rounded down; 0.29 of 100 are 29."""
    return math.floor(count * ratio + 1e-9)


def _induced(graph: Any, kept: Tensor) -> Any:
    """Return the part of a graph that some nodes are, with all edges between them."""
    edges = graph.edge_index[:, kept[graph.edge_index].all(dim=0)]
    return _with(graph, graph.x[kept], (kept.cumsum(0) - 1)[edges])


def _with(graph: Any, x: Tensor, edge_index: Tensor) -> Any:
    """Return a new graph of these features and edges, without labels and whatever else there is."""
    return type(graph)(x=x, edge_index=edge_index)
