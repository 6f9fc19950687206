"""Which negatives count: the SVMs of a few held-out images, as a picture and as files."""

from mmcl_lightning.negatives.findings import Selection, SupportVectors
from mmcl_lightning.negatives.held_out import HeldOutImages, choose_images
from mmcl_lightning.negatives.look import find_support_vectors, mmcl_criterion

__all__ = [
    "HeldOutImages",
    "Selection",
    "SupportVectors",
    "choose_images",
    "find_support_vectors",
    "mmcl_criterion",
]
