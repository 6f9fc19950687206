"""The losses that lightly has too: its numbers, kept in a file, and itself where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmcl_lightning.losses import DecoupledLoss, NTXentLoss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lightly_losses.json").read_text())
OURS = {"NTXentLoss": NTXentLoss, "DCLLoss": DecoupledLoss, "DCLWLoss": DecoupledLoss}


def _id(case: dict[str, Any]) -> str:
    return f"{case['loss']}-{case['options']}-views{case['views']}"


every_case = pytest.mark.parametrize("case", GOLDEN["cases"], ids=_id)


def _assert_golden(loss: Any, case: dict[str, Any], tolerance: float) -> None:
    z0, z1 = (
        torch.tensor(view, dtype=torch.float64, requires_grad=True) for view in GOLDEN["views"][case["views"]]
    )
    value: Tensor = loss(z0, z1)
    got = (value.detach(), *torch.autograd.grad(value, (z0, z1)))
    wanted = [torch.tensor(case[name], dtype=torch.float64) for name in ("value", "grad0", "grad1")]
    torch.testing.assert_close(list(got), wanted, rtol=tolerance, atol=tolerance)


@every_case
def test_equals_the_numbers_of_lightly(case: dict[str, Any]) -> None:
    _assert_golden(OURS[case["loss"]](**case["options"]), case, 1e-8)


@every_case
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # in lightly's weights
def test_the_numbers_are_those_of_lightly(case: dict[str, Any]) -> None:
    lightly = pytest.importorskip("lightly.loss")
    _assert_golden(getattr(lightly, case["loss"])(**case["options"]), case, 1e-8)


def test_golden_file_is_complete() -> None:
    assert {case["loss"] for case in GOLDEN["cases"]} == set(OURS)
    assert len(GOLDEN["cases"]) == len({_id(case) for case in GOLDEN["cases"]}) == 12
