"""What is in a batch: the one place that knows the structures that loaders give.

A batch is a list or tuple that starts with images or views and then labels, ``(images, labels, ...)``, or a
mapping with these under their usual names. What follows the labels, such as file names, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcl_lightning.errors import DataError, ShapeError

__all__ = [
    "class_indices",
    "concatenate",
    "image_count",
    "images_and_labels",
    "item_count",
    "labels_of",
    "map_tensors",
    "names_of",
    "split",
    "views_of",
]

_VIEW_KEYS = ("views", "image", "images", "x")
_IMAGE_KEYS = ("image", "images", "x")
_NAME_KEYS = ("name", "path", "file", "filename", "index")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def views_of(batch: Any, count: int = 2) -> list[Any]:
    """Return the views of a batch, each of B items: a tensor ``(B, ...)``, or a nesting of such tensors.

    Args:
        batch: ``(views, ...)`` with views a list of ``count``, or a mapping with such a list under
            ``views`` (or ``image``, ``images``, ``x``).
        count: How many views there must be.

    Raises:
        ShapeError: If there are others, or they do not fit together.
    """
    views = _first(batch, _VIEW_KEYS)
    if not isinstance(views, list | tuple) or len(views) != count:
        got = f"{len(views)} views" if isinstance(views, list | tuple) else type(views).__name__
        number = {2: "two"}.get(count, str(count))
        raise ShapeError(
            f"a batch must start with a list of {number} views, each (B, 3, H, W); got {got}"
            + (": the transform must give both views of an image" if isinstance(views, Tensor) else "")
        )
    leaves = [list(_leaves(view)) for view in views]
    if not all(
        parts and all(isinstance(part, Tensor) and part.ndim > 0 for part in parts) for parts in leaves
    ):
        kinds = ", ".join(type(view).__name__ for view in views)
        raise ShapeError(
            f"every view must be a tensor (B, 3, H, W), got {kinds}: end the transform with one to a tensor"
        )
    if not all(view.is_floating_point() for view in views if isinstance(view, Tensor)):
        raise ShapeError(
            f"views must be floating-point, got {', '.join(str(view.dtype) for view in views)}: let the "
            "transform turn pixels into numbers in [0, 1]"
        )
    shapes = [[part.shape for part in parts] for parts in leaves]
    if any(other != shapes[0] for other in shapes):
        words = ", ".join(" and ".join(str(tuple(shape)) for shape in parts) for parts in shapes)
        raise ShapeError(
            f"all views must have one shape, got {words}: let the transform make them of one size"
        )
    return list(views)


def item_count(view: Any) -> int:
    """Return the number of items of a view.

    Args:
        view: A tensor ``(B, ...)``, or lists, tuples and mappings of such.
    """
    return len(next(iter(_leaves(view))))


def map_tensors(function: Callable[[Tensor], Tensor], view: Any) -> Any:
    """Apply a function to the tensors of a view, and keep how they are nested.

    Args:
        function: From tensor to tensor.
        view: A tensor, or lists, tuples and mappings of such.
    """
    return _map(lambda parts: function(parts[0]), [view])


def concatenate(views: Sequence[Any]) -> Any:
    """Join views of the same structure into one, their items one after the other.

    Args:
        views: Each a tensor ``(b, ...)``, or lists, tuples and mappings of such.
    """
    return _map(torch.cat, views)


def split(view: Any, size: int) -> list[Any]:
    """Cut a view into parts of ``size`` items, the last one perhaps smaller.

    No item is left alone where the part before it can give one: batch norm needs two.

    Args:
        view: A tensor ``(B, ...)``, or lists, tuples and mappings of such.
        size: Items of a part, >= 1.
    """
    count = item_count(view)
    ends = [*range(size, count, size), count]
    if size > 2 and count > size and count % size == 1:
        ends[-2] -= 1

    def part(start: int, end: int) -> Any:
        return map_tensors(lambda x: x[start:end], view)

    return [part(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Return images ``(B, ...)`` and labels ``(B,)``, int64, -1 where the batch has none.

    Args:
        batch: ``(images, labels, ...)``, images alone, or a mapping with ``image`` and ``label`` (or
            ``images``, ``x``; ``labels``, ``target``, ``targets``, ``y``).

    Raises:
        DataError: If there is no image, or labels are not integers.
        ShapeError: If there is not one label per image.
    """
    images, labels = _first(batch, _IMAGE_KEYS), labels_of(batch)
    if not isinstance(images, Tensor) or images.ndim == 0:
        if isinstance(batch, Mapping):
            found = f"keys {sorted(map(str, batch))}"
        elif isinstance(images, list | tuple):
            found = f"{len(images)} views"
        else:
            found = type(images).__name__
        raise DataError(
            "expected a batch (images, labels) or {'image': ..., 'label': ...} with one tensor of images, "
            f"got {found}"
        )
    if labels is None:
        return images, torch.full((len(images),), -1, device=images.device)
    targets = class_indices(labels)
    if len(targets) != len(images):
        raise ShapeError(f"expected labels ({len(images)},), got ({len(targets)},)")
    return images, targets


