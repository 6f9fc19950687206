"""What an image is to be classified as: one class, or any number of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._accuracy import ClassAccuracy
from mmcl_lightning.batches import split_labels
from mmcl_lightning.modules.measures import SetPrecision

__all__ = ["LabelSets", "OneClass"]


class OneClass:
    """Each image is of one class: labels are class indices, and negative ones do not count."""

    in_words = ""
    metric: Any = ClassAccuracy
    measures: tuple[str, ...] = ("top1", "mean_per_class")
    """What a data module may ask to be judged by; the first is what it is without."""

    def largest(self, classes: int) -> int:
        """Return the largest label that there may be."""
        return classes - 1

    def loss_sum(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of scores ``(B, classes)``."""
        return F.cross_entropy(scores, labels.clamp_min(-1), ignore_index=-1, reduction="sum")

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities ``(B, classes)`` that scores stand for."""
        return scores.softmax(1)

    def scores(self, probabilities: Tensor) -> Tensor:
        """Return scores ``(B, classes)`` that stand for such probabilities."""
        return probabilities.log()

    def rows(self, labels: Tensor, classes: int) -> Tensor:
        """Return targets as :func:`~mmcl_lightning.metrics.logistic_path` takes them."""
        return labels

    def predicted(self, scores: Tensor, names: list[str] | None) -> Any:
        """Return the names of the classes of the largest score, or their indices ``(B,)`` without names."""
        indices = scores.argmax(1)
        return indices if names is None else [names[index] for index in indices.tolist()]


class LabelSets(OneClass):
    """An image may be of several classes: labels are those of :func:`~mmcl_lightning.batches.join_labels`."""

    in_words = ", each class against the rest"
    metric = SetPrecision
    measures = ("map_11point",)

    def largest(self, classes: int) -> int:
        """Return the largest label that there may be."""
        return (1 << classes) - 1

    def loss_sum(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over the images of the mean binary cross-entropy over the classes."""
        known = labels >= 0
        targets = split_labels(labels, scores.shape[1])[known].to(scores)
        total = F.binary_cross_entropy_with_logits(scores[known], targets, reduction="sum")
        return total / scores.shape[1]

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probability ``(B, classes)`` of each class that scores stand for."""
        return scores.sigmoid()

    def scores(self, probabilities: Tensor) -> Tensor:
        """Return scores ``(B, classes)`` that stand for such probabilities."""
        return probabilities.logit()

    def rows(self, labels: Tensor, classes: int) -> Tensor:
        """Return whether each image is of each class, bool ``(n, classes)``."""
        return split_labels(labels, classes)

    def predicted(self, scores: Tensor, names: list[str] | None) -> Any:
        """Return the names of the classes of a score over 0, joined by " + ", or bool ``(B, classes)``."""
        has = scores > 0
        if names is None:
            return has
        return [" + ".join(name for name, of in zip(names, row, strict=True) if of) for row in has.tolist()]
