"""What one looks at while a representation forms; :class:`~mmcl_lightning.callbacks.Readouts` runs them."""

from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.cross_validation import SVCCrossValidation
from mmcl_lightning.readouts.embedding import Embedding
from mmcl_lightning.readouts.health import Health
from mmcl_lightning.readouts.knn import KNN
from mmcl_lightning.readouts.linear_probe import LinearProbe
from mmcl_lightning.readouts.logistic import LogisticRegression
from mmcl_lightning.readouts.reading import ImagesToRead, Reading
from mmcl_lightning.readouts.retrieval import Retrieval
from mmcl_lightning.readouts.support_vectors import SupportVectorGrid

__all__ = [
    "KNN",
    "Embedding",
    "Health",
    "ImagesToRead",
    "LinearProbe",
    "LogisticRegression",
    "Reading",
    "Readout",
    "Retrieval",
    "SVCCrossValidation",
    "SupportVectorGrid",
]
