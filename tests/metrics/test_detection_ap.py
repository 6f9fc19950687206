"""VOC 2007's average precision of detection: the published numbers, and the rules one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.metrics import voc_detection_ap

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_dense.json").read_text())


def truth(boxes: list[Any], labels: list[int] | None = None, difficult: list[int] | None = None) -> Any:
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4),
        "labels": torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
        "difficult": torch.tensor(difficult or [0] * len(boxes), dtype=torch.bool),
    }


def found(boxes: list[Any], scores: list[float], labels: list[int] | None = None) -> dict[str, Tensor]:
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4),
        "scores": torch.tensor(scores),
        "labels": torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
    }


@pytest.mark.parametrize("case", GOLDEN["voc07_detection_ap"]["cases"])
def test_equals_the_published_values(case: dict[str, Any]) -> None:
    predictions, objects = [], []
    for image in case["images"]:
        there, seen = image["objects"], image["predictions"]
        boxes = [[x - 1, y - 1, right, below] for x, y, right, below in (o["box"] for o in there)]
        objects.append(truth(boxes, [o["class"] for o in there], [o["difficult"] for o in there]))
        boxes = [p["box"] for p in seen]
        predictions.append(found(boxes, [p["score"] for p in seen], [p["class"] for p in seen]))
    result = voc_detection_ap(predictions, objects, range(3))
    assert 100 * result.ap == pytest.approx(case["AP"], abs=1e-9)
    assert 100 * result.ap50 == pytest.approx(case["AP50"], abs=1e-9)
    assert 100 * result.ap75 == pytest.approx(case["AP75"], abs=1e-9)
    assert (100 * result.by_class[:, 0]).tolist() == pytest.approx(case["AP50_by_class"], abs=1e-9)
    assert 100 * result.ap50 != pytest.approx(case["AP_area_2012_50"], abs=0.1)


SQUARE = [0.0, 0.0, 10.0, 10.0]


def ap50(prediction: Any, objects: Any) -> float:
    return voc_detection_ap([prediction], [objects], [1]).ap50


def test_the_rules() -> None:
    assert voc_detection_ap([found([SQUARE], [0.9])], [truth([SQUARE])], [1]).ap == 1.0
    half = [0.0, 0.0, 10.0, 5.0]
    assert ap50(found([half], [0.9]), truth([SQUARE])) == 0.0, "an IoU of 0.5 is not greater than 0.5"
    # The second hit on one object is a miss; without the next object it does not lower the precision at 1.
    other = [50.0, 50.0, 60.0, 60.0]
    twice = found([SQUARE, SQUARE, other], [0.9, 0.8, 0.7])
    assert ap50(twice, truth([SQUARE])) == 1.0
    assert ap50(twice, truth([SQUARE, other])) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    # Difficult: neither hit nor miss, and not needed.
    assert ap50(found([other, SQUARE], [0.9, 0.8]), truth([SQUARE, other], difficult=[0, 1])) == 1.0
    assert ap50(found([other, SQUARE], [0.9, 0.8]), truth([SQUARE])) == pytest.approx(0.5)
    # Another class, or another image, is no object.
    assert ap50(found([SQUARE], [0.9]), truth([SQUARE, other], labels=[2, 1])) == 0.0
    assert voc_detection_ap(
        [found([SQUARE], [0.9]), found([], [])], [truth([]), truth([SQUARE])], [1]
    ).ap50 == 0.0  # fmt: skip
    result = voc_detection_ap([found([SQUARE], [0.9])], [truth([SQUARE])], [1, 2])
    assert result.by_class[:, 0].tolist() == [1.0, 0.0], "a class without objects counts 0, as published"


def test_input_is_checked() -> None:
    with pytest.raises(ShapeError, match="expected predictions of every image, got 0 for 1"):
        voc_detection_ap([], [truth([SQUARE])], [1])
    with pytest.raises(DataError, match="image 0: an object's box has no width or height, or is inverted"):
        ap50(found([], []), truth([[5.0, 0.0, 5.0, 9.0]]))
    with pytest.raises(DataError, match="nothing to detect"):
        ap50(found([SQUARE], [0.5]), truth([]))
    wrong = {**found([SQUARE], [0.5]), "scores": torch.ones(2)}
    with pytest.raises(ShapeError, match=r"image 0: expected boxes \(n, 4\) and \(n,\) of the others, got"):
        ap50(wrong, truth([SQUARE]))
