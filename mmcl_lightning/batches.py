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

__all__ = ["image_count", "images_and_labels", "labels_of", "views_of"]

_VIEW_KEYS = ("views", "image", "images", "x")
_IMAGE_KEYS = ("image", "images", "x")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def views_of(batch: Any, count: int = 2) -> list[Tensor]:
    """Return the views of a batch, each ``(B, ...)``.

    Args:
        batch: ``(views, ...)`` with views a list of ``count`` tensors, or a mapping with such a list under
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
    if not all(isinstance(view, Tensor) and view.ndim > 0 for view in views):
        kinds = ", ".join(type(view).__name__ for view in views)
        raise ShapeError(
            f"every view must be a tensor (B, 3, H, W), got {kinds}: end the transform with one to a tensor"
        )
    if not all(view.is_floating_point() for view in views):
        raise ShapeError(
            f"views must be floating-point, got {', '.join(str(view.dtype) for view in views)}: let the "
            "transform turn pixels into numbers in [0, 1]"
        )
    if len({view.shape for view in views}) > 1:
        shapes = ", ".join(str(tuple(view.shape)) for view in views)
        raise ShapeError(
            f"all views must have one shape, got {shapes}: let the transform make them of one size"
        )
    return list(views)


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
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"labels must be integers, got {type(labels).__name__}: {error}") from error
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(f"labels must be integers, got {targets.dtype}")
    if targets.numel() != len(images):
        raise ShapeError(f"expected labels ({len(images)},), got {tuple(targets.shape)}")
    return images, targets.flatten().long()


def labels_of(batch: Any) -> Any:
    """Return what stands for the labels in a batch, of any type, or None.

    Args:
        batch: As for :func:`images_and_labels` or :func:`views_of`.
    """
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _LABEL_KEYS if key in batch), None)
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None


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


def _first(batch: Any, keys: tuple[str, ...]) -> Any:
    """Return what comes before the labels: images or views."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in keys if key in batch), None)
    if isinstance(batch, list | tuple):
        return batch[0] if batch else None
    return batch
