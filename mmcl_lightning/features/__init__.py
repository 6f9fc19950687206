"""Features of images: one pass through a network in evaluation mode, shared out among processes."""

from mmcl_lightning.features.passes import (
    FeaturePass,
    collect_features,
    encode,
    evaluating,
    feature_pass,
    pictures_of,
)

__all__ = ["FeaturePass", "collect_features", "encode", "evaluating", "feature_pass", "pictures_of"]
