"""Measures of a representation, as pure functions of features: accuracies and signs of collapse."""

from mmcl_lightning.metrics.angles import AngularErrors, angular_error, mean_normal
from mmcl_lightning.metrics.average_precision import average_precision_11point
from mmcl_lightning.metrics.codebook import fit_codebook, nearest_code
from mmcl_lightning.metrics.detection_ap import DetectionAP, voc_detection_ap
from mmcl_lightning.metrics.few_shot import (
    FewShotProtocol,
    FewShotResult,
    draw_episode,
    few_shot_accuracy,
    nearest_prototype,
)
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
    "AngularErrors",
    "DetectionAP",
    "EffectiveRank",
    "FeatureShard",
    "FewShotProtocol",
    "FewShotResult",
    "KNNProtocol",
    "LogisticModel",
    "alignment",
    "angular_error",
    "average_precision_11point",
    "draw_episode",
    "effective_k",
    "feature_std",
    "few_shot_accuracy",
    "fit_codebook",
    "fit_each_class",
    "fit_logistic",
    "gather_in_order",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "logistic_path",
    "mean_normal",
    "nearest_code",
    "nearest_prototype",
    "rankme",
    "recall_at_k",
    "sharded_knn_accuracy",
    "uniformity",
    "voc_detection_ap",
]
