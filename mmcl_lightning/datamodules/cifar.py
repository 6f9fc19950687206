"""CIFAR-10 and CIFAR-100 from their official files."""

from __future__ import annotations

from typing import Any, ClassVar

from torchvision.datasets import CIFAR10, CIFAR100

from mmcl_lightning.datamodules.sources import ArraySource
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.torchvision_files import TorchvisionDataModule
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["CIFAR10DataModule", "CIFAR100DataModule"]


class CIFAR10DataModule(TorchvisionDataModule):
    """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels, 10 classes.

    Pretraining and the bank of the readout are the training images, query and validation the test images.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, 32, 32)``, normalised; targets int64.

    Arguments and errors: see :class:`TorchvisionDataModule`.
    """

    title = "CIFAR-10"
    kind: ClassVar[type[CIFAR10]] = CIFAR10
    downloads: ClassVar[tuple[dict[str, Any], ...]] = ({"train": True},)

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices."""
        return [
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
        ]  # fmt: skip

    def load_splits(self) -> Splits:
        """Open the official files."""
        train, test = (self.open_split(train=train) for train in (True, False))
        train_source = ArraySource(train.data, train.targets)
        test_source = ArraySource(test.data, test.targets)
        return Splits(pretrain=train_source, heldout=test_source, bank=train_source, query=test_source)

    def default_train_transform(self) -> ImageTransform:
        """Return recipe A2."""
        return SimCLRTransform.cifar()

    def default_eval_transform(self) -> ImageTransform:
        """Return normalisation alone."""
        return EvalTransform.cifar()


class CIFAR100DataModule(CIFAR10DataModule):
    """CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels, 100 classes.

    Everything else, options included, is as for :class:`CIFAR10DataModule`.
    """

    title = "CIFAR-100"
    kind = CIFAR100

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices, read from the data set's own file."""
        return list(self.open_split(train=False).classes)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, known without the files."""
        return 100
