"""The command ``shards``: a folder of pictures as shards of WebDataset.

``mmcl shards photos --out photos_shards``
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from mmcl_lightning._cores import available_cores
from mmcl_lightning._files import whole_text
from mmcl_lightning._next import say_next
from mmcl_lightning._options import check_installed, check_whole
from mmcl_lightning._parser import folder_options
from mmcl_lightning._text import say
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.shard_index import INDEX
from mmcl_lightning.datamodules.shard_writing import Entry, ShardPlan, write_shards
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.errors import ConfigError

__all__ = ["shard_folder", "shards"]

#: Options of the data that decide which pictures there are, and in which split.
_LISTING = {"class_list", "holdout", "label_columns", "labels", "layout", "seed"}
_BEGUN = "unfinished.json"  # what a run was asked for, until it has come to its end


def shard_folder(
    data: ImageFolderDataModule,
    out: str,
    samples: int = 1000,
    size: int | None = None,
    workers: int | None = None,
) -> None:
    """Write the pictures of a folder into shards, shuffled, with a progress bar.

    The files are copied as they are; a sample is a picture, its class index in ``.cls`` and the name of its
    file in ``.json``. ``index.json`` says what each shard holds. A run that was broken off goes on when it is
    called again.

    Args:
        data: The folder.
        out: Folder to write to, which must not exist or be empty.
        samples: Pictures of a shard; the last of a split may have fewer.
        size: Shorter side in pixels that larger pictures are reduced to, as JPEG of quality 95 where they are
            JPEG or WebP, else as PNG; by default all are copied.
        workers: Processes that write; by default as many as there are cores for them, at most 8.

    Raises:
        ConfigError: If an option is out of range, or ``out`` holds something else.
        DataError: If the folder has no picture, or is not what its layout or labels say.
    """
    check_installed("mmcl shards", "webdataset", "stream", "WebDataset")
    workers = min(available_cores(), 8) if workers is None else workers
    check_whole(1, samples=samples, workers=workers, **({} if size is None else {"size": size}))
    data.setup()
    splits = {"train": data.splits.pretrain} | (
        {} if data.splits.heldout is None else {"test": data.splits.heldout}
    )
    root = os.path.abspath(os.path.expanduser(data.root))
    plans = [
        plan
        for split, source in splits.items()
        for plan in _plans(source, split, out, samples, data.seed, root)
    ]
    options = {"samples": samples, "size": size, "seed": data.seed, "holdout": data.holdout}
    missing = _to_write(Path(out), plans, options)
    bar = tqdm(total=sum(len(plan.entries) for plan in plans), disable=None, unit=" pictures")
    bar.update(bar.total - sum(len(plan.entries) for plan in missing))
    unread = 0
    for count, bad in write_shards(missing, min(workers, max(1, len(missing))), size):
        bar.update(count)
        unread += bad
    bar.close()
    _write_index(Path(out), plans, data.class_names, options)
    if unread:
        say(f"{unread} pictures cannot be read and were copied as they are; mmcl check-data says which")
    say(f"Wrote {len(plans)} shards of {sum(len(p.entries) for p in plans)} pictures to {out}")
    say_next("shards", folder=out)


def shards(arguments: list[str]) -> None:
    """Run ``mmcl shards``.

    Args:
        arguments: What stands after ``shards`` on the command line.
    """
    description = (
        "Write the pictures of a folder into shards of WebDataset, for StreamDataModule. What "
        "was broken off goes on with the same command."
    )
    options = folder_options("mmcl shards", description, shard_folder, _LISTING, arguments)
    shard_folder(**options)


def _plans(source: Source, split: str, out: str, samples: int, seed: int, root: str) -> list[ShardPlan]:
    """Deal the pictures of a split out to shards, in random order."""
    order = np.random.default_rng([seed, split == "test"]).permutation(len(source)).tolist()
    entries = [
        Entry(path, os.path.relpath(path, root), int(source.targets[index]))
        for index in order
        if (path := source.path(index)) is not None
    ]
    return [
        ShardPlan(os.path.join(out, f"{split}-{number:06d}.tar"), first, entries[first : first + samples])
        for number, first in enumerate(range(0, len(entries), samples))
    ]


def _to_write(out: Path, plans: list[ShardPlan], options: dict[str, Any]) -> list[ShardPlan]:
    """Return the shards that are not there yet, and note what was asked for.

    Raises:
        ConfigError: If the folder holds anything but shards of the same run.
    """
    digest = hashlib.sha256()
    for plan in plans:
        for entry in plan.entries:
            digest.update(f"{plan.path}\0{entry.name}\0{entry.target}\n".encode("utf-8", "surrogateescape"))
    asked = json.dumps({**options, "pictures": digest.hexdigest()})
    begun = out / _BEGUN
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not begun.is_file())):
        raise ConfigError(f"{out} exists and is not empty: give another folder to --out, or remove it")
    if begun.is_file() and begun.read_text() != asked:
        raise ConfigError(
            f"{out} holds shards that were begun with other options or pictures: call it with the same, give "
            "another folder to --out, or remove it"
        )
    with whole_text(begun) as file:
        file.write(asked)
    return [plan for plan in plans if not os.path.isfile(plan.path)]


def _write_index(
    out: Path, plans: list[ShardPlan], classes: list[str] | None, options: dict[str, Any]
) -> None:
    """Write what the shards hold, in WebDataset's own form with the split of each, and end the run."""
    listed = [
        {
            "url": (name := os.path.basename(plan.path)),
            "nsamples": len(plan.entries),
            "split": name.split("-")[0],
        }
        for plan in plans
    ]
    index = {"wids_version": 1, "shardlist": listed, "classes": classes, "options": options}
    with whole_text(out / INDEX) as file:
        json.dump(index, file, indent=1)
    (out / _BEGUN).unlink()
