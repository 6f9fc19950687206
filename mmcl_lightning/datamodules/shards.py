"""Shards of WebDataset, tar files of many samples each: which there are, what they hold, and reading."""

from __future__ import annotations

import contextlib
import glob
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmcl_lightning.datamodules.bands import PictureBytes
from mmcl_lightning.datamodules.pictures import extensions
from mmcl_lightning.datamodules.shard_index import (
    INDEX,
    ShardIndex,
    fetch_problem,
    file_name,
    is_pattern,
    is_url,
)
from mmcl_lightning.errors import DataError

__all__ = ["RawSample", "Shard", "ShardSet", "find_shards", "read_shard"]

_DIGITS = 7  # of a class index; a longer one is a mistake, and would make as many names


@dataclass(frozen=True)
class Shard:
    """A tar file.

    Args:
        url: Its path, or what WebDataset opens.
        count: Number of its samples.
    """

    url: str
    count: int


@dataclass(frozen=True)
class ShardSet:
    """All shards of a data set.

    Args:
        train: Shards to train on.
        heldout: Held-out ones, perhaps none.
        class_names: Names of the classes, or None where the index has none.
    """

    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]
    class_names: list[str] | None


@dataclass(frozen=True)
class RawSample:
    """A sample as it stands in a shard.

    Args:
        picture: The file of its picture, named by shard and key.
        target: Its class index, -1 without a label.
        problem: Why it is no picture with a class index, empty where it is one.
    """

    picture: PictureBytes
    target: int
    problem: str = ""


def find_shards(root: str, heldout: str | None = None) -> ShardSet:
    """List shards with their number of samples.

    The numbers stand in an ``index.json`` beside the shards, or are counted where they are files.

    Args:
        root: A folder with shards, or its URL; or the shards as a pattern with braces or wildcards, such as
            ``data/train-{000000..000146}.tar``, a path or a URL.
        heldout: Held-out shards, given likewise; None for those of ``root`` that the index calls ``test``.

    Raises:
        DataError: If there is none, one is missing or damaged, or a URL has no index.
    """
    index = ShardIndex.beside(root)
    other = index if heldout is None else ShardIndex.beside(heldout)
    urls = _expand(root, index)
    test = {url for url in urls if index.splits.get(file_name(url)) == "test"}
    held = [url for url in urls if url in test] if heldout is None else _expand(heldout, other)
    kept = [url for url in urls if url not in {*test, *held}]
    if not kept and is_url(root) and not urls:
        raise DataError(
            f"no {INDEX} that names shards is at {root}: put it there, as mmcl shards writes it, see that "
            "the server lets it be read, or give the shards as a pattern, URL/train-{000000..000146}.tar"
        )
    if not kept:
        raise DataError(
            f"no shard to train on is at {root}: set --data.root to a folder with .tar files, such as mmcl "
            "shards writes, or to a pattern of them, 'data/train-{000000..000146}.tar'"
        )
    if heldout is not None and not held:
        raise DataError(f"no held-out shard is at {heldout}: correct --data.heldout, or leave it out")
    return ShardSet(_counted(kept, index), _counted(held, other), index.classes)


def read_shard(shard: Shard) -> Iterator[RawSample]:
    """Read the samples of a shard one after the other, without decoding anything.

    Raises:
        DataError: If it is missing, damaged, or does not have as many samples as it should.
    """
    count, samples = 0, _samples(shard.url)
    while True:
        try:
            sample = next(samples, None)
        except Exception as error:  # of tarfile, of the program that fetches a URL, of the disk
            raise DataError(
                f"the shard {shard.url} cannot be read after {count} of {shard.count} samples "
                f"({fetch_problem(error)})"
            ) from error
        if (sample is None) != (count == shard.count):
            found = count if sample is None else "more"
            raise DataError(
                f"the shard {shard.url} has {found} samples, and {INDEX} says {shard.count}: copy it again, "
                f"or remove an {INDEX} that is of other shards"
            )
        if sample is None:
            return
        yield _raw(sample, shard)
        count += 1


