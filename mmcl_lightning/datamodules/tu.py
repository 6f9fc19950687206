"""Graphs of the TU collection: molecules, proteins, social networks."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from mmcl_lightning._options import check_installed
from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.datamodules.graph_files import GraphSource, collate_graphs, read_graphs
from mmcl_lightning.datamodules.sources import with_labels
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms.base import MultiView
from mmcl_lightning.transforms.graphs import GraphTransform, GraphViews, WholeGraph

__all__ = ["TUDataModule"]

#: Sets of published experiments on contrast of graphs, for names that are misspelled.
_KNOWN = (
    "COLLAB", "DD", "ENZYMES", "IMDB-BINARY", "IMDB-MULTI", "MUTAG", "NCI1", "NCI109", "PROTEINS", "PTC_MR",
    "REDDIT-BINARY", "REDDIT-MULTI-5K", "REDDIT-MULTI-12K",
)  # fmt: skip


class TUDataModule(SSLDataModule):
    """A set of graphs with classes, from the official files of the TU collection (Morris et al., 2020).

    As in GraphCL's experiments all graphs are pretrained on, and judged by
    :class:`~mmcl_lightning.readouts.SVCCrossValidation`; there is no validation loss. For the k-NN readout
    the graphs are dealt out by ``seed``: nine tenths of each class are the bank, one tenth the query.
    Features of a node are its label, one-hot; where nodes have no labels, the number 1. Labels of edges, and
    attributes that are no labels, are not read.

    Batch:
        ``(views, targets)``, views two batches of torch_geometric with ``x (N, F)``, float32, and
        ``edge_index (2, E)``, int64; targets int64 ``(B,)``, -1 = unlabelled. The last batch of an epoch is
        kept. Evaluation: one such batch, of whole graphs.

    Args:
        root: Folder with ``NAME/raw/NAME_A.txt`` and so on, or ``NAME/NAME_A.txt``. Nothing is written there
            but by a download.
        name: Name of the set: ``"MUTAG"``, ``"PROTEINS"``, ...
        download: Download the files if they are not there.
        train_transform: From a graph to two views, or to one; ``None`` for
            :class:`~mmcl_lightning.transforms.GraphViews` with its defaults.
        eval_transform: Of the graphs that are judged; ``None`` for whole graphs.
        **kwargs: Batch sizes, workers, subsets and seed: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range, or torch_geometric is not installed.
        DataError: From ``setup``, if a file is missing or damaged.
    """

    collate_fn = staticmethod(collate_graphs)
    keep_last_batch = True
    name: str

    items = "graphs"

    def __init__(
        self,
        root: str = "data",
        name: str = "MUTAG",
        download: bool = False,
        train_transform: MultiView | GraphTransform | None = None,
        eval_transform: GraphTransform | None = None,
        **kwargs: Any,
    ) -> None:
        check_installed("TUDataModule", "torch_geometric", "graph")
        transforms: Any = {"train_transform": train_transform, "eval_transform": eval_transform}
        super().__init__(**transforms, **kwargs)
        self.root = root
        self.name = name
        self.download = download
        self._graphs: GraphSource | None = None

    @property
    def folder(self) -> str:
        """Name of the set, which tells tables apart."""
        return self.name

    @property
    def graphs(self) -> GraphSource:
        """All graphs, in the order of the files; read on first access."""
        if self._graphs is None:
            self._graphs = read_graphs(self._raw(), self.name)
        return self._graphs

    @property
    def num_features(self) -> int:
        """Features of a node."""
        return self.graphs.num_features

    @property
    def class_names(self) -> list[str] | None:
        """Labels of the graphs as the files have them, or None without labels."""
        return self.graphs.class_names

    def prepare_data(self) -> None:
        """Download the files, if asked to and they are missing; Lightning calls this in one process only."""
        if not self.download or self._found() is not None:
            return
        from torch_geometric.datasets import TUDataset
        from torchvision.datasets.utils import download_and_extract_archive

        try:
            download_and_extract_archive(
                f"{TUDataset.url}/{self.name}.zip", str(self._root), remove_finished=True
            )
        except (OSError, RuntimeError) as error:
            raise DataError(f"{self.name}: the download failed ({error})") from error

    def setup(self, stage: str | None = None) -> None:
        """Read the files once, whatever the stage, and say what was read."""
        first = self._graphs is None
        super().setup(stage)
        if first:
            rank_zero_info(self.description())

    def load_splits(self) -> Splits:
        """Read the files; deal the labelled graphs out to bank and query."""
        graphs = self.graphs
        if graphs.class_names is None:
            file = f"{self.name}_graph_labels.txt"
            rank_zero_warn(f"there is no {file}, so there is no k-NN and no cross-validation")
            return Splits(graphs, None, None, None)
        order = np.random.default_rng(self.seed).permutation(len(graphs))
        by_class = order[np.argsort(graphs.targets[order], kind="stable")]
        query = np.sort(by_class[::10])
        bank = np.setdiff1d(np.arange(len(graphs)), query)
        return Splits(graphs, None, graphs.subset(bank), graphs.subset(query))

    def labelled_dataloader(self) -> DataLoader[Any] | None:
        """Every labelled graph once, in the order of the files, or None without labels."""
        source = with_labels(self.splits.pretrain)
        return super().labelled_dataloader() if source is None else self._eval_loader(source)

    def default_train_transform(self) -> MultiView:
        """Return a graph and one augmentation of it."""
        return GraphViews()

    def default_eval_transform(self) -> GraphTransform:
        """Return whole graphs."""
        return WholeGraph()

    def description(self) -> str:
        """Say what was read, and what was not."""
        graphs = self.graphs
        unread = [
            part for part in ("edge_labels", "edge_attributes", "node_attributes", "graph_attributes")
            if (self._raw() / f"{self.name}_{part}.txt").is_file()
        ]  # fmt: skip
        return (
            f"{self.name}: {len(graphs)} graphs, {len(graphs.labels)} nodes of {graphs.num_features} "
            f"features, {graphs.edges.shape[1]} directed edges"
            + (f"; not read: {', '.join(unread)}" if unread else "")
        )

    def prepared(self) -> str:
        """Say in words how graphs are prepared that are judged; whole ones go without saying."""
        return "" if self.eval_transform is None else super().prepared()

    @property
    def _root(self) -> Path:
        return Path(self.root).expanduser().absolute()

    def _found(self) -> Path | None:
        """Return the folder of the files, if there is one."""
        places = (self._root / self.name / "raw", self._root / self.name)
        return next((place for place in places if (place / f"{self.name}_A.txt").is_file()), None)

    def _raw(self) -> Path:
        """Return the folder of the files, or say what is missing."""
        found = self._found()
        if found is not None:
            return found
        folder = self._root / self.name / "raw"
        if not folder.is_dir():
            there = [path.name for path in self._root.iterdir()] if self._root.is_dir() else []
            by_capitals = {name.upper(): name for name in (*there, *_KNOWN)}
            near = difflib.get_close_matches(self.name.strip(" /").upper(), by_capitals, n=3)
            near = [by_capitals[name] for name in near]
            if near and self.name not in near:
                raise ConfigError(
                    f"there is no data set {self.name!r} in {self._root}; did you mean {' or '.join(near)}?"
                )
        file = folder / f"{self.name}_A.txt"
        raise DataError(f"{self.name}: the file {file} is missing; --data.download true fetches it")
