"""The index beside shards of WebDataset: which shards there are and what each holds, from disk or network."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field

from mmcl_lightning.errors import DataError

__all__ = ["INDEX", "ShardIndex", "fetch_problem", "file_name", "is_pattern", "is_url"]

#: Name of the file beside the shards that says how many samples each holds, as WebDataset's own index does.
INDEX = "index.json"
_REFUSED = 22  # exit code of curl where a server answers with an error, such as 404
#: What others of its exit codes mean.
_OF_CURL = {
    6: "no computer of that name was found; correct the URL, or check the network",
    7: "the server refused the connection; correct the URL, or ask later",
    _REFUSED: "the server answered with an error, such as 403 or 404",
    18: "the connection ended before the file did",
    28: "the server did not answer in time",
    56: "the connection was lost",
    60: "the certificate of the server cannot be verified",
}


def file_name(url: str) -> str:
    """Return the last part of a path or URL."""
    return url.rpartition("/")[2]


def is_pattern(root: str) -> bool:
    """Whether shards are named, and not the folder that they lie in."""
    return ".tar" in file_name(root) and not os.path.isdir(os.path.expanduser(root))


def is_url(root: str) -> bool:
    """Whether shards are to be fetched."""
    return "://" in root


@dataclass(frozen=True)
class ShardIndex:
    """What an ``index.json`` says of the shards beside it, by the names of their files; empty without one."""

    urls: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    classes: list[str] | None = None

    @classmethod
    def beside(cls, root: str) -> ShardIndex:
        """Read the index in a folder or URL, or beside the shards of a pattern."""
        if root.startswith("pipe:"):  # which WebDataset would hand to a shell
            raise DataError(f"{root} is a command: give shards as a folder, a pattern of files or a URL")
        folder = os.path.dirname(root) or "." if is_pattern(root) else root.rstrip("/") or "/"
        folder = folder if is_url(folder) else os.path.abspath(os.path.expanduser(folder))
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

    if not is_url(path) and not os.path.isfile(path):
        return None
    try:
        with webdataset.gopen(path) as file:
            content: bytes = file.read()
            return content
    except ValueError as error:
        raise DataError(f"{path} is of a kind of URL that WebDataset cannot open ({error})") from error
    except OSError as error:
        if is_url(path) and (not path.startswith("http") or _status(error) == _REFUSED):
            return None  # the server has none
        if is_url(path):
            raise DataError(f"{path} cannot be fetched: {fetch_problem(error)}") from error
        raise DataError(f"{path} cannot be read ({error.strerror})") from error


def _status(error: Exception) -> int | None:
    """Return the exit code of curl, where it fetched a URL for WebDataset."""
    found = re.findall(r"exit (\d+)", str(error)) if "curl" in str(error) else []
    return int(found[-1]) if found else None


def fetch_problem(error: Exception) -> str:
    """Return why a shard or index could not be read."""
    if isinstance(error, FileNotFoundError) and error.filename == "curl":
        return "curl fetches what has a URL, and is not installed"
    if "empty file" in str(error):  # of WebDataset, where curl had not ended when it was read
        return "nothing came: see that it is there, and that the server lets it be read"
    return _OF_CURL.get(_status(error) or 0, str(error))
