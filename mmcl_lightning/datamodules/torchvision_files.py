"""Open a torchvision data set, and say what is missing when that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchvision.datasets.utils import check_integrity

from mmcl_lightning.errors import DataError

__all__ = ["open_torchvision"]


def open_torchvision(name: str, kind: Any, root: str, download: bool, build: Callable[..., Any]) -> Any:
    """Build a torchvision data set, with one error that names the file, the folder and the remedy.

    Args:
        name: Name of the data set in messages.
        kind: The torchvision class, which lists its files in ``train_list`` and ``test_list``.
        root: The data root.
        download: Whether ``build`` was told to download.
        build: Called without arguments; constructs the data set.

    Raises:
        DataError: If a file is missing or damaged, or the download failed.
    """
    folder = Path(root).expanduser().absolute() / kind.base_folder
    try:
        return build()
    except (OSError, RuntimeError, EOFError) as error:
        action = f"the download failed ({error})" if download else "--data.download true fetches it"
        problem = _first_problem(kind, folder) or f"the files in {folder} could not be read ({error})"
        raise DataError(f"{name}: {problem}; {action}") from error


def _first_problem(kind: Any, folder: Path) -> str | None:
    if not folder.is_dir():
        return f"the folder {folder} is missing"
    for file, md5 in [*kind.train_list, *kind.test_list]:
        if not (folder / file).is_file():
            return f"the file {folder / file} is missing"
        if not check_integrity(str(folder / file), md5):
            return f"the file {folder / file} is damaged (its MD5 sum is not the published one)"
    meta = getattr(kind, "meta", None)
    if meta is not None and not (folder / meta["filename"]).is_file():
        return f"the file {folder / meta['filename']} is missing"
    return None