def class_indices(labels: Any) -> Tensor:
    """Return labels as class indices ``(B,)``, int64.

    Args:
        labels: Integers of any type, as a tensor ``(B,)`` or ``(B, 1)``, or as a list.

    Raises:
        DataError: If they are no integers.
    """
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"labels must be integers, got {type(labels).__name__}: {error}") from error
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(f"labels must be integers, got {targets.dtype}")
    return targets.flatten().long()


def labels_of(batch: Any) -> Any:
    """Return what stands for the labels in a batch, of any type, or None.

    Args:
        batch: As for :func:`images_and_labels` or :func:`views_of`.
    """
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _LABEL_KEYS if key in batch), None)
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None


def names_of(batch: Any) -> list[str] | Tensor | None:
    """Return what tells the images of a batch apart: names or positions, one per image, or None.

    Args:
        batch: ``(images, labels, names, ...)``, or a mapping with them under ``name``, ``path``, ``file``,
            ``filename`` or ``index``. Names are strings, positions a tensor ``(B,)`` of integers.
    """
    if isinstance(batch, Mapping):
        names = next((batch[key] for key in _NAME_KEYS if key in batch), None)
    else:
        names = batch[2] if isinstance(batch, list | tuple) and len(batch) > 2 else None
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return list(names)
    whole = isinstance(names, Tensor) and names.ndim == 1 and not names.is_floating_point()
    return names if isinstance(names, Tensor) and whole else None


def image_count(batch: Any) -> int:
    """Return the number of images of a batch, each counted once however many views it has; 0 if unknown.

    Args:
        batch: As for :func:`images_and_labels` or :func:`views_of`.
    """
    part = _first(batch, _VIEW_KEYS)
    while isinstance(part, list | tuple | Mapping):
        if not part:
            return 0
        part = next(iter(part.values())) if isinstance(part, Mapping) else part[0]
    return len(part) if isinstance(part, Tensor) and part.ndim else 0


def _map(function: Callable[[list[Tensor]], Tensor], views: Sequence[Any]) -> Any:
    """Apply a function to the tensors that stand at one place of every view."""
    first = views[0]
    if isinstance(first, Mapping):
        return {key: _map(function, [view[key] for view in views]) for key in first}
    if isinstance(first, list | tuple):
        return [_map(function, parts) for parts in zip(*views, strict=True)]
    return function(list(views))


def _leaves(view: Any) -> Iterator[Any]:
    """Return what is nested in lists, tuples and mappings."""
    if isinstance(view, Mapping):
        view = list(view.values())
    if not isinstance(view, list | tuple):
        yield view
        return
    for part in view:
        yield from _leaves(part)


def _first(batch: Any, keys: tuple[str, ...]) -> Any:
    """Return what comes before the labels: images or views."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in keys if key in batch), None)
    if isinstance(batch, list | tuple):
        return batch[0] if batch else None
    return batch
