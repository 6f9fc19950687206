"""Shards of WebDataset, tar files of many samples each: which there are, what they hold, and reading."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mmcl_lightning.datamodules.bands import PictureBytes
from mmcl_lightning.datamodules.pictures import extensions
from mmcl_lightning.errors import DataError

__all__ = ["INDEX", "RawSample", "Shard", "ShardSet", "find_shards", "read_shard"]

_DIGITS = 7  # of a class index; a longer one is a mistake, and would make as many names
#: Name of the file beside the shards that says how many samples each holds, as WebDataset's own index does.
INDEX = "index.json"


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
    index = _Index.beside(root)
    other = index if heldout is None else _Index.beside(heldout)
    urls = _expand(root, index)
    test = {url for url in urls if index.splits.get(_name(url)) == "test"}
    held = [url for url in urls if url in test] if heldout is None else _expand(heldout, other)
    kept = [url for url in urls if url not in {*test, *held}]
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
                f"the shard {shard.url} cannot be read after {count} of {shard.count} samples ({error})"
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


@dataclass(frozen=True)
class _Index:
    """What an ``index.json`` says of the shards beside it, by the names of their files; empty without one."""

    urls: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    classes: list[str] | None = None

    @classmethod
    def beside(cls, root: str) -> _Index:
        """Read the index in a folder or URL, or beside the shards of a pattern."""
        if root.startswith("pipe:"):  # which WebDataset would hand to a shell
            raise DataError(f"{root} is a command: give shards as a folder, a pattern of files or a URL")
        folder = os.path.dirname(root) or "." if _is_pattern(root) else root.rstrip("/") or "/"
        folder = folder if _is_url(folder) else os.path.abspath(os.path.expanduser(folder))
        path = f"{folder}/{INDEX}"
        content = _content(path)
        if content is None:
            return cls()
        try:
            index = json.loads(content)
            shards = [(str(entry["url"]), entry) for entry in index["shardlist"]]
            counts = {url: int(entry["nsamples"]) for url, entry in shards}
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(
                f"{path} is no index of shards, which has a shardlist of url and nsamples"
            ) from error
        splits = {url: str(entry.get("split", "train")) for url, entry in shards}
        _check_entries(path, [url for url, _ in shards], splits)
        names = index.get("classes")
        return cls(
            tuple(f"{folder}/{url}" for url in counts),
            counts,
            splits,
            [str(name) for name in names] if isinstance(names, list) and names else None,
        )


def _check_entries(path: str, urls: list[str], splits: dict[str, str]) -> None:
    """Raise :class:`DataError` unless an index names files beside it, each once.

    An index may come from somebody else, and WebDataset would run a command that stands in the place of a
    name, or read a file from anywhere.
    """
    if not urls:
        raise DataError(f"{path} names no shard: write it again, or remove it")
    if wrong := next(
        (url for url in urls if "/" in url or "\\" in url or ":" in url or url[:1] in "-."), None
    ):
        raise DataError(
            f"{path} names {wrong!r}, expected names of files beside it: give shards that lie elsewhere by a "
            "pattern, --data.root"
        )
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise DataError(f"{path} names {twice} more than once: leave it there once")
    if unknown := next((split for split in splits.values() if split not in ("train", "test")), None):
        raise DataError(f"{path} has the split {unknown!r}, expected train or test")


def _content(path: str) -> bytes | None:
    """Return the bytes of a file or URL, None where it does not exist."""
    import webdataset

    if not _is_url(path) and not os.path.isfile(path):
        return None
    try:
        with webdataset.gopen(path) as file:
            content: bytes = file.read()
            return content
    except OSError as error:
        if _is_url(path):  # the server has none
            return None
        raise DataError(f"{path} cannot be read ({error.strerror})") from error


def _expand(root: str, index: _Index) -> list[str]:
    """Return the shards in a folder, or those that a pattern means."""
    import webdataset

    if not _is_pattern(root):
        if index.urls or _is_url(root):
            return [*index.urls]
        folder = glob.escape(os.path.abspath(os.path.expanduser(root)))
        return sorted(glob.glob(os.path.join(folder, "*.tar")))
    try:
        urls: list[str] = webdataset.shardlists.expand_urls(root)
    except ValueError as error:  # braces that are not closed
        raise DataError(f"{root} is no pattern of shards ({error})") from error
    if _is_url(root):
        return urls
    urls = [os.path.abspath(os.path.expanduser(url)) for url in urls]
    return [path for url in urls for path in (sorted(glob.glob(url)) if glob.has_magic(url) else [url])]


def _counted(urls: list[str], index: _Index) -> tuple[Shard, ...]:
    """Return shards with their number of samples, counting those of files that the index lacks."""
    for url in urls:
        if not _is_url(url) and not os.path.isfile(url):
            raise DataError(
                f"the shard {url} is missing: copy it there, or leave it out of pattern and index"
            )
    for url in urls:
        if not _is_url(url) and url.endswith(".tar"):
            _check_end(url)
    unknown = [url for url in urls if not index.counts.get(_name(url))]
    if remote := [url for url in unknown if _is_url(url) and _name(url) not in index.counts]:
        raise DataError(
            f"how many samples {remote[0]} holds is not known: put an {INDEX} beside the shards, as mmcl "
            "shards and WebDataset's widsindex write it"
        )
    if counted := [url for url in unknown if _name(url) not in index.counts]:
        from lightning.pytorch.utilities import rank_zero_info  # which workers that are spawned lack

        rank_zero_info(f"counting the samples of {len(counted)} shards, which no {INDEX} names")
    counts = {url: _count(url) for url in unknown if not _is_url(url)}  # also what is said to hold nothing
    for url in counts:
        if index.counts.get(_name(url), counts[url]) != counts[url]:
            raise DataError(
                f"the shard {url} has {counts[url]} samples, and {INDEX} says 0: write the index again"
            )
    return tuple(Shard(url, counts.get(url, index.counts.get(_name(url), 0))) for url in urls)


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


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _is_pattern(root: str) -> bool:
    return ".tar" in _name(root) and not os.path.isdir(os.path.expanduser(root))


def _is_url(root: str) -> bool:
    return "://" in root
