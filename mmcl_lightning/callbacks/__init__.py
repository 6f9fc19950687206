"""Lightning callbacks; each works on any LightningModule that has what its ``Reads`` names."""

from mmcl_lightning.callbacks.checkpoint import ResumableCheckpoint
from mmcl_lightning.callbacks.knn import OnlineKNN
from mmcl_lightning.callbacks.ledger import Ledger
from mmcl_lightning.callbacks.readouts import Readouts
from mmcl_lightning.callbacks.svm import SVMSolverCallback
from mmcl_lightning.callbacks.throughput import Throughput
from mmcl_lightning.callbacks.writer import RepresentationWriter

__all__ = [
    "Ledger",
    "OnlineKNN",
    "Readouts",
    "RepresentationWriter",
    "ResumableCheckpoint",
    "SVMSolverCallback",
    "Throughput",
]
