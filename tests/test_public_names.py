"""The public names: none goes or comes unnoticed, and each is documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import mmcl_lightning

#: Names that users may rely on. A removal breaks their code: deprecate first, and say so in CHANGELOG.md.
PUBLIC = {
    "batches": "class_indices clean_views image_count images_and_labels join_labels labels_of names_of "
    "split_labels views_of",
    "callbacks": "Ledger OnlineKNN Readouts RepresentationWriter ResumableCheckpoint SVMSolverCallback "
    "Throughput",
    "cli": "main",
    "datamodules": "CIFAR100DataModule CIFAR10DataModule FewShotDataModule ImageDataModule "
    "ImageFolderDataModule NormalsDataModule SSLDataModule STL10DataModule ShapesDataModule Splits "
    "StreamDataModule TUDataModule TransferDataModule UCF101DataModule VOCDetectionDataModule",
    "deferred": "DeferredChecks check checker checks_of may_wait",
    "distributed": "Layout broadcast_object gather_objects gather_uneven gather_with_gradient layout "
    "mean_over_processes",
    "errors": "ConfigError DataError MMCLError NumericalError ShapeError",
    "features": "FeaturePass collect_features encode evaluating feature_pass pictures_of",
    "kernels": "Intersection Kernel Linear Polynomial RBF Tanh squared_distances",
    "ledger": "Metric Record commit config_hash hardware peak_memory read_records",
    "losses": "Contrast ContrastiveLoss DebiasedLoss DecoupledLoss HCLLoss Hard HardNegativeMixing "
    "HingeLoss InfoNCELoss MMCLLoss NTXentLoss Near NegativeWeights Shuffled SupportVectors Uniform "
    "WeightedContrastiveLoss Weights",
    "metrics": "AngularErrors DetectionAP EffectiveRank FeatureShard FewShotProtocol FewShotResult "
    "KNNProtocol KNN_PROTOCOLS LogisticModel alignment angular_error average_precision_11point draw_episode "
    "effective_k feature_std few_shot_accuracy fit_codebook fit_each_class fit_logistic gather_in_order "
    "knn_accuracy knn_predict knn_scores logistic_path mean_normal nearest_code nearest_prototype rankme "
    "recall_at_k "
    "sharded_knn_accuracy uniformity voc_detection_ap",
    "models": "Conv4 GIN GraphEncoder ProjectionHead PyramidPooling build_backbone build_detector dilate "
    "explained feature_dim feature_map",
    "modules": "ClassifierModule ContrastiveModule Detection EVALUATION_PROTOCOLS EvaluationProtocol "
    "FewShotEvaluation FineTune LOGISTIC_PROTOCOLS LinearEvaluation LogisticEvaluation "
    "LogisticProtocol MMCL MoCo PretrainedBackbone PretrainingModule SimCLR "
    "SurfaceNormals export_backbone",
    "negatives": "HeldOutImages Selection SupportVectors choose_images find_support_vectors mmcl_criterion",
    "neighbours": "near_duplicates nearest_neighbours",
    "optim": "LARS WarmupConstant WarmupCosine WarmupLinear WarmupPolynomial WarmupSteps parameter_groups "
    "scale_learning_rate",
    "readouts": "Embedding Health ImagesToRead KNN LinearProbe LogisticRegression Reading Readout Retrieval "
    "SVCCrossValidation SupportVectorGrid",
    "recipes": "find_recipe layers read_recipe read_yaml recipe_folder recipe_names",
    "representations": "EmbeddedImages draw_map map_points",
    "studies": "Study Sweep Variant write_report",
    "svm": "Exact Factorisation Inverse MaxMarginDual ProjectedGradient Solution Solver Status "
    "max_margin_dual",
    "svm.solvers": "Exact Inverse ProjectedGradient Solver",
    "transforms": "CIFAR_MEAN CIFAR_STD CentralCrop DropEdges DropNodes EvalTransform GaussianBlur "
    "GraphTransform GraphViews ImageTransform MaskFeatures MultiView OneOf ShortSide "
    "SimCLRTransform StretchedCrop Subgraph WholeGraph",
    "views": "all_tensors concatenate cut is_view item_count map_tensors mean_over_views shape_of split",
}
#: Whose arguments are said elsewhere, or are those of a base class.
ELSEWHERE = {"read_recipe", "knn_predict", "squared_distances"}


def module(name: str) -> Any:
    return importlib.import_module(f"mmcl_lightning.{name}")


DOCUMENTED = {
    f"{package}.{name}": getattr(module(package), name)
    for package, names in PUBLIC.items()
    for name in names.split()
    if callable(getattr(module(package), name, None))
}


@pytest.mark.parametrize("package", PUBLIC)
def test_names_are_those_of_the_list(package: str) -> None:
    assert sorted(module(package).__all__) == PUBLIC[package].split()
    assert all(hasattr(module(package), name) for name in PUBLIC[package].split())
    assert module(package).__doc__


def test_every_package_is_in_the_list() -> None:
    found = {
        info.name.removeprefix("mmcl_lightning.")
        for info in pkgutil.walk_packages(mmcl_lightning.__path__, "mmcl_lightning.")
        if info.ispkg or info.name.count(".") == 1
    }
    assert {name for name in found if not name.startswith("_")} == set(PUBLIC)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_argument_is_documented(name: str) -> None:
    thing = DOCUMENTED[name]
    text = inspect.getdoc(thing) or ""
    assert text
    assert "__doc__" in vars(thing) or not inspect.isclass(thing)  # its own, not that of a base class
    if name.rpartition(".")[2] in ELSEWHERE or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return
    function = thing.__init__ if inspect.isclass(thing) else thing
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return
    parameters = list(inspect.signature(function).parameters.values())[inspect.isclass(thing) :]
    missing = [p.name for p in parameters if not re.search(rf"^\s*(\*\*)?{p.name}: ", text, re.MULTILINE)]
    assert missing == []
