"""Few-shot accuracy: how well a few labelled images of a class tell which others are of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.metrics._rows import float32_rows, without_autocast

__all__ = ["FewShotProtocol", "FewShotResult", "draw_episode", "few_shot_accuracy", "nearest_prototype"]


@dataclass(frozen=True)
class FewShotProtocol:
    """What a few-shot accuracy depends on beside the features; numbers compare only under one protocol.

    Args:
        way: Classes of an episode, >= 2.
        shots: Labelled images of each class, its support, >= 1.
        queries: Further images of each class, which are classified, >= 1.
        episodes: How many episodes are drawn, >= 1.
        seed: The episodes are a function of it.

    Raises:
        ConfigError: If an option is out of its range.
    """

    way: int = 5
    shots: int = 20
    queries: int = 15
    episodes: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(2, way=self.way)
        check_whole(1, shots=self.shots, queries=self.queries, episodes=self.episodes)
        check_whole(0, seed=self.seed)

    def describe(self) -> str:
        """Return one line to write beside a number."""
        return (
            f"{self.way}-way {self.shots}-shot, {self.queries} queries a class, {self.episodes} episodes of "
            f"seed {self.seed}, nearest class mean of h by squared Euclidean distance"
        )


@dataclass(frozen=True, eq=False)
class FewShotResult:
    """The accuracies of episodes.

    Attributes:
        accuracies: Share of the queries that are classified correctly in each episode, ``(episodes,)``.
    """

    accuracies: Tensor

    @property
    def accuracy(self) -> float:
        """Mean over the episodes, in [0, 1]."""
        return float(self.accuracies.double().mean())

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean, over episodes of one network and not over trainings."""
        deviation = self.accuracies.double().std(correction=0)
        return float(1.96 * deviation / math.sqrt(len(self.accuracies)))


def draw_episode(members: Sequence[Sequence[int]], protocol: FewShotProtocol, index: int) -> Tensor:
    """Draw the images of an episode: classes, and within each its images, without replacement.

    Args:
        members: Rows of the images of each class; every class has ``shots + queries`` or more.
        protocol: How many of what, and the seed.
        index: Number of the episode; the draw is a function of it and the seed alone.

    Returns:
        Rows ``(way, shots + queries)``, int64, the support of each class before its queries.
    """
    generator = random.Random(f"{protocol.seed} {index}")  # of its own: nothing else is drawn from or moved
    classes = generator.sample(range(len(members)), protocol.way)
    count = protocol.shots + protocol.queries
    return torch.tensor([generator.sample(members[label], count) for label in classes])


def nearest_prototype(support: Tensor, query: Tensor) -> Tensor:
    """Return which class mean of the support is nearest to each query, by squared Euclidean distance.

    Source: Snell et al., Prototypical Networks, NeurIPS 2017, arXiv:1703.05175, without a learnt embedding.

    Args:
        support: Features of labelled images by class ``(..., W, S, F)``.
        query: Features ``(..., Q, F)``.

    Returns:
        Classes ``(..., Q)``, int64; of equally near ones the first.
    """
    prototypes = support.mean(dim=-2)
    # Not by products, |x|^2 - 2 x.y + |y|^2: of features far from 0 they would lose what tells classes apart.
    return (query.unsqueeze(-2) - prototypes.unsqueeze(-3)).square().sum(dim=-1).argmin(dim=-1)


@torch.no_grad()
def few_shot_accuracy(
    features: Tensor,
    labels: Tensor,
    protocol: FewShotProtocol | None = None,
    class_names: Sequence[str] | None = None,
) -> FewShotResult:
    """Classify the queries of each episode by the mean features of its labelled images.

    The protocol of Ericsson et al., CVPR 2021, arXiv:2011.13377, on the data sets of Guo et al., ECCV 2020,
    arXiv:1912.07200: nothing is trained, and features are taken as they are.

    Args:
        features: ``(N, F)``.
        labels: Classes ``(N,)``, int64; rows with a negative one do not count.
        protocol: How episodes are drawn; None for 600 of 5 classes with 20 labelled images each.
        class_names: Names of the classes by label, for messages.

    Raises:
        DataError: If there are fewer classes than an episode has, or fewer images of one than it draws.
        NumericalError: If a feature is not finite.
        ShapeError: If features and labels do not go together.
    """
    protocol = FewShotProtocol() if protocol is None else protocol
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ShapeError(
            f"expected features (N, F) and labels (N,), got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    rows = float32_rows(features, normalize=False, name="few-shot")
    members = _members(labels, protocol, class_names)
    shots, queries = protocol.shots, protocol.queries
    truth = torch.arange(protocol.way).repeat_interleave(queries).to(rows.device)
    accuracies = []
    with without_autocast(rows.device):
        for index in range(protocol.episodes):
            chosen = rows[draw_episode(members, protocol, index).to(rows.device)]
            found = nearest_prototype(chosen[:, :shots], chosen[:, shots:].flatten(0, 1))
            accuracies.append((found == truth).sum() / len(truth))
    return FewShotResult(torch.stack(accuracies).cpu())


def _members(labels: Tensor, protocol: FewShotProtocol, names: Sequence[str] | None) -> list[list[int]]:
    """Return the rows of each class that has any, in the order of the labels."""
    rows: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        if label >= 0:
            rows.setdefault(label, []).append(row)
    if len(rows) < protocol.way:
        raise DataError(
            f"an episode has {protocol.way} classes, and the images have {len(rows)}: set --model.way to "
            f"{max(2, len(rows))} or less, or bring images of more classes"
        )
    need = protocol.shots + protocol.queries
    if small := [label for label in sorted(rows) if len(rows[label]) < need]:
        first = repr(names[small[0]]) if names is not None else str(small[0])
        raise DataError(
            f"an episode takes {need} images of a class, {protocol.shots} shots and {protocol.queries} "
            f"queries, and {len(small)} of {len(rows)} classes have fewer, the first being {first} with "
            f"{len(rows[small[0]])}: set --model.shots or --model.queries lower, or leave these classes out"
        )
    return [rows[label] for label in sorted(rows)]
