"""Top-1 and top-5 accuracy against a loop, over batches with and without labels."""

from __future__ import annotations

import pytest
import torch

from mmcl_lightning._accuracy import TopAccuracy


@pytest.mark.parametrize("classes", [2, 5, 9])
def test_equals_a_loop(classes: int) -> None:
    scores = torch.randn(30, classes, generator=torch.Generator().manual_seed(classes))
    labels = torch.arange(30) % (classes + 1) - 1
    labels[labels == -1] = torch.tensor([-1, -7] * 15)[: int((labels == -1).sum())]  # any negative one
    accuracy = TopAccuracy(classes, scores.device)
    for rows in (slice(0, 0), slice(0, 11), slice(11, 30)):
        accuracy.update(scores[rows], labels[rows])
    for k, found in ((1, accuracy.compute()["top1"]), (5, accuracy.compute()["top5"])):
        by_hand = [
            sum(other > row[label] for other in row) < k
            for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
            if label >= 0
        ]
        assert found == pytest.approx(sum(by_hand) / len(by_hand))
