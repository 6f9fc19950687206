"""What is in a batch: the one place that knows the structures that loaders give.

A batch is a list or tuple that starts with images or views and then labels, ``(images, labels, ...)``, or a
mapping with these under their usual names. What follows the labels, such as file names, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.views import is_view, item_count, shape_of

__all__ = [
    "class_indices",
    "clean_views",
    "image_count",
    "images_and_labels",
    "join_labels",
    "labels_of",
    "names_of",
    "split_labels",
    "views_of",
]

_MOST_BITS = 62
_VIEW_KEYS = ("views", "image", "images", "x")
_IMAGE_KEYS = ("image", "images", "x")
_NAME_KEYS = ("name", "path", "file", "filename", "index")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")
_ONE_VIEW = "expected a batch (images, labels) or {'image': ..., 'label': ...} with one tensor of images"


def views_of(batch: Any, count: int = 2) -> list[Any]:
    """Return the views of a batch, each of B items; see :mod:`mmcl_lightning.views` for what a view is.

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
    if not all(map(is_view, views)):
        kinds = ", ".join(type(view).__name__ for view in views)
        raise ShapeError(
            f"every view must be a tensor (B, 3, H, W), got {kinds}: end the transform with one to a tensor; "
            "a type of your own has to be registered with all functions of mmcl_lightning.views"
        )
    if not all(view.is_floating_point() for view in views if isinstance(view, Tensor)):
        raise ShapeError(
            f"views must be floating-point, got {', '.join(str(view.dtype) for view in views)}: let the "
            "transform turn pixels into numbers in [0, 1]"
        )
    shapes = [shape_of(view) for view in views]
    if any(other != shapes[0] for other in shapes):
        words = ", ".join(map(_words, shapes))
        raise ShapeError(
            f"all views must have one shape, got {words}: let the transform make them of one size"
        )
    return list(views)


def images_and_labels(batch: Any) -> tuple[Any, Tensor]:
    """Return images ``(B, ...)``, or a view of another kind, and labels ``(B,)``, int64, -1 without labels.

    Args:
        batch: ``(images, labels, ...)``, images alone, or a mapping with ``image`` and ``label`` (or
            ``images``, ``x``; ``labels``, ``target``, ``targets``, ``y``).

    Raises:
        DataError: If there is no image, there are several views, or labels are not integers.
        ShapeError: If there is not one label per image.
    """
    found = _first(batch, _IMAGE_KEYS)
    if isinstance(found, list | tuple) and len(found) > 1:
        raise DataError(f"{_ONE_VIEW}, got {len(found)} views")
    views, labels = clean_views(batch)
    return views[0], labels


def clean_views(batch: Any) -> tuple[list[Any], Tensor]:
    """Return the views of the items that are judged, one or several of each, and labels ``(B,)``, int64.

    Args:
        batch: As for :func:`images_and_labels`, with one view or a list of V views, such as ten crops of
            each image, of which the mean is to be taken.

    Raises:
        DataError: If there is no view, or labels are not integers.
        ShapeError: If the views differ in shape, or there is not one label per item.
    """
    found, labels = _first(batch, _IMAGE_KEYS), labels_of(batch)
    views = list(found) if isinstance(found, list | tuple) else [found]
    if not views or not all(map(is_view, views)):
        if isinstance(batch, Mapping):
            got = f"keys {sorted(map(str, batch))}"
        elif isinstance(found, list | tuple):
            got = f"a list of {', '.join(type(view).__name__ for view in views) or 'nothing'}"
        else:
            got = type(found).__name__
        raise DataError(f"{_ONE_VIEW}, got {got}")
    shapes = [shape_of(view) for view in views]
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"all views of a batch must have one shape, got {', '.join(map(_words, shapes))}")
    count = item_count(views[0])
    if labels is None:
        return views, torch.full((count,), -1, device=getattr(views[0], "device", None))
    targets = class_indices(labels)
    if len(targets) != count:
        raise ShapeError(f"expected labels ({count},), got ({len(targets)},)")
    return views, targets


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
    return item_count(part) if is_view(part) else 0


def _words(shape: Any) -> str:
    return " and ".join(map(_words, shape)) if isinstance(shape, list) else str(shape)


def _first(batch: Any, keys: tuple[str, ...]) -> Any:
    """Return what comes before the labels: images or views, made if they are still to be made."""
    found = batch
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in keys if key in batch), None)
    elif isinstance(batch, list | tuple):
        found = batch[0] if batch else None
    # Of a loader that somebody reads without moving its batches; see transforms.batched.DrawnViews.
    return found.make() if hasattr(found, "make") else found


def join_labels(labels: Tensor) -> Tensor:
    """Write the classes of an image that may be of several as one integer, which loaders take as any label.

    Args:
        labels: Whether the image is of the class, bool, shape ``(n, classes)``, at most 62 classes.

    Returns:
        ``(n,)``, int64: bit k says whether the image is of class k, and none is negative.

    Raises:
        ShapeError: If there are more classes.
    """
    if labels.shape[1] > _MOST_BITS:
        raise ShapeError(f"labels of several classes are for up to {_MOST_BITS}, got {labels.shape[1]}")
    return (labels.long() << torch.arange(labels.shape[1], device=labels.device)).sum(1)


def split_labels(joined: Tensor, classes: int) -> Tensor:
    """Return what :func:`join_labels` was given.

    Args:
        joined: Shape ``(n,)``, int64.
        classes: Number of classes.

    Returns:
        Bool, shape ``(n, classes)``.
    """
    return (joined[:, None] >> torch.arange(classes, device=joined.device)) % 2 == 1
