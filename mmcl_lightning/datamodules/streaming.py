"""Pictures of shards: streamed in the order of an epoch, or held in memory as their files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.shards import RawSample, Shard, read_shard
from mmcl_lightning.datamodules.skipping import SkippedFiles
from mmcl_lightning.datamodules.sources import ImageSource, IntArray
from mmcl_lightning.datamodules.stream_order import StreamOrder
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import PixelImage

__all__ = ["MemorySource", "StreamSource"]


class _RawSource(ImageSource):
    """Pictures of samples as they stand in shards.

    Args:
        read: How a picture is read.
        skipped: Is told of those that cannot be read.
    """

    def __init__(self, read: PictureReader, skipped: SkippedFiles | None) -> None:
        self._read, self.skipped = read, skipped

    @abstractmethod
    def raw(self, index: int) -> RawSample:
        """Return sample ``index``."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Say where sample ``index`` stands."""

    def target(self, raw: RawSample) -> int:
        """Return the class index of a sample."""
        return raw.target

    def item(self, index: int) -> PixelImage:
        """Return picture ``index``."""
        return self[index][0]

    def __getitem__(self, index: int) -> tuple[PixelImage, int]:
        raw = self.raw(index)
        raw.picture.seek(0)
        try:
            if raw.problem:
                raise DataError(raw.problem)
            return self._read(raw.picture), self.target(raw)
        except DataError as error:
            if self.skipped is None:
                raise DataError(f"{error}; --data.on_bad_image skip goes on without it") from error
            self.skipped.note(index, error)
            raise


class StreamSource(_RawSource):
    """Pictures in shards, read in the order of an epoch; the target of each stands beside it in the shard.

    Any other sample is found by reading its shard from the beginning.

    Args:
        shards: The shards.
        order: The order.
        read: How a picture is read.
        skipped: Is told of those that cannot be read.
    """

    def __init__(
        self, shards: Sequence[Shard], order: StreamOrder, read: PictureReader, skipped: SkippedFiles | None
    ) -> None:
        super().__init__(read, skipped)
        self.shards, self.order = shards, order
        self.classes: int | None = None
        """Number of classes, beyond which a label is wrong; 0: labels are not read; None: not known."""
        # Labels are known when a sample is read: one number stands for all.
        self.targets = np.broadcast_to(np.int64(-1), (int(order.starts[-1]),))
        self._epoch = -1
        self._ahead: Iterator[tuple[int, RawSample]] = iter(())
        self._at: tuple[int, RawSample] | None = None

    def seek(self, epoch: int, position: int) -> None:
        """Read up to a sample of an epoch."""
        found = next(self._ahead, None) if self._epoch == epoch else None
        if found is None or found[0] != position:
            self._epoch, self._ahead = epoch, self._follow(epoch, position)
            found = next(self._ahead)
        self._at = found

    def digest(self, index: int) -> bytes:
        """Return the name of the shard and the place in it, for which nothing is read."""
        return self.name(index).rpartition("/")[2].encode()

    def name(self, index: int) -> str:
        """Return shard and place in it."""
        shard = self._shard(index)
        return f"{self.shards[shard].url}:{index - int(self.order.starts[shard])}"

    def target(self, raw: RawSample) -> int:
        """Return the class index of a sample, where labels are read."""
        if self.classes and raw.target >= self.classes:
            raise DataError(
                f"the sample {raw.picture} has the class {raw.target}, and there are {self.classes} classes: "
                "let index.json name them all"
            )
        return -1 if self.classes == 0 else raw.target

    def raw(self, index: int) -> RawSample:
        """Return sample ``index``."""
        if self._at is not None and self._at[0] == index:
            return self._at[1]
        return next(raw for _, raw in self._incoming(np.array([index])))

    def _follow(self, epoch: int, position: int) -> Iterator[tuple[int, RawSample]]:
        """Give samples from a position on in the order of an epoch."""
        stream, order = self.order.lane(epoch, position)
        incoming, waiting = self._incoming(stream), dict[int, RawSample]()
        for wanted in order.tolist():
            while wanted not in waiting:
                at, raw = next(incoming)
                waiting[at] = raw
            yield wanted, waiting.pop(wanted)

    def _incoming(self, stream: IntArray) -> Iterator[tuple[int, RawSample]]:
        """Give samples in the order of the stream; no shard without one of them is opened."""
        owners = self._shard(stream)
        for part in np.split(stream, np.flatnonzero(np.diff(owners)) + 1):
            shard, wanted = self._shard(int(part[0])), set(part.tolist())
            last = int(part.max())
            for at, raw in enumerate(read_shard(self.shards[shard]), start=int(self.order.starts[shard])):
                if at in wanted:
                    yield at, raw
                if at == last < self.order.starts[shard + 1] - 1:
                    break

    def _shard(self, position: Any) -> Any:
        return np.searchsorted(self.order.starts, position, side="right") - 1


class MemorySource(_RawSource):
    """Pictures whose files are in memory.

    Args:
        samples: The samples.
        read: How a picture is read.
        skipped: Is told of those that cannot be read.
    """

    def __init__(
        self, samples: Sequence[RawSample], read: PictureReader, skipped: SkippedFiles | None
    ) -> None:
        super().__init__(read, skipped)
        self._samples = samples
        self.targets = np.array([sample.target for sample in samples], dtype=np.int64)

    def raw(self, index: int) -> RawSample:
        """Return sample ``index``."""
        return self._samples[index]

    def name(self, index: int) -> str:
        """Return shard and key."""
        return str(self._samples[index].picture)
