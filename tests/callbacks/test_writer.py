"""The archive of representations has the numbers that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image
from runs import Plain, simclr, trainer
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning.callbacks import RepresentationWriter
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError


def test_large_targets_and_half_precision(tmp_path: Path) -> None:
    target = torch.tensor([2**24 + 1, 2**40 + 1, -1])  # float32 has neither of the first two
    batch = {"h": torch.tensor([[0.5], [1.5], [2.5]], dtype=torch.bfloat16), "target": target}
    writer = RepresentationWriter(str(tmp_path / "out.npz"))
    run = Trainer(accelerator="cpu", logger=False)
    writer.setup(run, Plain(), "predict")
    writer.write_on_epoch_end(run, Plain(), [batch, batch], [])
    found = np.load(tmp_path / "out.npz")
    assert found["target"].tolist() == target.tolist() * 2
    assert found["h"].dtype == np.float32
    assert found["h"].ravel().tolist() == [0.5, 1.5, 2.5] * 2


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.npz").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"out\.npz exists: give another path to write to, or remove it"):
        RepresentationWriter(str(tmp_path / "out.npz")).setup(trainer(tmp_path), Plain(), "predict")


class Names(Dataset[Any]):
    """A user's own data: an image, a label, and the name of its file."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        return torch.rand(3, 16, 16), index % 2, f"photo {index}.jpg"


def test_names_of_a_users_own_batches_are_kept(tmp_path: Path) -> None:
    writer = RepresentationWriter(str(tmp_path / "out.npz"))
    trainer(tmp_path, writer).predict(simclr(), DataLoader(Names(), batch_size=2))
    found = np.load(tmp_path / "out.npz")
    assert found["name"].tolist() == [f"photo {index}.jpg" for index in range(5)]
    assert found["h"].shape == (5, 256)


def test_every_row_says_which_file_it_is_of(tmp_path: Path) -> None:
    """The mean colour of a file is its number, so a row is right where its representation says the same."""
    for index in range(20):
        path = tmp_path / "photos" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (10 * index,) * 3).save(path)
    data = ImageFolderDataModule(str(tmp_path / "photos"), image_size=16, batch_size=4, num_workers=2)
    module = simclr(backbone=Mean(), projection_head=torch.nn.Linear(1, 2))
    trainer(tmp_path, RepresentationWriter(str(tmp_path / "out.npz"))).predict(module, data)
    found = np.load(tmp_path / "out.npz")
    for h, path, name, target in zip(*(found[k] for k in ("h", "path", "class", "target")), strict=True):
        assert round(float(h[0]) * 255 / 10) == int(Path(str(path)).stem)
        assert str(path).startswith(f"{name}/")
        assert name == ("cat", "dog")[target]
    assert sorted(found["path"].tolist()) == sorted(f"{('cat', 'dog')[i % 2]}/{i}.png" for i in range(20))
    assert found["split"].tolist() == ["train"] * 18 + ["test"] * 2


class Mean(torch.nn.Module):
    """A representation that is the mean of all pixels."""

    num_features = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).mean(dim=1, keepdim=True)
