"""Images in shards of WebDataset, read from the beginning of each to its end, from disk or network."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from mmcl_lightning._options import check_installed, check_whole
from mmcl_lightning._text import counted, plain
from mmcl_lightning.datamodules.datasets import ViewDataset
from mmcl_lightning.datamodules.image_folder import ImageFolderDataModule
from mmcl_lightning.datamodules.loading import EpochSampler, ResumableDataLoader
from mmcl_lightning.datamodules.shards import Shard, ShardSet, find_shards, read_shard
from mmcl_lightning.datamodules.skipping import SkippedFiles
from mmcl_lightning.datamodules.sources import Source, with_labels
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.stream_order import StreamOrder, StreamSampler
from mmcl_lightning.datamodules.streaming import MemorySource, StreamSource
from mmcl_lightning.datamodules.tree import PictureTree, scan_tree
from mmcl_lightning.errors import ConfigError

__all__ = ["StreamDataModule"]


class StreamDataModule(ImageFolderDataModule):
    """Images to pretrain on from shards of WebDataset: tar files, such as ``mmcl shards`` writes of a folder.

    A shard is read from its beginning on, so that a disk or a server reads large files and not a small one
    for each image. A sample is a picture, and its class index in ``.cls`` where it is labelled. Processes and
    workers share the samples out by their numbers, which stand in an ``index.json`` beside the shards, or are
    counted in files: each process gets equally many batches, no sample comes twice in an epoch, and what
    fills no batch on every process is left out, others in each epoch. It needs
    ``pip install "mmcl-lightning[stream]"``.

    A run that was interrupted within an epoch goes on with the samples that it has not seen, also with
    another number of workers: shards that are done with are not opened, and of others the seen samples are
    read over without being decoded. With another number of processes it goes on too, and warns that some
    samples of that epoch come twice or not at all.

    Readouts use images that are held in memory as their files: the first of the training shards with a label
    are the bank of the k-NN, the first of the held-out shards are its queries and give the validation loss.
    In shards of ``mmcl shards`` they are a random choice. Or both come from a labelled folder of files.

    The order of the samples depends on seed, epoch and on the numbers of processes and workers; the views of
    an image on seed, epoch and its position, as of all data modules.

    Batch:
        As :class:`ImageFolderDataModule`.

    Args:
        root: A folder with shards or its URL; or the shards as a pattern with braces or wildcards, such as
            ``data/train-{000000..000146}.tar``, a path or a URL.
        heldout: Held-out shards as such a pattern; None for those that the index calls test, if any.
        labelled: A folder of labelled images, as :class:`ImageFolderDataModule` reads it, which gives bank
            and queries; ``holdout``, ``layout``, ``labels``, ``label_columns`` and ``class_list`` are of it.
        bank_size: Most training samples that are held in memory for readouts.
        heldout_size: Most held-out samples that are held in memory.
        buffer: Samples of each worker among which the next is drawn, held as their files; 1 keeps the order
            within shards.
        predict_split: ``"test"``: predictions are of held-out images alone.
        **kwargs: Options of :class:`ImageFolderDataModule`, but for subsets of the training images.

    Raises:
        ConfigError: If an option is out of its range or not for streams, or WebDataset is not installed.
        DataError: If shards are missing or damaged.
    """

    def __init__(
        self,
        root: str = "data/shards",
        heldout: str | None = None,
        labelled: str | None = None,
        bank_size: int = 10_000,
        heldout_size: int = 5_000,
        buffer: int = 1_000,
        predict_split: Literal["all", "train", "test"] = "test",
        **kwargs: Any,
    ) -> None:
        super().__init__(root, predict_split=predict_split, **kwargs)
        check_installed("StreamDataModule", "webdataset", "stream", "WebDataset")
        check_whole(1, bank_size=bank_size, heldout_size=heldout_size, buffer=buffer)
        for option, usual in (("task", "pretrain"), ("train_subset", None), ("validation_subset", None)):
            if getattr(self, option) != usual:
                raise ConfigError(
                    f"{option} is {getattr(self, option)!r}, and shards are read as a whole and to pretrain: "
                    "leave it out, or read the images from a folder with ImageFolderDataModule"
                )
        if predict_split != "test":
            raise ConfigError(
                f"predict_split is {predict_split!r}, and of shards held-out images alone are predicted: "
                "set it to 'test', or read the images from a folder, as mmcl embed does"
            )
        self.heldout = heldout
        self.labelled = labelled
        self.bank_size = bank_size
        self.heldout_size = heldout_size
        self.buffer = buffer
        self._shards: ShardSet | None = None

    @property
    def shards(self) -> ShardSet:
        """The shards; looked for on first access."""
        if self._shards is None:
            self._shards = find_shards(self.root, self.heldout)
        return self._shards

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, of the folder or the index, or numbers, or None without labels."""
        if self.labelled is not None:
            return self._scan().class_names
        return _class_names(self._opened(), self.shards)

    def load_splits(self) -> Splits:
        """Find the shards, and read what is held in memory."""
        train = self.shards.train
        skipped = SkippedFiles(sum(shard.count for shard in train)) if self._skips else None
        stream = StreamSource(train, self._order(), self._reader, skipped)
        if self.labelled is not None:
            files, names, theirs = super().load_splits(), self.shards.class_names, self._scan().class_names
            if names not in (None, theirs):
                raise ConfigError(
                    f"the classes of {self.labelled} are {theirs}, and those of the shards {names}: give a "
                    "folder of the same classes"
                )
            stream.classes = 0 if names is None else len(names)
            return Splits(stream, files.heldout, files.bank, files.query)
        bank, held = self._in_memory(train, self.bank_size), None
        if any(shard.count for shard in self.shards.heldout):
            held = self._in_memory(self.shards.heldout, self.heldout_size)
        splits = Splits(stream, held, with_labels(bank), None if held is None else with_labels(held))
        names = _class_names(splits, self.shards)
        stream.classes = 0 if names is None else len(names)
        return splits

    def description(self) -> str:
        """Say what the shards hold, and what is held in memory."""
        splits, shards, names = self._opened(), self.shards, self.class_names
        empty = sum(shard.count == 0 for shard in (*shards.train, *shards.heldout))
        lines = [f"{len(shards.train)} shards to train on, {len(shards.heldout)} held out"]
        lines.append(f"  train    {len(splits.pretrain):>8} samples")
        if splits.heldout is not None:
            most = sum(shard.count for shard in shards.heldout)
            of = f" of {most}" if self.labelled is None else f" of {self.labelled}"
            lines.append(f"  held out {len(splits.heldout):>8} images{of}")
        lines.append(
            "  no k-NN readout: it needs labels and held-out images, --data.heldout or --data.labelled"
            if splits.bank is None or splits.query is None
            else f"  k-NN bank{len(splits.bank):>8} images"
        )
        if names is not None:
            lines.append(f"  {len(names)} class{'es' * (len(names) != 1)}")
        if empty:
            lines.append(f"  without a sample: {counted(empty, 'shard')}")
        return "\n".join(map(plain, lines))

    def train_dataloader(self) -> ResumableDataLoader:
        """Training samples, equally many on every process; says how many an epoch leaves out."""
        loader = super().train_dataloader()
        assert isinstance(loader.sampler, StreamSampler)
        if left := loader.sampler.order.left_out:
            rank_zero_info(
                f"{left} of {len(self.splits.pretrain)} samples are left out of an epoch, others in each: "
                "they fill no batch on every process"
            )
        return loader

    def health_dataloader(self) -> DataLoader[Any]:
        """Training images in memory under the evaluation transform."""
        bank = self.splits.bank
        return self._eval_loader(self._in_memory(self.shards.train, self.bank_size) if bank is None else bank)

    def skipped_images(self) -> list[str]:
        """Return the samples that were skipped so far as they cannot be read, by this process's loaders."""
        own = (self._opened().pretrain, self._opened().heldout)
        found = [
            source.name(index) for source in own if isinstance(source, StreamSource | MemorySource)
            if source.skipped is not None for index in source.skipped.indices
        ]  # fmt: skip
        return [*found, *super().skipped_images()]

    def prepare_source(self, source: Source) -> Source:
        """Decode images that are not streamed, if they are to be cached."""
        return source if isinstance(source, StreamSource) else super().prepare_source(source)

    def _in_memory(self, shards: tuple[Shard, ...], most: int) -> MemorySource:
        samples = itertools.chain.from_iterable(read_shard(shard) for shard in shards if shard.count)
        kept = list(itertools.islice(samples, most))
        return MemorySource(kept, self._reader, SkippedFiles(len(kept)) if self._skips else None)

    def _order(self) -> StreamOrder:
        counts = [shard.count for shard in self.shards.train]
        return StreamOrder(
            counts, self.batch_size, self._world_size, self._rank, self.num_workers, self.buffer, self.seed
        )

    def _train_sampler(self, dataset: ViewDataset) -> EpochSampler:
        order = self._order()
        if isinstance(dataset.source, StreamSource):
            dataset.source.order = order
        return StreamSampler(dataset, order)

    def _scan(self) -> PictureTree:
        if self._tree is None:
            root = self.root if self.labelled is None else self.labelled
            self._tree = scan_tree(root, self.layout, self.labels, self.label_columns, self.class_list)
        return self._tree

    def _warn_of_shared_files(self) -> None:
        """Held-out shards are not compared with those to train on."""


def _class_names(splits: Splits, shards: ShardSet) -> list[str] | None:
    """Return the names that the index has, or numbers up to the largest label, or None without labels."""
    largest = [int(part.targets.max()) for part in (splits.bank, splits.query) if part is not None]
    if not largest:
        return None
    return shards.class_names or [str(index) for index in range(max(largest) + 1)]
