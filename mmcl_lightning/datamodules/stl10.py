"""STL-10 from its official binary files."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torchvision.datasets import STL10

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.datamodules.sources import ArraySource
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.torchvision_files import TorchvisionDataModule
from mmcl_lightning.transforms import EvalTransform, ImageTransform, SimCLRTransform

__all__ = ["STL10DataModule"]

_PRETRAIN_SPLITS = ("train+unlabeled", "unlabeled", "train")


class STL10DataModule(TorchvisionDataModule):
    """STL-10 (Coates et al., 2011): 5,000 + 100,000 unlabelled training images of 96 x 96, 8,000 test images.

    Pretraining is on crops of 32 pixels of train + unlabeled, as in the published code; the readout sees
    whole images at their native 96 pixels. Its bank is the labelled training split, its query the test
    split, which also gives the validation loss. In memory: 2.9 GB with the unlabelled images, twice that
    while they are read.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, crop_size, crop_size)``, normalised;
        targets int64, -1 = unlabelled. Evaluation images are ``(B, 3, 96, 96)``.

    Args:
        root: Data root, which holds (or receives) the folder ``stl10_binary``.
        download: Download the archive (2.6 GB) if it is not there.
        crop_size: Height and width of a training view in pixels; 32 as in the paper, 96 for full size.
        pretrain_split: ``"train+unlabeled"``, ``"unlabeled"`` or ``"train"``.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: From ``setup``, if a file is missing or damaged.
    """

    title = "STL-10"
    kind = STL10
    downloads: ClassVar[tuple[dict[str, Any], ...]] = ({"split": "test"},)

    def __init__(
        self,
        root: str = "data",
        download: bool = False,
        crop_size: int = 32,
        pretrain_split: Literal["train+unlabeled", "unlabeled", "train"] = "train+unlabeled",
        **kwargs: Any,
    ) -> None:
        super().__init__(root, download, **kwargs)
        check_whole(1, crop_size=crop_size)
        check_choice("pretrain_split", pretrain_split, _PRETRAIN_SPLITS)
        self.crop_size = crop_size
        self.pretrain_split = pretrain_split

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices."""
        return ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]

    def load_splits(self) -> Splits:
        """Open the official files."""
        pretrain, test = self.open_split(split=self.pretrain_split), self.open_split(split="test")
        train = pretrain if self.pretrain_split == "train" else self.open_split(split="train")
        query = ArraySource(test.data, test.labels, channels_first=True)
        return Splits(
            pretrain=ArraySource(pretrain.data, pretrain.labels, channels_first=True),
            heldout=query,
            bank=ArraySource(train.data, train.labels, channels_first=True),
            query=query,
        )

    def default_train_transform(self) -> ImageTransform:
        """Return recipe A2 with views of ``crop_size`` pixels."""
        return SimCLRTransform.cifar(self.crop_size)

    def default_eval_transform(self) -> ImageTransform:
        """Return normalisation alone: images stay at 96 pixels."""
        return EvalTransform.stl10()
