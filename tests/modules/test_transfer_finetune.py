"""Fine-tuning on the transfer sets: each set's metric and loss, and the decay of the published search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import generators, shapes, trainer
from torch.nn import functional as F

from mmcl_lightning.batches import join_labels, split_labels
from mmcl_lightning.datamodules import TransferDataModule
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.metrics import average_precision_11point
from mmcl_lightning.modules import FineTune, LinearEvaluation
from mmcl_lightning.modules.targets import LabelSets, OneClass

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("official")
    for name in ("pets", "voc2007"):
        generators("fake_transfer").write(name, root)
    return root


def data(dataset: str, root: Path, **options: Any) -> TransferDataModule:
    given = {"image_size": 16, "normalize": "none", "task": "classify", "batch_size": 5, "num_workers": 0}
    return TransferDataModule(dataset, root=str(root), **(given | options))


def tune(folder: Path, source: Any, steps: int = 3, **options: Any) -> tuple[FineTune, Any]:
    torch.manual_seed(0)
    module = FineTune("random", backbone="conv4", **options)
    run = trainer(folder, max_epochs=-1, max_steps=steps, limit_val_batches=1.0, check_val_every_n_epoch=None)
    run.fit(module, datamodule=source)
    return module, run


def scored(module: Any, source: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of the held-out images, and whether each is of each class."""
    module.eval()
    with torch.no_grad():
        parts = [(module.scores(module(x)), split_labels(y, 20)) for x, y in source.val_dataloader()]
    scores, labels = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(labels)


def test_images_of_several_classes_have_their_own_loss_and_metric(official: Path, tmp_path: Path) -> None:
    source = data("voc2007", official)
    module, run = tune(tmp_path, source)
    found, labels = scored(module, source)
    expected = float(average_precision_11point(found, labels).nanmean())
    assert float(run.callback_metrics["finetune/map_11point"]) == pytest.approx(expected, abs=1e-6)
    loss = F.binary_cross_entropy_with_logits(found, labels.float())
    assert float(run.callback_metrics["finetune/loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert list(module.protocol_texts) == ["finetune/map_11point"]
    assert module.summary()[0].startswith("finetune 11-point mAP: ")
    assert "finetune/best_map_11point" in run.callback_metrics
    assert "top1" not in " ".join(run.callback_metrics)


def test_the_loss_that_is_trained_on_is_the_mean_over_images_and_classes(
    official: Path, tmp_path: Path
) -> None:
    module, _ = tune(tmp_path, data("voc2007", official))
    images, labels = torch.rand(4, 3, 16, 16), join_labels(torch.rand(4, 20) < 0.3)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    module.eval()
    loss = module.training_step((images, labels), 0)["loss"]
    scores = module.scores(module(images))
    expected = F.binary_cross_entropy_with_logits(scores, split_labels(labels, 20).float())
    torch.testing.assert_close(loss, expected)
    with pytest.raises(DataError, match="a label is 1048576, and there are 20 classes"):
        module.training_step((images, torch.full((4,), 1 << 20)), 0)


def test_the_metric_of_the_set_is_the_result(official: Path, tmp_path: Path) -> None:
    module, run = tune(tmp_path, data("pets", official))
    value = float(run.callback_metrics["finetune/mean_per_class"])
    assert module.summary()[0].startswith(f"finetune mean per-class accuracy: {value:.4f} at the end")
    assert list(module.protocol_texts) == ["finetune/mean_per_class"]


@pytest.mark.parametrize(("part", "judged"), [("search", "validation"), ("final", "test")])
def test_the_record_says_which_images_are_judged(part: str, judged: str, official: Path) -> None:
    assert data("pets", official, part=part).held_out == judged


def test_a_linear_evaluation_takes_images_of_several_classes_too(official: Path, tmp_path: Path) -> None:
    module = LinearEvaluation("random", backbone="conv4")
    run = trainer(tmp_path, max_epochs=1, limit_val_batches=1.0)
    source = data("voc2007", official)
    run.fit(module, datamodule=source)
    expected = float(average_precision_11point(*scored(module, source)).nanmean())
    assert float(run.callback_metrics["linear/map_11point"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", ["top1", "recall"])
def test_a_metric_that_there_is_not_is_said(metric: str, official: Path, tmp_path: Path) -> None:
    class Mine(TransferDataModule):
        pass

    Mine.metric = metric
    given = {"image_size": 16, "normalize": "none", "task": "classify", "batch_size": 5, "num_workers": 0}
    with pytest.raises(ConfigError, match=f"data module's metric must be 'map_11point', got '{metric}'"):
        tune(tmp_path, Mine("voc2007", root=str(official), **given))


def test_what_is_predicted_of_images_of_several_classes_is_all_that_are_likely() -> None:
    scores = torch.tensor([[2.0, -1.0, 0.5], [-1.0, -2.0, -3.0]])
    assert LabelSets().predicted(scores, ["cat", "dog", "cow"]) == ["cat + cow", ""]
    assert LabelSets().predicted(scores, None).tolist() == [[True, False, True], [False] * 3]
    assert OneClass().predicted(scores, ["cat", "dog", "cow"]) == ["cat", "cat"]


@pytest.mark.parametrize("targets", [OneClass(), LabelSets()])
def test_scores_of_probabilities_are_those_that_gave_them(targets: OneClass) -> None:
    scores = torch.randn(5, 4, dtype=torch.float64)
    probabilities = targets.probabilities(scores)
    torch.testing.assert_close(targets.probabilities(targets.scores(probabilities)), probabilities)


def test_rows_without_labels_do_not_count() -> None:
    scores, labels = torch.randn(4, 3), torch.tensor([5, -1, 0, -1])
    expected = LabelSets().loss_sum(scores[[0, 2]], labels[[0, 2]])
    torch.testing.assert_close(LabelSets().loss_sum(scores, labels), expected)


@pytest.mark.parametrize("lr", [0.1, 1e-4])
def test_relative_decay_is_over_the_learning_rate(lr: float, tmp_path: Path) -> None:
    source = shapes(task="classify", train_size=20, test_size=10)
    module, run = tune(tmp_path, source, steps=1, lr=lr, relative_decay=1e-5)
    assert run.optimizers[0].param_groups[0]["weight_decay"] == pytest.approx(1e-5 / lr)
    assert f"lr={lr:g} wd={1e-5 / lr:g}" in module.described


def test_wrong_decays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="relative_decay must be a finite number >= 0, got -1"):
        FineTune("random", backbone="conv4", relative_decay=-1.0)
    with pytest.raises(ConfigError, match="relative_decay / lr is the weight decay: give one of the two"):
        FineTune("random", backbone="conv4", relative_decay=0.1, weight_decay=0.1)
    source = shapes(task="classify", train_size=20, test_size=10)
    with pytest.raises(ConfigError, match="relative_decay is divided by lr, which is 0: give weight_decay"):
        tune(tmp_path, source, lr=0.0, relative_decay=0.1)


def test_a_decay_that_is_no_number_is_said(tmp_path: Path) -> None:
    source = shapes(task="classify", train_size=20, test_size=10)
    with pytest.raises(ConfigError, match="relative_decay / lr must be a finite number >= 0, got inf"):
        tune(tmp_path, source, lr=1e-300, relative_decay=1e30)
