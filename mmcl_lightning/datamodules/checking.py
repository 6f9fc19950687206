"""Look at every picture of a list as a run would, in processes that may hang or die on one of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from PIL import Image

from mmcl_lightning._processes import end_with_parent
from mmcl_lightning.datamodules.duplicates import digest
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import image_size

__all__ = ["Finding", "check_pictures"]

_SMALL = 16  # pixels
_LONG = 20  # times as long as wide


@dataclass(frozen=True)
class Finding:
    """What is wrong with a picture.

    Args:
        path: The file.
        problem: ``"damaged"``: it cannot be read. ``"empty"``: it has no bytes. ``"duplicate"``: it has the
            content of one before it. ``"odd"``: it is read, perhaps not as meant.
        detail: What exactly, in words.
    """

    path: str
    problem: str
    detail: str


def check_pictures(
    paths: Iterable[str], reader: PictureReader, workers: int, patience: float
) -> Iterator[list[Finding]]:
    """Look at pictures, several at once, and give what was found of each, in no particular order.

    A process that a picture brings down, or keeps longer than allowed, is replaced by another.

    Args:
        paths: The files.
        reader: How they are to be read.
        workers: Number of processes.
        patience: Seconds for one picture.
    """
    todo, first = iter(paths), dict[bytes, str]()
    staff = [_Worker(reader) for _ in range(workers)]
    try:
        while True:
            for worker in staff:
                if worker.path is None and (path := next(todo, None)) is not None:
                    worker.give(path)
            busy = {worker.connection: worker for worker in staff if worker.path is not None}
            if not busy:
                return
            ready = wait([*busy], timeout=1.0)
            for connection, worker in busy.items():
                late = time.monotonic() - worker.since > patience
                if connection in ready or late:
                    path, answer = str(worker.path), worker.answer(None if connection in ready else patience)
                    yield _findings(path, *answer, first)
                    if not worker.alive:
                        staff[staff.index(worker)] = _Worker(reader)
    finally:
        for worker in staff:
            worker.stop()


def _findings(
    path: str, found: list[tuple[str, str]], content: bytes | None, first: dict[bytes, str]
) -> list[Finding]:
    """Return what was found of a picture, and whether it has the content of another."""
    if content is not None and first.setdefault(content, path) != path:
        found = [*found, ("duplicate", f"has the content of {first[content]}")]
    return [Finding(path, problem, detail) for problem, detail in found]


class _Worker:
    """A process that looks at one picture at a time."""

    def __init__(self, reader: PictureReader) -> None:
        # A fork is there at once, while a new interpreter takes seconds to import torch.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, reader), daemon=True)
        self.process.start()
        theirs.close()
        self.path: str | None = None
        self.since = 0.0
        self.alive = True

    def give(self, path: str) -> None:
        """Give it a picture to look at."""
        self.path, self.since = path, time.monotonic()
        self.connection.send(path)

    def answer(self, patience: float | None) -> tuple[list[tuple[str, str]], bytes | None]:
        """Return what it found; with ``patience``, that it has not found anything in so many seconds."""
        self.path = None
        if patience is not None:
            self.stop()
            return [("damaged", f"was not read in {patience:g} seconds")], None
        try:
            found: tuple[list[tuple[str, str]], bytes | None] = self.connection.recv()
            return found
        except (EOFError, OSError):
            self.stop()
            code = self.process.exitcode
            return [("damaged", f"ended the process that read it (exit code {code}): out of memory?")], None

    def stop(self) -> None:
        """End it; one that waits for a disk which does not answer is left to itself."""
        self.alive = False
        self.process.kill()
        self.process.join(1.0)
        self.connection.close()


def _serve(connection: Connection, reader: PictureReader) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its processes itself
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        connection.send(_look(connection.recv(), reader))


def _look(path: str, reader: PictureReader) -> tuple[list[tuple[str, str]], bytes | None]:
    """Return problems of a picture with details, and the hash of a file that has no worse ones than odd."""
    try:
        if os.stat(path).st_size == 0:
            return [("empty", "has no bytes")], None
        image = reader(path)
        odd = [("odd", text) for text in (*_oddities(path, reader), *_odd_pixels(image))]
        return odd, digest(path, whole=True)
    except DataError as error:
        return [("damaged", str(error).removeprefix(f"the image {path} "))], None
    except OSError as error:
        return [("damaged", f"cannot be read ({error.strerror})")], None


def _oddities(path: str, reader: PictureReader) -> Iterator[str]:
    """Say what of a file is perhaps not as meant."""
    if reader.is_dark_by_depth(path):
        yield "has 16 bits and values below 4096 alone, and is nearly black: set data.value_range"
    try:
        with Image.open(path) as opened:
            kind, frames = str(opened.format), getattr(opened, "n_frames", 1)
    except Exception:  # a TIFF of bands, which tifffile reads
        return
    end = os.path.splitext(path)[1].lower()
    named = Image.registered_extensions().get(end, kind)
    if {kind, named} not in ({kind}, {"JPEG", "MPO"}):  # phones write the latter, two JPEGs in one
        yield f"is {kind}, and named {end}"
    if frames > 1 and kind != "MPO" and reader.depth == 3:
        yield f"has {frames} frames, of which the first is read"


def _odd_pixels(image: Any) -> Iterator[str]:
    """Say what of an image is perhaps not as meant."""
    width, height = image_size(image)
    if min(width, height) < _SMALL or max(width, height) > _LONG * min(width, height):
        yield f"has {width} x {height} pixels"
    pixels = np.asarray(image)
    axes = (0, 1) if isinstance(image, Image.Image) else (1, 2)
    if (pixels.min(axis=axes) == pixels.max(axis=axes)).all():
        yield "has one colour everywhere"
