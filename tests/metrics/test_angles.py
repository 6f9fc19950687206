"""Angular errors of surface normals: the published numbers, and a histogram that is exact enough."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mmcl_lightning.errors import DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import AngularErrors, angular_error, mean_normal

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_dense.json").read_text())["normals"]


def test_equal_the_published_ones() -> None:
    codebook, normals = torch.tensor(GOLDEN["codebook"]), torch.tensor(GOLDEN["normals"])
    predicted = mean_normal(torch.tensor(GOLDEN["probabilities"]), codebook).permute(0, 2, 3, 1)
    torch.testing.assert_close(predicted.norm(dim=-1), torch.ones(2, 4, 5))
    errors = angular_error(predicted, normals)[torch.tensor(GOLDEN["valid"]).bool()]
    assert float(errors.mean()) == pytest.approx(GOLDEN["mean"], abs=2e-5)
    assert float(errors.median()) == pytest.approx(GOLDEN["median"], abs=2e-5)
    counted = AngularErrors()
    for part in errors.split(9):
        counted.update(part)
    found = counted.compute()
    assert found["mean"] == pytest.approx(GOLDEN["mean"], abs=2e-5)
    assert found["median"] == pytest.approx(GOLDEN["median"], abs=6e-4)
    shares = [100 * found[f"within_{limit}"] for limit in ("11.25", "22.5", "30")]
    assert shares == pytest.approx(GOLDEN["within_11.25_22.5_30"])


@pytest.mark.parametrize("degrees", [0.0, 0.001, 45.0, 90.0, 179.99, 180.0])
def test_small_and_large_angles_in_single_precision(degrees: float) -> None:
    angle = np.deg2rad(degrees)
    one = torch.tensor([1.0, 0.0, 0.0])
    other = 1.07 * torch.tensor([np.cos(angle), np.sin(angle), 0.0], dtype=torch.float32)
    assert float(angular_error(one, other)) == pytest.approx(degrees, abs=2e-5), "the length does not count"


@pytest.mark.parametrize("count", [1, 2, 1000, 1001])
def test_the_histogram_is_exact_enough(count: int) -> None:
    errors = np.random.default_rng(count).gamma(2.0, 12.0, count).clip(0, 180)
    parts = AngularErrors(), AngularErrors()
    for part, values in zip(parts, np.array_split(errors, 2), strict=True):
        part.update(torch.tensor(values))
    parts[0].add(parts[1])
    found = parts[0].compute()
    assert found["mean"] == pytest.approx(errors.mean(), abs=1e-9)
    assert found["median"] == pytest.approx(np.median(errors), abs=5.1e-4)
    assert found["within_11.25"] == (errors < 11.25).mean()


def test_a_threshold_is_not_within_itself() -> None:
    counted = AngularErrors()
    counted.update(torch.tensor([11.25, 11.2495, 22.5, 30.0, 180.0]))
    found = counted.compute()
    assert [found[f"within_{limit}"] for limit in ("11.25", "22.5", "30")] == [0.2, 0.4, 0.6]


def test_input_is_checked() -> None:
    with pytest.raises(DataError, match="no pixel has a valid normal"):
        AngularErrors().compute()
    with pytest.raises(NumericalError, match="2 of 3 angular errors are no angles"):
        AngularErrors().update(torch.tensor([torch.nan, 10.0, 181.0]))
    with pytest.raises(ShapeError, match=r"a codebook \(K, 3\), got \(1, 4, 2, 2\) and \(5, 3\)"):
        mean_normal(torch.ones(1, 4, 2, 2), torch.ones(5, 3))
    with pytest.raises(ShapeError, match=r"expected two tensors \(\.\.\., 3\)"):
        angular_error(torch.ones(4, 3), torch.ones(3, 3))
