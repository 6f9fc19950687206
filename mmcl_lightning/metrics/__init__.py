"""Measures of a representation, as pure functions of features: k-NN accuracy and signs of collapse."""

from mmcl_lightning.metrics.average_precision import average_precision_11point
from mmcl_lightning.metrics.health import EffectiveRank, alignment, feature_std, rankme, uniformity
from mmcl_lightning.metrics.knn import (
    KNN_PROTOCOLS,
    KNNProtocol,
    effective_k,
    knn_accuracy,
    knn_predict,
    knn_scores,
)
from mmcl_lightning.metrics.logistic import LogisticModel, fit_each_class, fit_logistic, logistic_path
from mmcl_lightning.metrics.retrieval import recall_at_k
from mmcl_lightning.metrics.sharded import FeatureShard, gather_in_order, sharded_knn_accuracy

__all__ = [
    "KNN_PROTOCOLS",
    "EffectiveRank",
    "FeatureShard",
    "KNNProtocol",
    "LogisticModel",
    "alignment",
    "average_precision_11point",
    "effective_k",
    "feature_std",
    "fit_each_class",
    "fit_logistic",
    "gather_in_order",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "logistic_path",
    "rankme",
    "recall_at_k",
    "sharded_knn_accuracy",
    "uniformity",
]
