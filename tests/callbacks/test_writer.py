"""The archive of representations has the numbers that it was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Trainer
from runs import Plain

from mmcl_lightning.callbacks import RepresentationWriter


def test_large_targets_and_half_precision(tmp_path: Path) -> None:
    target = torch.tensor([2**24 + 1, 2**40 + 1, -1])  # float32 has neither of the first two
    batch = {"h": torch.tensor([[0.5], [1.5], [2.5]], dtype=torch.bfloat16), "target": target}
    writer = RepresentationWriter(str(tmp_path / "out.npz"))
    writer.write_on_epoch_end(Trainer(accelerator="cpu", logger=False), Plain(), [batch, batch], [])
    found = np.load(tmp_path / "out.npz")
    assert found["target"].tolist() == target.tolist() * 2
    assert found["h"].dtype == np.float32
    assert found["h"].ravel().tolist() == [0.5, 1.5, 2.5] * 2
