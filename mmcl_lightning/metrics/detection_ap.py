"""Average precision of object detection by the rule of PASCAL VOC 2007."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning.errors import DataError, ShapeError

__all__ = ["DetectionAP", "voc_detection_ap"]

_THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))  # of the IoU
_RECALLS = tuple(step * 0.1 for step in range(11))  # as numpy.arange has them: 0.30000000000000004


@dataclass(frozen=True, eq=False)
class DetectionAP:
    """Average precisions, in [0, 1].

    Attributes:
        by_class: ``(classes, 10)``, float64: of each class at IoU 0.50, 0.55, ..., 0.95.
    """

    by_class: Tensor

    @property
    def ap(self) -> float:
        """Mean over classes and the ten thresholds."""
        return float(self.by_class.mean())

    @property
    def ap50(self) -> float:
        """Mean over classes at IoU 0.50."""
        return float(self.by_class[:, 0].mean())

    @property
    def ap75(self) -> float:
        """Mean over classes at IoU 0.75."""
        return float(self.by_class[:, 5].mean())


def voc_detection_ap(
    predictions: Sequence[Mapping[str, Tensor]],
    objects: Sequence[Mapping[str, Tensor]],
    classes: Sequence[int],
) -> DetectionAP:
    """Rank the detections of each class by score, and average the precision at eleven recalls.

    A detection is a hit if its IoU with the object of its class that it overlaps most is **greater** than the
    threshold, and no detection of a higher score was that object's hit. One that finds a difficult object is
    neither hit nor miss, and difficult objects need not be found. The precision at a recall is the best one
    at this or a larger recall.

    Boxes are corners that count pixels from 0, ``xmax`` and ``ymax`` beyond the last pixel: of a VOC
    annotation ``(xmin - 1, ymin - 1, xmax, ymax)``. The devkit's one pixel more in every width, on
    coordinates that count from 1, is the plain width of these. A class without objects counts 0, as in the
    published code.

    Source: the VOC 2007 devkit as detectron2 has it, which Ericsson et al. (CVPR 2021) use; it rounds scores
    to 3 and boxes to 1 decimals before, which this does not. COCO's AP takes 101 recalls: another number.

    Args:
        predictions: Of each image ``boxes`` ``(n, 4)``, ``scores`` ``(n,)`` and ``labels`` ``(n,)``.
        objects: Of each image ``boxes`` ``(m, 4)``, ``labels`` ``(m,)`` and ``difficult`` ``(m,)``, bool.
        classes: The labels that count, such as 1 to 20 where 0 is the background.

    Raises:
        DataError: If there is no class, no object, or a box without width or height among the objects.
        ShapeError: If lengths or shapes do not go together.
    """
    _check(predictions, objects, classes)
    return DetectionAP(
        torch.tensor([_of_class(predictions, objects, c) for c in classes], dtype=torch.float64)
    )


def _of_class(
    predictions: Sequence[Mapping[str, Tensor]], objects: Sequence[Mapping[str, Tensor]], label: int
) -> list[float]:
    """Return the average precision of one class at each threshold."""
    scores, overlaps, found, needed = [], [], [], 0
    difficult: list[bool] = []  # of the objects of this class in all images, one after the other
    for image, truth in zip(predictions, objects, strict=True):
        own, there = image["labels"] == label, truth["labels"] == label
        boxes = truth["boxes"][there].double().cpu()
        rows = image["boxes"][own].double().cpu()
        hard = truth["difficult"][there].bool().cpu().tolist()
        needed += hard.count(False)
        scores.append(image["scores"][own].double().cpu())
        if len(boxes):
            best, which = _iou(rows, boxes).max(dim=1)
        else:
            best, which = rows.new_zeros(len(rows)), torch.zeros(len(rows), dtype=torch.int64)
        overlaps.append(best)
        found.append(which + len(difficult))
        difficult += hard
    order = torch.cat(scores).argsort(descending=True, stable=True)
    ranked = torch.cat(overlaps)[order].tolist(), torch.cat(found)[order].tolist()
    return [_average_precision(*ranked, difficult, needed, threshold) for threshold in _THRESHOLDS]


def _average_precision(
    overlaps: list[float], found: list[int], difficult: list[bool], needed: int, threshold: float
) -> float:
    """Return the 11-point average precision of detections in the order of their scores.

    Args:
        overlaps: Largest IoU of each detection with an object.
        found: Which object that is.
        difficult: Whether each object is difficult.
        needed: Number of objects that are not.
        threshold: IoU above which a detection has found its object.
    """
    hits, misses, curve, seen = 0, 0, [], set()
    for overlap, which in zip(overlaps, found, strict=True):
        if overlap > threshold and difficult[which]:
            continue
        if overlap > threshold and which not in seen:
            seen.add(which)
            hits += 1
        else:
            misses += 1
        curve.append((hits / needed if needed else math.nan, hits / (hits + misses)))
    best = [max((precision for recall, precision in curve if recall >= r), default=0.0) for r in _RECALLS]
    return sum(best) / len(best)


def _iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of boxes ``(n, 4)`` and ``(m, 4)``, shape ``(n, m)``."""
    low, high = torch.maximum(one[:, None, :2], other[:, :2]), torch.minimum(one[:, None, 2:], other[:, 2:])
    shared = (high - low).clamp_min(0).prod(dim=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(dim=1) for boxes in (one, other)]
    return shared / (areas[0][:, None] + areas[1] - shared)


def _check(
    predictions: Sequence[Mapping[str, Tensor]],
    objects: Sequence[Mapping[str, Tensor]],
    classes: Sequence[int],
) -> None:
    if len(predictions) != len(objects):
        raise ShapeError(f"expected predictions of every image, got {len(predictions)} for {len(objects)}")
    for number, parts in enumerate(zip(predictions, objects, strict=True)):
        for part, names in zip(parts, (("scores", "labels"), ("labels", "difficult")), strict=True):
            count = len(part["boxes"])
            shapes = {name: tuple(part[name].shape) for name in ("boxes", *names)}
            if shapes != {"boxes": (count, 4), **dict.fromkeys(names, (count,))}:
                raise ShapeError(
                    f"image {number}: expected boxes (n, 4) and (n,) of the others, got {shapes}"
                )
        boxes = parts[1]["boxes"]
        if not bool((boxes[:, 2:] > boxes[:, :2]).all()):
            raise DataError(f"image {number}: an object's box has no width or height, or is inverted")
    if not classes or not any(len(truth["boxes"]) for truth in objects):
        raise DataError("there is nothing to detect: no class, or no object in any image")