def _samples(url: str) -> Iterator[dict[str, Any]]:
    """Read samples with WebDataset, and close what it leaves open."""
    import webdataset

    stream = webdataset.gopen(url)
    try:
        files = webdataset.tariterators.tar_file_expander(iter([{"url": url, "stream": stream}]))
        yield from webdataset.tariterators.group_by_keys(files)
    finally:
        with contextlib.suppress(OSError):  # of a program that would have had more to say
            stream.close()


def _raw(sample: dict[str, Any], shard: Shard) -> RawSample:
    name, label = f"{sample['__key__']} in {shard.url}", sample.get("cls", b"-1").strip()
    found = [part for part in sample if f".{part}" in extensions()]
    target = int(label) if label.isdigit() and len(label) <= _DIGITS else -1
    problem = ""
    if target < 0 and label != b"-1":
        problem = f"has the class {label[:20]!r}, expected an index of at most {_DIGITS} digits"
    if not found:
        parts = ", ".join(part for part in sample if not part.startswith("__"))
        problem = f"holds no picture, but {parts}"
    picture = PictureBytes(sample[found[0]] if found else b"", f"{name} ({found[0]})" if found else name)
    return RawSample(picture, target, problem and f"the sample {name} {problem}")


def _expand(root: str, index: ShardIndex) -> list[str]:
    """Return the shards in a folder, or those that a pattern means."""
    import webdataset

    if not is_pattern(root):
        if index.urls or is_url(root):
            return [*index.urls]
        folder = glob.escape(os.path.abspath(os.path.expanduser(root)))
        return sorted(glob.glob(os.path.join(folder, "*.tar")))
    try:
        urls: list[str] = webdataset.shardlists.expand_urls(root)
    except ValueError as error:  # braces that are not closed
        raise DataError(f"{root} is no pattern of shards ({error})") from error
    if is_url(root):
        return urls
    urls = [os.path.abspath(os.path.expanduser(url)) for url in urls]
    return [path for url in urls for path in (sorted(glob.glob(url)) if glob.has_magic(url) else [url])]


def _counted(urls: list[str], index: ShardIndex) -> tuple[Shard, ...]:
    """Return shards with their number of samples, counting those of files that the index lacks."""
    for url in urls:
        if not is_url(url) and not os.path.isfile(url):
            raise DataError(
                f"the shard {url} is missing: copy it there, or leave it out of pattern and index"
            )
    for url in urls:
        if not is_url(url) and url.endswith(".tar"):
            _check_end(url)
    unknown = [url for url in urls if not index.counts.get(file_name(url))]
    if remote := [url for url in unknown if is_url(url) and file_name(url) not in index.counts]:
        raise DataError(
            f"how many samples {remote[0]} holds is not known: put an {INDEX} beside the shards, as mmcl "
            "shards and WebDataset's widsindex write it, and see that the server lets it be read"
        )
    if counted := [url for url in unknown if file_name(url) not in index.counts]:
        from lightning.pytorch.utilities import rank_zero_info  # which workers that are spawned lack

        rank_zero_info(f"counting the samples of {len(counted)} shards, which no {INDEX} names")
    counts = {url: _count(url) for url in unknown if not is_url(url)}  # also what is said to hold nothing
    for url in counts:
        if index.counts.get(file_name(url), counts[url]) != counts[url]:
            raise DataError(
                f"the shard {url} has {counts[url]} samples, and {INDEX} says 0: write the index again"
            )
    return tuple(Shard(url, counts.get(url, index.counts.get(file_name(url), 0))) for url in urls)


def _check_end(path: str) -> None:
    """Raise :class:`DataError` unless a tar file ends as one does, with two empty blocks."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 1024))
        end = file.read()
    if len(end) < 1024 or any(end):
        raise DataError(f"the shard {path} is cut off: copy it again, or remove it")


def _count(path: str) -> int:
    """Count the samples of a file: its headers are read, and no content."""
    import webdataset

    count, last = 0, None
    try:
        with tarfile.open(path, "r:" if path.endswith(".tar") else "r") as file:
            for member in file:
                key = webdataset.tariterators.base_plus_ext(member.name)[0] if member.isreg() else None
                count += key is not None and key != last
                last = last if key is None else key
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"the shard {path} cannot be read ({error}): copy it again, or remove it") from error
    return count
