"""Top-k accuracy against a loop."""

from __future__ import annotations

import pytest
import torch

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.metrics import topk_correct


@pytest.mark.parametrize("k", [1, 3, 9])
def test_equals_a_loop(k: int) -> None:
    scores = torch.randn(20, 5, generator=torch.Generator().manual_seed(k))
    labels = torch.arange(20) % 6 - 1
    by_hand = [
        bool(label >= 0 and sum(other > row[label] for other in row) < k)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    assert topk_correct(scores, labels, k).tolist() == by_hand


def test_wrong_shapes() -> None:
    with pytest.raises(ShapeError, match=r"got \(3, 2\), \(2,\)"):
        topk_correct(torch.zeros(3, 2), torch.zeros(2))
