"""Names of the transfer sets, for the command line, which lists them without torch; and VOC's classes."""

from __future__ import annotations

__all__ = ["FEW_SHOT_SETS", "MANY_SHOT_SETS", "VOC_CLASSES"]

#: Those of :data:`~mmcl_lightning.datamodules.transfer_sets.TRANSFER_SETS`.
MANY_SHOT_SETS = (
    "aircraft", "caltech101", "cars", "cifar10", "cifar100", "dtd", "flowers", "food", "pets", "sun397",
    "voc2007",
)  # fmt: skip
#: Those of :class:`~mmcl_lightning.datamodules.few_shot.FewShotDataModule` that are no folder of one's own.
FEW_SHOT_SETS = ("eurosat", "cropdiseases", "isic", "chestx")
#: The classes of PASCAL VOC, in the order of its labels.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
