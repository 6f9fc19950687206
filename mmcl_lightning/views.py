"""What a view is: tensors, nestings of them, graphs, and whatever else is registered here.

A view holds B items, such as images ``(B, 3, H, W)``, and a network maps it to ``(B, F)``. Between loader
and network everything goes by the functions of this file, which are chosen by the type of the view. A type
of your own needs ``len(view)``, ``view.to(device)``, and to be registered, as by
``concatenate.register(MyView, join)``, and so for ``cut``, ``map_tensors`` and ``shape_of``. Batches of
torch_geometric are registered when the first one is met.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcl_lightning.errors import ShapeError

__all__ = [
    "all_tensors",
    "concatenate",
    "cut",
    "is_view",
    "item_count",
    "map_tensors",
    "mean_over_views",
    "shape_of",
    "split",
]


@functools.singledispatch
def concatenate(view: Any, *views: Any) -> Any:
    """Join views of the same structure into one, their items one after the other.

    Args:
        view: The first view.
        views: All other views.

    Raises:
        ShapeError: If the type of the view is not registered.
    """
    return _registered(concatenate, view)(view, *views)


@functools.singledispatch
def cut(view: Any, start: int, end: int) -> Any:
    """Return the items of a view from ``start`` up to, and without, ``end``.

    Args:
        view: A view.
        start: First item.
        end: The item after the last.

    Raises:
        ShapeError: If the type of the view is not registered.
    """
    return _registered(cut, view)(view, start, end)


@functools.singledispatch
def map_tensors(view: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors of a view, and keep how they are nested.

    Args:
        view: A view.
        function: From tensor to tensor.

    Raises:
        ShapeError: If the type of the view is not registered.
    """
    return _registered(map_tensors, view)(view, function)


@functools.singledispatch
def shape_of(view: Any) -> Any:
    """Return what has to be the same of all views of the same items, such as their shape.

    Args:
        view: A view.

    Raises:
        ShapeError: If the type of the view is not registered.
    """
    return _registered(shape_of, view)(view)


def item_count(view: Any) -> int:
    """Return the number of items of a view.

    Args:
        view: A view.
    """
    if isinstance(view, Mapping):
        return item_count(next(iter(view.values())))
    return item_count(view[0]) if isinstance(view, list | tuple) else len(view)


def split(view: Any, size: int) -> list[Any]:
    """Cut a view into parts of ``size`` items, the last one perhaps smaller.

    No item is left alone where the part before it can give one: batch norm needs two.

    Args:
        view: A view of B items.
        size: Items of a part, >= 1.
    """
    count = item_count(view)
    ends = [*range(size, count, size), count]
    if size > 2 and count > size and count % size == 1:
        ends[-2] -= 1
    return [cut(view, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def mean_over_views(function: Callable[[Any], Any], views: Sequence[Any]) -> Any:
    """Return the mean of what a function gives for views of the same items; of a single one what it gives.

    Args:
        function: From a view of B items to a tensor ``(B, ...)``.
        views: One view or more, such as ten crops of each image.
    """
    total = function(views[0])
    for view in views[1:]:
        total = total + function(view)
    return total if len(views) == 1 else total / len(views)


def is_view(thing: Any) -> bool:
    """Return whether something is a view: of a known type, and no empty list or mapping in it.

    Args:
        thing: Anything.
    """
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        return len(thing) > 0 and all(map(is_view, thing))
    if isinstance(thing, Tensor):
        return thing.ndim > 0
    try:
        shape_of(thing)
    except ShapeError:
        return False
    return True


def all_tensors(view: Any) -> bool:
    """Return whether a view is a tensor or a nesting of tensors, and holds nothing else such as graphs.

    Args:
        view: A view.
    """
    if isinstance(view, Mapping):
        view = list(view.values())
    return all(map(all_tensors, view)) if isinstance(view, list | tuple) else isinstance(view, Tensor)


@concatenate.register(Tensor)
def _(view: Tensor, *views: Tensor) -> Tensor:
    return torch.cat([view, *views])


@concatenate.register(Mapping)
def _(view: Mapping[Any, Any], *views: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: concatenate(part, *(other[key] for other in views)) for key, part in view.items()}


@concatenate.register(list)
@concatenate.register(tuple)
def _(view: Any, *views: Any) -> list[Any]:
    return [concatenate(*parts) for parts in zip(view, *views, strict=True)]


@cut.register(Tensor)
def _(view: Tensor, start: int, end: int) -> Tensor:
    return view[start:end]


@cut.register(Mapping)
def _(view: Mapping[Any, Any], start: int, end: int) -> dict[Any, Any]:
    return {key: cut(part, start, end) for key, part in view.items()}


@cut.register(list)
@cut.register(tuple)
def _(view: Any, start: int, end: int) -> list[Any]:
    return [cut(part, start, end) for part in view]


@map_tensors.register(Tensor)
def _(view: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(view)


@map_tensors.register(Mapping)
def _(view: Mapping[Any, Any], function: Callable[[Tensor], Tensor]) -> dict[Any, Any]:
    return {key: map_tensors(part, function) for key, part in view.items()}


@map_tensors.register(list)
@map_tensors.register(tuple)
def _(view: Any, function: Callable[[Tensor], Tensor]) -> list[Any]:
    return [map_tensors(part, function) for part in view]


@shape_of.register(Tensor)
def _(view: Tensor) -> Any:
    return tuple(view.shape)


@shape_of.register(Mapping)
def _(view: Mapping[Any, Any]) -> Any:
    return [shape_of(part) for part in view.values()]


@shape_of.register(list)
@shape_of.register(tuple)
def _(view: Any) -> Any:
    return [shape_of(part) for part in view]


def _registered(function: Any, view: Any) -> Any:
    """Return what a function does with the type of a view, which is not registered so far."""
    kind = type(view)
    if any(base.__module__.startswith("torch_geometric.") for base in kind.__mro__):  # its own is made up
        importlib.import_module("mmcl_lightning._graph_views")  # registers its batches
        if (found := function.dispatch(kind)) is not function.dispatch(object):
            return found
    raise ShapeError(
        f"a view must be a tensor (B, ...), a nesting of such, or a batch of graphs, got {kind.__name__}; a "
        "type of your own has to be registered with the functions of mmcl_lightning.views"
    )
