"""Lightning callbacks; each works on any LightningModule that has what its ``Reads`` names."""

from mmcl_lightning.callbacks.checkpoint import ResumableCheckpoint
from mmcl_lightning.callbacks.features import collect_features
from mmcl_lightning.callbacks.health import HealthPanel
from mmcl_lightning.callbacks.knn import OnlineKNN
from mmcl_lightning.callbacks.ledger import Ledger
from mmcl_lightning.callbacks.logistic import LogisticReadout
from mmcl_lightning.callbacks.probe import OnlineLinearProbe
from mmcl_lightning.callbacks.support_vectors import SupportVectorGrid
from mmcl_lightning.callbacks.svm import SVMSolverCallback
from mmcl_lightning.callbacks.throughput import Throughput
from mmcl_lightning.callbacks.writer import RepresentationWriter

__all__ = [
    "HealthPanel",
    "Ledger",
    "LogisticReadout",
    "OnlineKNN",
    "OnlineLinearProbe",
    "RepresentationWriter",
    "ResumableCheckpoint",
    "SVMSolverCallback",
    "SupportVectorGrid",
    "Throughput",
    "collect_features",
]
