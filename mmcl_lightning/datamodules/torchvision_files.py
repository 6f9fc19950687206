"""What the data sets that torchvision reads have in common: a root, a download, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets.utils import check_integrity

from mmcl_lightning.datamodules.images import ImageDataModule
from mmcl_lightning.errors import DataError

__all__ = ["TorchvisionDataModule"]


class TorchvisionDataModule(ImageDataModule):
    """A data set of torchvision from its official files; a subclass says which, and how it is split.

    Args:
        root: Data root, which holds (or receives) the folder of the official archive.
        download: Download the archive if it is not there.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`ImageDataModule`.

    Raises:
        DataError: From ``setup``, if a file is missing or damaged.
    """

    title: ClassVar[str]
    """Name of the data set in messages."""
    kind: ClassVar[Any]
    """The torchvision class."""
    downloads: ClassVar[tuple[dict[str, Any], ...]]
    """Arguments of the class for the splits that together download everything."""

    def __init__(self, root: str = "data", download: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.download = download

    def prepare_data(self) -> None:
        """Download the archive, if asked to; Lightning calls this in one process only."""
        for split in self.downloads if self.download else ():
            self.open_split(download=True, **split)

    def files(self, **split: Any) -> list[tuple[Path, str | None]]:
        """Return the official files that a split needs, each with its MD5 sum or None.

        Of a torchvision class with ``base_folder``, ``train_list`` and ``test_list`` they are these; another
        one overrides it.

        Args:
            **split: Arguments of the torchvision class.
        """
        folder = Path(self.root).expanduser().absolute() / self.kind.base_folder
        listed = [*self.kind.train_list, *self.kind.test_list]
        meta = getattr(self.kind, "meta", None)
        named = [] if meta is None else [(folder / meta["filename"], None)]
        return [*((folder / file, md5) for file, md5 in listed), *named]

    def open_split(self, download: bool = False, **split: Any) -> Any:
        """Open a split, with one error that names the file, the folder and the remedy.

        Args:
            download: Download the archive if it is not there.
            **split: Arguments of the torchvision class.

        Raises:
            DataError: If a file is missing or damaged, or the download failed.
        """
        try:
            return self.kind(self.root, download=download, **split)
        except (OSError, RuntimeError, EOFError) as error:
            action = f"the download failed ({error})" if download else "--data.download true fetches it"
            problem = _first_problem(self.files(**split)) or f"the files cannot be read ({error})"
            raise DataError(f"{self.title}: {problem}; {action}") from error


def _first_problem(files: list[tuple[Path, str | None]]) -> str | None:
    for file, md5 in files:
        if not file.parent.is_dir():
            return f"the folder {file.parent} is missing"
        if not file.is_file():
            return f"the file {file} is missing"
        if md5 is not None and not check_integrity(str(file), md5):
            return f"the file {file} is damaged (its MD5 sum is not the published one)"
    return None
