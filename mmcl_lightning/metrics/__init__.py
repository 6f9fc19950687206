"""Measures of a representation, as pure functions of features: k-NN accuracy and signs of collapse."""

from mmcl_lightning.metrics.health import EffectiveRank, alignment, feature_std, rankme, uniformity
from mmcl_lightning.metrics.knn import (
    KNN_PROTOCOLS,
    KNNProtocol,
    effective_k,
    knn_accuracy,
    knn_predict,
    knn_scores,
)

__all__ = [
    "KNN_PROTOCOLS",
    "EffectiveRank",
    "KNNProtocol",
    "alignment",
    "effective_k",
    "feature_std",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "rankme",
    "uniformity",
]
