"""The 11-point average precision of PASCAL VOC 2007."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmcl_lightning.batches import join_labels, split_labels
from mmcl_lightning.errors import NumericalError, ShapeError
from mmcl_lightning.metrics import average_precision_11point

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_transfer.json").read_text())
CASES = GOLDEN["voc07_classification_ap"]["cases"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_equals_the_published_value(case: dict) -> None:
    scores = torch.tensor(case["scores"], dtype=torch.float64)[:, None]
    labels = torch.tensor(case["labels"])[:, None] == 1
    assert float(average_precision_11point(scores, labels)) == pytest.approx(case["ssl_transfer"], abs=1e-12)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))
    again = average_precision_11point(scores[order], labels[order])
    assert float(again) == pytest.approx(case["ssl_transfer"], abs=1e-12)


def test_the_point_that_the_devkit_does_not_have_is_told_apart() -> None:
    differing = [abs(case["ssl_transfer"] - case["without_added_point"]) > 0.04 for case in CASES]
    assert differing == [False, False, False, True, True]


def test_recall_is_compared_in_float64() -> None:
    # 10 images of the class: after the third the recall is 0.3, and 3 * 0.1 is 0.30000000000000004.
    labels = torch.tensor([1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1])[:, None] == 1
    found = average_precision_11point(torch.arange(11, 0, -1).double()[:, None], labels)
    assert float(found) == pytest.approx((3 + 8 * 10 / 11) / 11, abs=1e-12)


def test_classes_stand_for_themselves_and_one_without_images_has_no_value() -> None:
    scores = torch.tensor([[3.0, 0.0, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
    labels = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 0]]) == 1
    first, second, third = average_precision_11point(scores, labels).tolist()
    assert (first, second) == pytest.approx((1, (1 + 10 / 3) / 11))
    assert third != third


def test_input_is_checked() -> None:
    with pytest.raises(ShapeError, match=r"\(n, classes\) and as many bool labels, got \(2, 3\)"):
        average_precision_11point(torch.rand(2, 3), torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ShapeError, match="int64"):
        average_precision_11point(torch.rand(2, 3), torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(NumericalError, match="a score is NaN"):
        average_precision_11point(torch.full((2, 1), torch.nan), torch.ones(2, 1, dtype=torch.bool))


def test_labels_of_several_classes_are_one_integer() -> None:
    labels = torch.rand(50, 62, generator=torch.Generator().manual_seed(0)) > 0.5
    joined = join_labels(labels)
    assert (joined >= 0).all()
    assert torch.equal(split_labels(joined, 62), labels)
    assert join_labels(torch.tensor([[True, False, True]])).tolist() == [5]
    with pytest.raises(ShapeError, match="up to 62, got 63"):
        join_labels(torch.ones(1, 63, dtype=torch.bool))
