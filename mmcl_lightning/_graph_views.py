"""Batches of graphs as views: torch_geometric's ``Batch``, joined and cut without taking its graphs apart.

``Batch.from_data_list`` of batches takes them apart, and gives a wrong number of graphs. Here the tensors
are joined and cut as they are: whatever names nodes, such as ``edge_index``, moves along with them. What the
batch knows of its graphs stays true, so that ``to_data_list`` and ``batch[0]`` work on the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.views import concatenate, cut, map_tensors, shape_of

__all__: list[str] = []


@concatenate.register(Batch)
def _(view: Batch, *views: Batch) -> Batch:
    parts = [view, *views]
    joined = copy.copy(view)
    slices: dict[str, Tensor] = {}
    steps: dict[str, Tensor | None] = {}
    for key in _keys(view):
        values = [part[key] for part in parts]
        slices[key] = _after_each_other([part._slice_dict[key] for part in parts])
        if not isinstance(values[0], Tensor):
            joined[key], steps[key] = [entry for value in values for entry in value], None
            continue
        moves = _before([part.__inc__(key, value) for part, value in zip(parts, values, strict=True)])
        moved = [value + move if _moves(move) else value for value, move in zip(values, moves, strict=True)]
        joined[key] = torch.cat(moved, dim=view.__cat_dim__(key, values[0]) or 0)
        before = [part._inc_dict[key] for part in parts]
        steps[key] = (
            None if before[0] is None else torch.cat([a + b for a, b in zip(before, moves, strict=True)])
        )
    if "num_nodes" in view:
        joined.num_nodes = sum(part.num_nodes for part in parts)
        joined._num_nodes = [count for part in parts for count in part._num_nodes]
    graphs = _before([len(part) for part in parts])
    joined.batch = torch.cat([part.batch + first for part, first in zip(parts, graphs, strict=True)])
    joined.ptr = _after_each_other([part.ptr for part in parts])
    joined._slice_dict, joined._inc_dict, joined._num_graphs = slices, steps, sum(map(len, parts))
    return joined


@cut.register(Batch)
def _(view: Batch, start: int, end: int) -> Batch:
    start, end, _ = slice(start, end).indices(len(view))
    part = copy.copy(view)
    slices: dict[str, Tensor] = {}
    steps: dict[str, Tensor | None] = {}
    for key in _keys(view):
        places, before = view._slice_dict[key][start : end + 1], view._inc_dict[key]
        first, last = int(places[0]), int(places[-1])
        slices[key], value = places - first, view[key]
        if isinstance(value, Tensor):
            value = value.narrow(view.__cat_dim__(key, value) or 0, first, last - first)
        else:
            value = value[first:last]
        steps[key] = before
        if before is not None:
            steps[key] = before[start:end] - before[start]
            value = value - before[start].to(value.device) if _moves(before[start]) else value
        part[key] = value
    nodes = view.ptr[start : end + 1]
    if "num_nodes" in view:
        part.num_nodes, part._num_nodes = int(nodes[-1] - nodes[0]), view._num_nodes[start:end]
    part.batch, part.ptr = view.batch[nodes[0] : nodes[-1]] - start, nodes - nodes[0]
    part._slice_dict, part._inc_dict, part._num_graphs = slices, steps, end - start
    return part


@map_tensors.register(Batch)
def _(view: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    return copy.copy(view).apply(function)


@shape_of.register(Batch)
def _(view: Batch) -> Any:
    return len(view), "graphs", *(() if view.x is None else (view.x.shape[1], "features"))


def _keys(view: Batch) -> list[str]:
    """Names of what a batch joins of its graphs."""
    found = getattr(view, "_slice_dict", None)
    if found is None:
        raise ShapeError(
            "a batch of graphs must be one of Batch.from_data_list, which knows where each begins"
        )
    return list(found)


def _moves(step: Any) -> bool:
    """Whether numbers of nodes are to move."""
    return bool(step.any()) if isinstance(step, Tensor) else step != 0


def _before(counts: list[Any]) -> list[Any]:
    """Return what comes before each part."""
    found = [0 * counts[0]]
    for count in counts[:-1]:
        found.append(found[-1] + count)
    return found


def _after_each_other(places: list[Tensor]) -> Tensor:
    """Join the places at which items begin, each list ending with the number of its entries."""
    found = places[0]
    for more in places[1:]:
        found = torch.cat([found, more[1:] + found[-1]])
    return found
