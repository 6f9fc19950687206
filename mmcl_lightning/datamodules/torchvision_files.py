"""What the data sets that torchvision reads have in common: a root, a download, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets.utils import check_integrity

from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.errors import DataError

__all__ = ["TorchvisionDataModule"]


class TorchvisionDataModule(SSLDataModule):
    """A data set of torchvision from its official files; a subclass says which, and how it is split.

    Args:
        root: Data root, which holds (or receives) the folder of the official archive.
        download: Download the archive if it is not there.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        DataError: From ``setup``, if a file is missing or damaged.
    """

    title: ClassVar[str]
    """Name of the data set in messages."""
    kind: ClassVar[Any]
    """The torchvision class, which lists its files in ``train_list`` and ``test_list``."""
    any_split: ClassVar[dict[str, Any]]
    """Arguments of the class that open a split, with which the archive is downloaded."""

    def __init__(self, root: str = "data", download: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.download = download

    def prepare_data(self) -> None:
        """Download the archive, if asked to; Lightning calls this in one process only."""
        if self.download:
            self.open_split(download=True, **self.any_split)

    def open_split(self, download: bool = False, **split: Any) -> Any:
        """Open a split, with one error that names the file, the folder and the remedy.

        Args:
            download: Download the archive if it is not there.
            **split: Arguments of the torchvision class.

        Raises:
            DataError: If a file is missing or damaged, or the download failed.
        """
        folder = Path(self.root).expanduser().absolute() / self.kind.base_folder
        try:
            return self.kind(self.root, download=download, **split)
        except (OSError, RuntimeError, EOFError) as error:
            action = f"the download failed ({error})" if download else "--data.download true fetches it"
            problem = _first_problem(self.kind, folder)
            problem = problem or f"the files in {folder} could not be read ({error})"
            raise DataError(f"{self.title}: {problem}; {action}") from error


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
