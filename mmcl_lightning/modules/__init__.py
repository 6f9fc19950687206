"""LightningModules: wiring of backbone, projection head, loss and optimisation."""

from mmcl_lightning.modules.classifier import ClassifierModule
from mmcl_lightning.modules.contrastive import ContrastiveModule
from mmcl_lightning.modules.detection import Detection
from mmcl_lightning.modules.evaluation import FineTune, LinearEvaluation
from mmcl_lightning.modules.export import export_backbone
from mmcl_lightning.modules.few_shot import FewShotEvaluation
from mmcl_lightning.modules.logistic import LogisticEvaluation
from mmcl_lightning.modules.mmcl import MMCL
from mmcl_lightning.modules.moco import MoCo
from mmcl_lightning.modules.normals import SurfaceNormals
from mmcl_lightning.modules.pretrained import PretrainedBackbone
from mmcl_lightning.modules.pretraining import PretrainingModule
from mmcl_lightning.modules.protocols import (
    EVALUATION_PROTOCOLS,
    LOGISTIC_PROTOCOLS,
    EvaluationProtocol,
    LogisticProtocol,
)
from mmcl_lightning.modules.simclr import SimCLR

__all__ = [
    "EVALUATION_PROTOCOLS",
    "LOGISTIC_PROTOCOLS",
    "MMCL",
    "ClassifierModule",
    "ContrastiveModule",
    "Detection",
    "EvaluationProtocol",
    "FewShotEvaluation",
    "FineTune",
    "LinearEvaluation",
    "LogisticEvaluation",
    "LogisticProtocol",
    "MoCo",
    "PretrainedBackbone",
    "PretrainingModule",
    "SimCLR",
    "SurfaceNormals",
    "export_backbone",
]
