"""A map of representations: each image a point of the plane, near those that the network takes for alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmcl_lightning._options import check_choice, check_installed
from mmcl_lightning._plots import COLOURS, GREY, MARKERS, pyplot, save_png
from mmcl_lightning._text import plain
from mmcl_lightning.errors import DataError, NumericalError
from mmcl_lightning.representations.images import EmbeddedImages

__all__ = ["METHODS", "Method", "Points", "check_method", "check_rows", "draw_map", "map_points", "sample"]

Method = Literal["pca", "tsne"]
METHODS: tuple[Method, ...] = ("pca", "tsne")

MOST_IMAGES = 5000  # more points hide each other, and t-SNE takes minutes
_MOST_CLASSES = 20  # seven colours in three shapes
_COMPONENTS = 50  # that t-SNE looks at
_PERPLEXITY = 30.0
_LONGEST = 28  # characters of the name of a class
_SEED = 0


class Points(NamedTuple):
    """Where images are on the map.

    Args:
        xy: Places ``(N, 2)``, float32, the spread of the larger direction first.
        axes: What the two directions are, in words; empty where they are nothing.
        how: How they were found, in words.
    """

    xy: Tensor
    axes: tuple[str, str]
    how: str


def check_method(method: str) -> None:
    """Raise :class:`ConfigError` unless a map can be made by a method."""
    check_choice("method", method, METHODS)
    if method == "tsne":
        check_installed("a map by t-SNE", "sklearn", "map", "scikit-learn")


def check_rows(h: Tensor, method: Method) -> None:
    """Raise where representations ``(N, F)`` have no map by a method; see :func:`map_points`."""
    check_method(method)
    if len(h) < 3:
        raise DataError(f"a map needs at least 3 images, got {len(h)}")
    if not h.isfinite().all():
        raise NumericalError(f"h of row {int((~h.isfinite()).any(dim=1).nonzero()[0])} is not finite")
    if method == "tsne" and float(normalize(h.double(), dim=1).std(dim=0).amax()) < 1e-9:
        # scikit-learn's process would end on such points.
        raise DataError(
            f"all {len(h)} h are equal, as those of a collapsed network: t-SNE places no such points"
        )


def sample(images: EmbeddedImages) -> EmbeddedImages:
    """Return at most 5,000 of the images, evenly spaced."""
    count = len(images.paths)
    rows = torch.arange(min(count, MOST_IMAGES)) * count // min(count, MOST_IMAGES)
    return images.subset(rows)


def map_points(h: Tensor, method: Method = "pca") -> Points:
    """Place representations on a plane.

    Rows are scaled to unit length first, as k-NN and ``neighbours`` compare them. PCA keeps large distances,
    and says how much of the variance the plane has; t-SNE keeps neighbours, and neither distances between
    groups nor their sizes.

    Args:
        h: Representations ``(N, F)``, N at least 3.
        method: ``"pca"``, or ``"tsne"`` on the first 50 principal components, by scikit-learn.

    Raises:
        ConfigError: If the method is not known, or its library is missing.
        DataError: If there are fewer than 3 rows.
        NumericalError: If a value is not finite.
    """
    check_rows(h, method)
    rows = normalize(h.double(), dim=1)
    parts, shares = _principal(rows, 2 if method == "pca" else _COMPONENTS)
    if method == "pca":
        axes = tuple(f"principal component {i + 1}: {100 * shares[i]:.0f} % of the variance" for i in (0, 1))
        return Points(parts.float(), axes, f"PCA, {100 * sum(shares[:2]):.0f} % of the variance")  # type: ignore[arg-type]
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(h) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=_SEED).fit_transform(parts.float().numpy())
    return Points(
        torch.from_numpy(places).float(),
        ("", ""),
        f"t-SNE (perplexity {perplexity:.0f}), which keeps neighbours, not distances",
    )


def _principal(rows: Tensor, count: int) -> tuple[Tensor, list[float]]:
    """Return the first principal components ``(N, count)`` of rows, and their shares of the variance.

    From the smaller one of covariance and Gram matrix; the sign is that of the larger tail.
    """
    rows = rows - rows.mean(dim=0)
    by_rows = len(rows) < rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.T if by_rows else rows.T @ rows)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    total = values.sum().clamp_min(1e-300)
    found = vectors * values.sqrt() if by_rows else rows @ vectors
    found = torch.nn.functional.pad(found, (0, max(0, count - found.shape[1])))[:, :count]
    return found * found.pow(3).sum(dim=0).sign(), [*(values / total).tolist(), 0.0, 0.0]


def draw_map(images: EmbeddedImages, points: Points, path: Path, lines: Sequence[str] = ()) -> bool:
    """Draw a map, coloured by class: 20 classes in seven colours and three shapes, further ones in grey.

    Args:
        images: Whose classes are shown; those without any are grey too.
        points: Where each of them is.
        path: Picture to write, .png.
        lines: What it shows, below the title.

    Returns:
        Whether it was drawn: not without matplotlib.
    """
    if (plt := pyplot()) is None:
        return False
    figure, axis = plt.subplots(figsize=(10, 7), layout="constrained")
    looks = _looks(images.classes)
    order = torch.randperm(len(images.paths), generator=torch.Generator().manual_seed(_SEED))
    size = min(40.0, max(14.0, 60_000 / len(order)))
    for marker in ("", *MARKERS):  # grey ones first, below; mixed, so that no class covers another
        rows = [row for row in order.tolist() if looks[images.classes[row]].marker == marker]
        colours = [looks[images.classes[row]].colour for row in rows]
        axis.scatter(*points.xy[rows].T.numpy(), s=size, c=colours, marker=marker or "o", linewidths=0)
    axis.set(xticks=[], yticks=[], xlabel=points.axes[0], ylabel=points.axes[1])
    axis.set_aspect("equal", "datalim")
    axis.spines[:].set_color(GREY)
    axis.set_title("\n".join(lines), loc="left", fontsize=10)
    if any(images.classes):
        axis.legend(*_legend(plt, looks, images.classes), **_BESIDE)
    save_png(figure, path)
    return True


_BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "frameon": False, "fontsize": 10}


class _Look(NamedTuple):
    colour: str
    marker: str  # empty for those that are not told apart


def _looks(classes: Sequence[str]) -> dict[str, _Look]:
    """Return the look of each class: of many the largest have one, in the order of their names."""
    numbers = Counter(name for name in sorted(classes) if name)
    told = sorted(name for name, _ in numbers.most_common(_MOST_CLASSES))
    looks = {
        name: _Look(COLOURS[i % len(COLOURS)], MARKERS[i // len(COLOURS)]) for i, name in enumerate(told)
    }
    alone = _Look(GREY if numbers else COLOURS[0], "")
    return {name: looks.get(name, alone) for name in set(classes)}


def _legend(plt: Any, looks: dict[str, _Look], classes: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return handles and texts, with the number of images of each class."""
    numbers, rest = Counter(classes), [name for name, look in looks.items() if name and not look.marker]
    entries = [(looks[name], name, numbers[name]) for name in sorted(looks) if looks[name].marker]
    if rest:
        entries.append((_Look(GREY, "o"), f"{len(rest)} more classes", sum(numbers[name] for name in rest)))
    if numbers[""]:
        entries.append((_Look(GREY, "o"), "without a class", numbers[""]))
    handles = [
        plt.Line2D([], [], color=look.colour, marker=look.marker, linestyle="", markersize=7)
        for look, _, _ in entries
    ]
    return handles, [f"{_short(name)} ({count:,})" for _, name, count in entries]


def _short(name: str) -> str:
    """Return a name that fits beside the map, its end included, in which nothing is maths to matplotlib."""
    name, half = plain(name), _LONGEST // 2
    return (name if len(name) <= _LONGEST else f"{name[:half]}...{name[3 - half :]}").replace("$", r"\$")
