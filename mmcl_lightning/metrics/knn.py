"""Weighted k-nearest-neighbour classification of features, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmcl_lightning._options import check_choice, check_flags
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.metrics._neighbours import (
    BANK_CHUNK_SIZE,
    CHUNK_SIZE,
    add_votes,
    nearest,
    rank_of_target,
)
from mmcl_lightning.metrics._rows import float32_rows, inverse_norms, without_autocast

__all__ = ["KNN_PROTOCOLS", "KNNProtocol", "effective_k", "knn_accuracy", "knn_predict", "knn_scores"]


def _check_options(k: int, temperature: float, *sizes: int) -> None:
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperature must be a finite number > 0, got {temperature}.")
    if any(size < 1 for size in sizes):
        raise ConfigError(f"num_classes, chunk_size, bank_chunk_size must be at least 1, got {sizes}.")


@dataclass(frozen=True)
class KNNProtocol:
    """What a k-NN accuracy depends on beside the features; numbers compare only under one protocol.

    Args:
        k: Neighbours per query, >= 1.
        temperature: T of the weight exp(s / T) of a neighbour with similarity s, > 0.
        feature: ``"h"``: representation (backbone output); ``"z"``: projection.
        normalize: Cosine similarity; False takes the dot product of the features as they are.
        name: Short name, for logs.
    """

    k: int = 200
    temperature: float = 0.5
    feature: Literal["h", "z"] = "h"
    normalize: bool = True
    name: str = "custom"

    def __post_init__(self) -> None:
        _check_options(self.k, self.temperature)
        check_flags(normalize=self.normalize)
        check_choice("feature", self.feature, ("h", "z"))

    def describe(self) -> str:
        """Return one line to write beside a number.

        Example:
            >>> KNN_PROTOCOLS["mmcl_paper"].describe()
            'k=200 T=0.5 cosine h'
        """
        similarity = "cosine" if self.normalize else "dot"
        return f"k={self.k} T={self.temperature:g} {similarity} {self.feature}"


# mmcl_paper: the published code, which has it from HCL and the debiased loss. instdisc: the weighting of Wu
# et al. 2018; libraries disagree on its T (0.07 or 0.1), 0.1 is lightly's default. dino: Caron et al. 2021.
KNN_PROTOCOLS: dict[str, KNNProtocol] = {
    "dino": KNNProtocol(k=20, temperature=0.07, name="dino"),
    "instdisc": KNNProtocol(k=200, temperature=0.1, name="instdisc"),
    "mmcl_paper": KNNProtocol(k=200, temperature=0.5, name="mmcl_paper"),
}


def effective_k(k: int, bank_labels: Tensor) -> int:
    """Return the k that is used: ``k``, or the number of labelled rows of a smaller bank.

    Args:
        k: Neighbours asked for, >= 1.
        bank_labels: Labels ``(N,)``, negative = unlabelled.

    Raises:
        DataError: If no row of the bank is labelled.
    """
    labelled = int((bank_labels >= 0).sum())
    if labelled == 0:
        raise DataError(
            f"The k-NN bank has no labelled row (of {len(bank_labels)}); it needs labelled training images."
        )
    return min(k, labelled)


@torch.no_grad()
def knn_scores(
    query: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    num_classes: int,
    *,
    k: int = 200,
    temperature: float = 0.5,
    normalize: bool = True,
    chunk_size: int = CHUNK_SIZE,
    bank_chunk_size: int = BANK_CHUNK_SIZE,
) -> Tensor:
    r"""Score each class by its weighted votes among the k most similar rows of the bank.

    With similarities :math:`s_1 \ge \dots \ge s_k` of the neighbours, class c scores
    :math:`\sum_{i: y_i = c} \exp((s_i - s_1) / T)`: the weights exp(s/T) of Wu et al. (2018,
    arXiv:1805.01978) up to a factor per query, which keeps them finite at any T. A class with a
    neighbour scores above 0, one without scores 0. Equally similar rows rank in bank order, so the
    result does not depend on the chunk sizes, beyond rounding of the similarities.

    Beyond inputs and result, memory holds ``chunk_size * (bank_chunk_size + 2 k)`` numbers and float32
    copies of one chunk of each input. Works in float32, also under autocast, on the query's device.

    Args:
        query: Features ``(Q, F)``, any floating dtype.
        bank: Features ``(N, F)``, any floating dtype, any device: its chunks move to the query.
        bank_labels: Labels ``(N,)``, integer, below ``num_classes``; rows with a negative one are skipped.
        num_classes: C, >= 1.
        k: Neighbours per query, >= 1; ``effective_k(k, bank_labels)`` are used.
        temperature: T, > 0.
        normalize: Bring both features to unit length (cosine similarity).
        chunk_size: Queries per block, >= 1.
        bank_chunk_size: Bank rows per block, >= 1.

    Returns:
        Class scores ``(Q, C)``, float32, on the query's device.

    Raises:
        ShapeError: If shapes do not fit.
        ConfigError: If an option or a label is outside its range.
        DataError: If no row of the bank is labelled.
        NumericalError: If a feature is not finite.
    """
    _check_options(k, temperature, num_classes, chunk_size, bank_chunk_size)
    _check_shapes(query, bank, bank_labels)
    k = effective_k(k, bank_labels)
    if int(bank_labels.max()) >= num_classes:
        raise ConfigError(f"num_classes={num_classes}, but the bank has label {int(bank_labels.max())}.")
    labels = bank_labels.to(query.device)
    norms = inverse_norms(bank, "bank")  # also the check for non-finite features
    scale = norms if normalize else None
    scores = torch.zeros(len(query), num_classes, device=query.device)
    with without_autocast(query.device):
        for start in range(0, len(query), chunk_size):
            rows = float32_rows(query[start : start + chunk_size], normalize, "query")
            keys = nearest(rows, bank, scale, bank_labels, None, k, bank_chunk_size)
            add_votes(scores[start : start + chunk_size], keys, labels, temperature)
    return scores


def knn_predict(
    query: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    num_classes: int,
    *,
    k: int = 200,
    temperature: float = 0.5,
    normalize: bool = True,
) -> Tensor:
    """Return the class with the highest score, ``(Q,)`` int64; of equal scores the lower class.

    Arguments and errors are those of :func:`knn_scores`.
    """
    options = {"k": k, "temperature": temperature, "normalize": normalize}
    return knn_scores(query, bank, bank_labels, num_classes, **options).argmax(dim=1)  # type: ignore[arg-type]


def knn_accuracy(
    query: Tensor,
    query_labels: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    num_classes: int,
    protocol: KNNProtocol = KNN_PROTOCOLS["mmcl_paper"],
    *,
    chunk_size: int = CHUNK_SIZE,
    bank_chunk_size: int = BANK_CHUNK_SIZE,
) -> dict[str, float]:
    """Return the shares of labelled queries whose class is first, and among the first five.

    A class without a vote never counts, so top-5 is not free where k or the number of classes is below 5.
    Of classes with equal scores the lower one ranks first.

    Args:
        query: Features ``(Q, F)``.
        query_labels: Labels ``(Q,)``; queries with a negative one are skipped.
        bank: Features ``(N, F)``.
        bank_labels: Labels ``(N,)``; rows with a negative one are skipped.
        num_classes: C, >= 1.
        protocol: k, temperature and normalisation; ``protocol.feature`` is for the caller to heed.
        chunk_size: Queries per block.
        bank_chunk_size: Bank rows per block.

    Returns:
        ``{"top1": share, "top5": share}``, each in [0, 1].

    Raises:
        DataError: If no query or no row of the bank is labelled.
        ConfigError, NumericalError, ShapeError: As :func:`knn_scores`.
    """
    if query_labels.shape != query.shape[:1]:
        raise ShapeError(f"Expected query labels ({len(query)},), got {tuple(query_labels.shape)}.")
    labelled = (query_labels >= 0).to(query.device)
    targets = query_labels.to(query.device)[labelled]
    if len(targets) == 0:
        raise DataError(f"None of the {len(query_labels)} k-NN queries is labelled.")
    if int(targets.max()) >= num_classes:
        raise ConfigError(f"num_classes={num_classes}, but a query has label {int(targets.max())}.")
    scores = knn_scores(
        query if bool(labelled.all()) else query[labelled],
        bank,
        bank_labels,
        num_classes,
        k=protocol.k,
        temperature=protocol.temperature,
        normalize=protocol.normalize,
        chunk_size=chunk_size,
        bank_chunk_size=bank_chunk_size,
    )
    rank = rank_of_target(scores, targets)
    return {f"top{m}": (rank < m).double().mean().item() for m in (1, 5)}


def _check_shapes(query: Tensor, bank: Tensor, bank_labels: Tensor) -> None:
    if query.ndim != 2 or bank.ndim != 2 or query.shape[1] != bank.shape[1]:
        raise ShapeError(
            f"Expected query (Q, F) and bank (N, F), got {tuple(query.shape)} and {tuple(bank.shape)}."
        )
    if bank_labels.shape != bank.shape[:1]:
        raise ShapeError(f"Expected bank labels ({len(bank)},), got {tuple(bank_labels.shape)}.")
