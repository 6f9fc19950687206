"""CIFAR-10 and CIFAR-100 from their official files."""

from __future__ import annotations

from typing import Any

from torchvision.datasets import CIFAR10, CIFAR100

from mmcl_lightning.datamodules.base import Splits, SSLDataModule
from mmcl_lightning.datamodules.sources import ArraySource
from mmcl_lightning.datamodules.torchvision_files import open_torchvision
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["CIFAR10DataModule", "CIFAR100DataModule"]


class CIFAR10DataModule(SSLDataModule):
    """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels, 10 classes.

    Pretraining and the bank of the readout are the training images, query and validation the test images.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, 32, 32)``, normalised; targets int64.

    Args:
        root: Data root, which holds (or receives) the folder of the official archive.
        download: Download the archive if it is not there.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        DataError: From ``setup``, if a file is missing or damaged.
    """

    def __init__(
        self,
        root: str = "data",
        download: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.download = download

    _kind: type[CIFAR10] = CIFAR10
    _name = "CIFAR-10"

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices."""
        return [
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
        ]  # fmt: skip

    def prepare_data(self) -> None:
        """Download the archive, if asked to; Lightning calls this in one process only."""
        if self.download:
            self._open(train=True, download=True)

    def load_splits(self) -> Splits:
        """Open the official files."""
        train, test = (self._open(train=train) for train in (True, False))
        train_source = ArraySource(train.data, train.targets)
        test_source = ArraySource(test.data, test.targets)
        return Splits(pretrain=train_source, heldout=test_source, bank=train_source, query=test_source)

    def default_train_transform(self) -> ImageTransform:
        """Return recipe A2."""
        return SimCLRTransform.cifar()

    def default_eval_transform(self) -> ImageTransform:
        """Return normalisation alone."""
        return EvalTransform.cifar()

    def _open(self, train: bool, download: bool = False) -> Any:
        kind = self._kind
        return open_torchvision(
            self._name, kind, self.root, download, lambda: kind(self.root, train=train, download=download)
        )


class CIFAR100DataModule(CIFAR10DataModule):
    """CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels, 100 classes.

    Everything else, options included, is as for :class:`CIFAR10DataModule`.
    """

    _kind = CIFAR100
    _name = "CIFAR-100"

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices, read from the data set's own file."""
        return list(self._open(train=False).classes)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, known without the files."""
        return 100
