"""Lightning callbacks; each works on any LightningModule that has what its ``Reads`` names."""

from mmcl_lightning.callbacks.features import collect_features
from mmcl_lightning.callbacks.knn import OnlineKNN
from mmcl_lightning.callbacks.svm import SVMSolverCallback
from mmcl_lightning.callbacks.throughput import Throughput
from mmcl_lightning.callbacks.writer import RepresentationWriter

__all__ = ["OnlineKNN", "RepresentationWriter", "SVMSolverCallback", "Throughput", "collect_features"]
