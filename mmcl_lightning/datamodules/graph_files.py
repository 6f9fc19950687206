"""Graphs of the TU collection from their official text files, and batches of graphs.

A data set NAME has one line per edge in ``NAME_A.txt``, numbers of two nodes from 1; one per node in
``NAME_graph_indicator.txt``, the number of its graph, and in ``NAME_node_labels.txt``; one per graph in
``NAME_graph_labels.txt``. The last two may be missing.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from mmcl_lightning.datamodules.sources import IntArray, Source
from mmcl_lightning.errors import DataError

__all__ = ["GraphSource", "collate_graphs", "read_graphs"]

_MOST_LABELS = 10_000  # of a node; each is a feature


class GraphSource(Source):
    """Graphs of one data set, as torch_geometric's ``Data`` with ``x`` and ``edge_index``.

    Args:
        labels: Labels of the nodes, shape ``(N, columns)``, from 0; every column becomes one-hot features. No
            column gives each node the feature 1.
        edges: Numbers of nodes within their graph, ``(2, E)``, sorted by graph.
        nodes: Where the nodes of each graph begin, and the end, ``(G + 1,)``.
        places: Where the edges of each graph begin, and the end, ``(G + 1,)``.
        targets: Class indices, ``(G,)``, -1 = unlabelled.
        class_names: Names of the classes by index, or None without labels.
    """

    def __init__(
        self,
        labels: IntArray,
        edges: IntArray,
        nodes: IntArray,
        places: IntArray,
        targets: IntArray,
        class_names: list[str] | None,
    ) -> None:
        self.labels, self.edges = torch.from_numpy(labels), torch.from_numpy(edges)
        self.nodes, self.places = nodes, places
        self.targets, self.class_names = targets, class_names
        self.widths = (labels.max(axis=0) + 1).tolist()

    @property
    def num_features(self) -> int:
        """Features of a node."""
        return sum(self.widths) or 1

    def item(self, index: int) -> Any:
        """Return graph ``index``."""
        from torch_geometric.data import Data  # seconds to import, and only graphs need it

        labels = self.labels[self.nodes[index] : self.nodes[index + 1]]
        columns = [F.one_hot(labels[:, i], width).float() for i, width in enumerate(self.widths)]
        edges = self.edges[:, self.places[index] : self.places[index + 1]]
        return Data(x=torch.cat(columns, dim=1) if columns else torch.ones(len(labels), 1), edge_index=edges)

    def digest(self, index: int) -> bytes:
        """Return labels of the nodes and edges of graph ``index``."""
        labels = self.labels[self.nodes[index] : self.nodes[index + 1]].contiguous()
        edges = self.edges[:, self.places[index] : self.places[index + 1]].contiguous()
        return repr(labels.shape).encode() + labels.numpy().tobytes() + edges.numpy().tobytes()


def collate_graphs(items: list[Any]) -> Any:
    """Make a batch of items that begin with a graph or a list of graphs, as torch_geometric does.

    Args:
        items: Tuples such as ``([graph, graph], target)``.
    """
    from torch_geometric.loader.dataloader import Collater

    return Collater(None)(items)


def read_graphs(folder: Path, name: str) -> GraphSource:
    """Read a data set. Self-loops and edges that are there twice are left out.

    Args:
        folder: Where the files lie.
        name: Name of the data set, which its files begin with.

    Raises:
        DataError: If a file is missing or damaged.
    """
    indicator = folder / f"{name}_graph_indicator.txt"
    graph_of = _numbers(indicator, 1)[:, 0]
    steps = np.diff(graph_of, prepend=0)
    if len(wrong := np.flatnonzero((steps < 0) | (steps > 1) | (graph_of < 1))):
        line = int(wrong[0])
        before = f"after one of graph {graph_of[line - 1]}" if line else "at first"
        raise DataError(
            f"{indicator}, line {line + 1}: a node of graph {graph_of[line]} {before}: nodes come graph by "
            "graph, and every graph has one"
        )
    counts = np.bincount(graph_of)[1:]
    nodes = np.concatenate([[0], counts.cumsum()])
    file, total = folder / f"{name}_A.txt", len(graph_of)
    edges = _numbers(file, 2) - 1
    if len(wrong := np.flatnonzero(((edges < 0) | (edges >= total)).any(axis=1))):
        pair = edges[wrong[0]] + 1
        node = next(n for n in pair if not 1 <= n <= total)
        raise DataError(f"{file}, line {wrong[0] + 1}: there is no node {node}, {indicator.name} has {total}")
    first, second = graph_of[edges.T] - 1
    if len(wrong := np.flatnonzero(first != second)):
        line = int(wrong[0])
        raise DataError(
            f"{file}, line {line + 1}: an edge from node {edges[line, 0] + 1} of graph {first[line] + 1} to "
            f"node {edges[line, 1] + 1} of graph {second[line] + 1}: edges stay within a graph"
        )
    _same_length(folder / f"{name}_edge_labels.txt", len(edges), file)
    keys = np.sort(edges[edges[:, 0] != edges[:, 1]] @ np.array([total, 1]))
    keys = keys[np.diff(keys, prepend=-1) > 0]  # np.unique takes many times as long
    source, target = np.divmod(keys, total)  # sorted by node, and so by graph
    back = np.sort(target * total + source)
    if not np.array_equal(back, keys):
        lone = np.setdiff1d(back, keys, assume_unique=True)
        other, node = divmod(int(lone[0]), total)
        raise DataError(
            f"{file} has an edge from node {node + 1} to node {other + 1} and none back, one of {len(lone)} "
            "such: the graphs are undirected, so the file is cut off"
        )
    of_edge = graph_of[source] - 1
    within = np.stack([source, target]) - nodes[of_edge]
    places = np.concatenate([[0], np.bincount(of_edge, minlength=len(counts)).cumsum()])
    targets, class_names = _classes(folder / f"{name}_graph_labels.txt", len(counts))
    return GraphSource(
        _node_labels(folder / f"{name}_node_labels.txt", total), within, nodes, places, targets, class_names
    )


def _node_labels(file: Path, nodes: int) -> IntArray:
    """Return labels from 0, ``(N, columns)``; without a file no column."""
    if not file.is_file():
        return np.zeros((nodes, 0), dtype=np.int64)
    labels = _numbers(file, None)
    _same_length(file, nodes, None, len(labels))
    first: IntArray = labels.min(axis=0)
    widths = [int(most) - int(least) + 1 for most, least in zip(labels.max(axis=0), first, strict=True)]
    if max(widths, default=0) > _MOST_LABELS:
        raise DataError(
            f"{file} has labels from {int(first.min())} to {int(labels.max())}, which would be "
            f"{max(widths):,} features of a node, more than {_MOST_LABELS:,}: number them one after the other"
        )
    return labels - first


def _classes(file: Path, graphs: int) -> tuple[IntArray, list[str] | None]:
    """Return class indices in the order of the labels, and these; -1 and None without a file."""
    if not file.is_file():
        return np.full(graphs, -1), None
    labels = _numbers(file, 1)[:, 0]
    _same_length(file, graphs, None, len(labels))
    names, targets = np.unique(labels, return_inverse=True)
    return targets.astype(np.int64), [str(name) for name in names]


def _same_length(file: Path, wanted: int, beside: Path | None, found: int | None = None) -> None:
    """Check the number of lines of a file, which may be missing where it is not read."""
    if found is None:
        if not file.is_file():
            return
        with file.open("rb") as lines:
            found = sum(1 for line in lines if line.strip())
    if found != wanted:
        other = "" if beside is None else f", as {beside.name} has"
        raise DataError(f"{file} has {found} lines, and {wanted} are expected{other}: a file is cut off")


def _numbers(file: Path, columns: int | None) -> NDArray[np.int64]:
    """Return the whole numbers of a file, a row per line."""
    if file.is_file() and not file.stat().st_size:  # of which NumPy warns besides
        raise DataError(f"{file} is empty")
    try:
        with warnings.catch_warnings():  # NumPy 1 only warns where it cuts off what is behind a decimal point
            warnings.simplefilter("error", DeprecationWarning)
            found = np.loadtxt(file, dtype=np.int64, delimiter=",", ndmin=2)
    except OSError as error:
        raise DataError(f"{file} is missing or cannot be read ({error.strerror or error})") from error
    except (ValueError, UnicodeDecodeError, DeprecationWarning) as error:
        raise DataError(f"{file}: {_bad_line(file, columns)}") from error
    if columns is not None and found.shape[1] != columns:
        raise DataError(f"{file} has {found.shape[1]} numbers in a line, and {columns} are expected")
    return found


def _bad_line(file: Path, columns: int | None) -> str:
    """Say which line is not made of whole numbers."""
    lines = file.read_text(errors="replace").splitlines()
    wanted = columns or len(lines[0].split(","))
    for number, line in enumerate(lines, 1):
        parts = line.split(",")
        whole = all(part.strip().lstrip("+-").isdecimal() for part in parts)
        if line.strip() and not (whole and len(parts) == wanted):
            kind = "a whole number" if wanted == 1 else f"{wanted} whole numbers"
            return f"line {number} must have {kind}, got {line[:40]!r}: the file is damaged or cut off"
    return "the numbers are too large"
