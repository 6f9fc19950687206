"""Images per second from shards of WebDataset beside the same images as files, and which samples come.

    python benchmarks/bench_stream.py --folder PATH [--scratch PATH] [--workers 2] [--size 32]

PATH is a folder as ImageFolderDataModule reads it. `mmcl shards` writes it as shards below the scratch
folder, unless they are there. Both are read by the data modules with as many workers: *read* decodes and
crops alone, *worker* and *device* make the two views of the recipe, the latter but for what the device does.
The sides are timed in turn over so many batches from the start of an epoch; what the disk's cache holds, it
holds of both. Then a whole epoch is read by 1, 2 and 3 processes, one after the other, and the pixels of all
images are counted. Prints a table and writes ``stream_cpu.json`` and its section of ``stream.md``.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common  # first: it puts a clone's root on the path
import numpy as np
import torch
from common import number, ratio

from mmcl_lightning.cli import main as mmcl
from mmcl_lightning.datamodules import ImageFolderDataModule, StreamDataModule
from mmcl_lightning.transforms import EvalTransform, SimCLRTransform

KINDS = {"folder": ImageFolderDataModule, "shards": StreamDataModule}


def module(kind: str, root: Path, transform: Any, size: int, workers: int, **options: Any) -> Any:
    """Give a data module of files or shards with the same options."""
    return KINDS[kind](
        str(root), batch_size=256, num_workers=workers, train_transform=transform,
        eval_transform=EvalTransform(size), **options,
    )  # fmt: skip


def passes(loader: Any, batches: int) -> Callable[[], float]:
    """Give what reads so many batches from the start of the next epoch; the first comes before the clock."""
    epochs = itertools.count()

    def call() -> float:
        loader.sampler.set_epoch(next(epochs))
        found = iter(loader)
        next(found)  # starts workers, and fills what is read ahead
        start = time.perf_counter()
        for _ in itertools.islice(found, batches):
            pass
        taken = time.perf_counter() - start
        found.close()
        return taken

    return call


def contents(data: Any, rank: int, world: int) -> Iterator[bytes]:
    """Give the pixels of each image that a process trains on in an epoch."""
    data.trainer = SimpleNamespace(world_size=world, global_rank=rank)
    for views, _ in data.train_dataloader():
        yield from (image.numpy().tobytes() for image in (views[0] * 255).round().byte())


def counts(make: Callable[[], Any], world: int) -> dict[str, int]:
    """Count the images of an epoch over all processes."""
    found: Counter[int] = Counter()
    each = []
    for rank in range(world):
        before = found.total()
        found.update(map(hash, contents(make(), rank, world)))
        each.append(found.total() - before)
    return {"processes": world, "images": found.total(), "distinct": len(found), "least": min(each),
            "most": max(each)}  # fmt: skip


def rates(modules: Callable[..., Any], size: int, batches: int, rounds: int) -> dict[str, list[float]]:
    """Images per second of each side, timed in turn."""
    views = SimCLRTransform.cifar(size) if size <= 96 else SimCLRTransform.imagenet(size)
    transforms = {"read": EvalTransform(size), "worker": views, "device": views}
    sides = {
        f"{kind}, {use}": passes(
            modules(kind, transform, augment="device" if use == "device" else "worker").train_dataloader(),
            batches,
        )
        for use, transform in transforms.items() for kind in KINDS
    }  # fmt: skip
    found: dict[str, list[float]] = {side: [] for side in sides}
    for side, call in itertools.chain.from_iterable(itertools.repeat([*sides.items()], rounds)):
        found[side].append(256 * batches / call())
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir(), "bench_stream"))
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--size", type=int, default=32, help="pixels of a view")
    options.add_argument("--batches", type=int, default=60)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args(arguments)
    batches, rounds = (2, 1) if chosen.quick else (chosen.batches, chosen.repeats)
    shards, written = chosen.scratch / "shards", None
    if not (shards / "index.json").is_file():
        start = time.perf_counter()
        mmcl(["shards", str(chosen.folder), f"--out={shards}", f"--workers={chosen.workers}"])
        written = time.perf_counter() - start

    def modules(kind: str, transform: Any, **more: Any) -> Any:
        root = {"folder": chosen.folder, "shards": shards}[kind]
        return module(kind, root, transform, chosen.size, chosen.workers, **more)

    def streamed() -> Any:
        return modules("shards", EvalTransform(chosen.size))

    warnings.simplefilter("ignore")
    found = rates(modules, chosen.size, batches, rounds)
    total = sum(shard.count for shard in streamed().shards.train)
    seen = [counts(streamed, world) for world in (1, 2, 3)]
    device = torch.device("cpu")
    record = {
        "machine": common.machine(device), "images": total, "workers": chosen.workers,
        "seconds_to_write": written, "images_per_second": found, "counts": seen,
    }  # fmt: skip
    print(common.write(chosen.out, "stream", device, record, [], _text(record)))


def _text(record: dict[str, Any]) -> str:
    found, rows = record["images_per_second"], []
    for use in ("read", "worker", "device"):
        gain, spread = ratio(found[f"shards, {use}"], found[f"folder, {use}"])
        each = [number(float(np.median(found[f"{kind}, {use}"]))) for kind in KINDS]
        rows.append([use, *each, f"{number(gain)} ({spread})"])
    speed = common.table(["images per second", *KINDS, "shards over folder"], rows)
    seen = [
        [*(str(row[key]) for key in ("processes", "images", "distinct")),
         f"{row['least']} to {row['most']}", str(record["images"] - row["images"])]
        for row in record["counts"]
    ]  # fmt: skip
    head = ["processes", "images of an epoch", "of them distinct", "of each process", "left out"]
    taken = record["seconds_to_write"]
    note = "" if taken is None else f" `mmcl shards` wrote them in {taken:.0f} s."
    workers = f"{record['workers']} workers of each loader"
    return f"{record['images']} images, {workers}; medians.{note}\n\n{speed}\n{common.table(head, seen)}"


if __name__ == "__main__":
    main()
