"""Write pictures into shards of WebDataset, in several processes, each shard whole or not at all."""

from __future__ import annotations

import concurrent.futures
import functools
import io
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmcl_lightning._files import whole_file
from mmcl_lightning._processes import end_with_parent
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import any_size

__all__ = ["Entry", "ShardPlan", "write_shards"]

_QUALITY = 95  # of a JPEG that is made smaller


@dataclass(frozen=True)
class Entry:
    """A picture to write.

    Args:
        path: Its file.
        name: The name that is kept of it.
        target: Its class index, -1 without a label.
    """

    path: str
    name: str
    target: int


@dataclass(frozen=True)
class ShardPlan:
    """A shard to write.

    Args:
        path: The tar file.
        first: Number of its first sample, which makes its key.
        entries: Its pictures.
    """

    path: str
    first: int
    entries: Sequence[Entry]


def write_shards(plans: Sequence[ShardPlan], workers: int, size: int | None) -> Iterator[tuple[int, int]]:
    """Write shards, several at once, in no particular order.

    Args:
        plans: The shards.
        workers: Number of processes.
        size: Shorter side in pixels of pictures that are larger, which are written anew; None to copy all.

    Yields:
        The number of samples of each shard, and of those that were copied since they cannot be read.

    Raises:
        DataError: If the file of a picture cannot be opened.
        OSError: If a shard cannot be written.
    """
    # A fork is there at once, while a new interpreter takes seconds to import torch.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin)
    try:
        todo = [pool.submit(_write, plan, size) for plan in plans]
        for done in concurrent.futures.as_completed(todo):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shard that was begun is written to its end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _write(plan: ShardPlan, size: int | None) -> tuple[int, int]:
    import webdataset

    unread = 0
    with whole_file(plan.path) as file, webdataset.TarWriter(file, encoder=False, mtime=0) as writer:
        for number, entry in enumerate(plan.entries, start=plan.first):
            content, kind = _picture(entry.path)
            if size is not None:
                try:
                    content, kind = _smaller(entry.path, size) or (content, kind)
                except DataError:  # training and check-data say what is wrong with it
                    unread += 1
            sample = {"__key__": f"{number:09d}", kind: content}
            sample["json"] = json.dumps({"file": entry.name}).encode()
            writer.write(sample if entry.target < 0 else sample | {"cls": b"%d" % entry.target})
    return len(plan.entries), unread


def _picture(path: str) -> tuple[bytes, str]:
    """Return the bytes of a file, and the ending of its name or, without one, that of its kind."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"the image {path} cannot be read ({error.strerror}); repair or remove it") from error
    end = os.path.splitext(path)[1].lower().removeprefix(".")
    if not end:
        with any_size(), Image.open(io.BytesIO(content)) as image:  # is_picture has looked at it
            end = str(image.format).lower()
    return content, end


def _smaller(path: str, size: int) -> tuple[bytes, str] | None:
    """Return a picture whose shorter side has ``size`` pixels, or None of one that is no larger."""
    image = _reader()(path)
    assert isinstance(image, Image.Image)
    shorter = min(image.size)
    if shorter <= size:
        return None
    width, height = (max(size, round(side * size / shorter)) for side in image.size)
    small, file = image.resize((width, height), Image.Resampling.BICUBIC), io.BytesIO()
    with any_size(), Image.open(path) as opened:
        lossy = opened.format in ("JPEG", "MPO", "WEBP")
    small.save(file, "JPEG", quality=_QUALITY) if lossy else small.save(file, "PNG")
    return file.getvalue(), "jpg" if lossy else "png"


@functools.cache
def _reader() -> PictureReader:
    return PictureReader()
