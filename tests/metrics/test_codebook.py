"""Normals as codes: k-means on the sphere, and the nearest code of each pixel."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.metrics import fit_codebook, nearest_code


def test_groups_are_found() -> None:
    centres = torch.eye(3)
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(300, 3, generator=generator)
    normals = F.normalize(centres.repeat(100, 1) + noise, dim=1)
    found = fit_codebook(normals, 3, seed=1)
    assert found.dtype == torch.float32
    expected = F.normalize(normals.view(100, 3, 3).mean(0), dim=1)
    order = (expected @ found.T).argmax(dim=1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert torch.allclose(found[order], expected, atol=1e-6)
    assert torch.equal(found, fit_codebook(normals, 3, seed=1))


def test_more_codes_leave_less_error_and_all_are_unit() -> None:
    normals = F.normalize(torch.randn(500, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    errors = []
    for codes in (2, 8, 40):
        found = fit_codebook(normals, codes)
        assert torch.allclose(found.norm(dim=1), torch.ones(codes), atol=1e-6)
        errors.append(float(torch.rad2deg((normals @ found.T).max(1).values.clamp(max=1).acos()).mean()))
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


def test_the_nearest_code() -> None:
    codebook = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    normals = torch.tensor([[0.8, 0.6, 0.0], [0.0, 0.6, -0.8], [0.0, 0.0, 0.0]]).T.view(1, 3, 1, 3)
    assert nearest_code(normals, codebook).tolist() == [[[0, 1, -1]]]


def test_input_is_checked() -> None:
    two = torch.eye(3)[[0, 1, 0, 1]]
    with pytest.raises(DataError, match=r"only 2 different normals, and 3 codes to find: set --model\.codes"):
        fit_codebook(two, 3)
    assert sorted(fit_codebook(two, 2).tolist()) == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    with pytest.raises(DataError, match="only 0 different normals"):
        fit_codebook(torch.empty(0, 3), 2)
    with pytest.raises(ShapeError, match=r"expected normals \(N, 3\), got \(2, 4\)"):
        fit_codebook(torch.ones(2, 4), 2)
    with pytest.raises(ShapeError, match=r"expected normals \(B, 3, H, W\) and a codebook"):
        nearest_code(torch.ones(1, 2, 4, 4), torch.eye(3))
