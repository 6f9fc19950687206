"""The archive of representations has the numbers that it was given."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from pyarrow import parquet
from runs import Plain, simclr, trainer
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning.callbacks import RepresentationWriter
from mmcl_lightning.callbacks.tables import read_table, write_table
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError


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


def brightness(root: Path, count: int = 21) -> ImageFolderDataModule:
    """Pictures whose number is their brightness, over ten."""
    root.mkdir()
    for index in range(count):
        Image.new("RGB", (16, 16), (10 * index,) * 3).save(root / f"{index:02d}.png")
    return ImageFolderDataModule(str(root), image_size=16, holdout=0.2, num_workers=0, eval_batch_size=4)


def mean_module() -> LightningModule:
    return simclr(backbone=Mean(), projection_head=torch.nn.Linear(1, 2))


def test_several_processes_write_one_file_in_the_order_of_one(tmp_path: Path) -> None:
    data = brightness(tmp_path / "photos")
    for processes in (1, 2):
        writer = RepresentationWriter(str(tmp_path / f"{processes}.npz"))
        spread = {"devices": 2, "strategy": "ddp_fork"} if processes > 1 else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer(tmp_path, writer, **spread).predict(mean_module(), data, return_predictions=False)
    one, two = (np.load(tmp_path / f"{processes}.npz") for processes in (1, 2))
    assert one["path"].tolist() == two["path"].tolist()
    assert len(set(two["path"].tolist())) == 21
    for name in ("h", "z", "target", "split"):
        np.testing.assert_array_equal(one[name], two[name])
    assert {path.name for path in tmp_path.glob("*.npz")} == {"1.npz", "2.npz"}


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    data = brightness(tmp_path / "photos")
    for name in ("out.npz", "out.parquet"):
        trainer(tmp_path, RepresentationWriter(str(tmp_path / name))).predict(mean_module(), data)
    schema = parquet.read_schema(tmp_path / "out.parquet")
    assert schema.field("h").type == arrow.list_(arrow.float32(), 1)
    assert schema.field("z").type == arrow.list_(arrow.float32(), 2)
    assert schema.field("path").type == arrow.string()
    one, two = (read_table(tmp_path / name) for name in ("out.npz", "out.parquet"))
    assert list(one) == list(two) == ["h", "z", "target", "path", "class", "split"]
    for name, values in one.items():
        assert values.tolist() == two[name].tolist()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for name in ("broken.parquet", "broken.npz"):
        with pytest.raises(DataError, match=rf"{name} cannot be read as representations"):
            read_table(tmp_path / name)
    with pytest.raises(ConfigError, match="there is no file"):
        read_table(tmp_path / "none.npz")
    with pytest.raises(
        DataError, match=r"h has the shape \(2, 3, 4\), and Parquet takes rows: write an .npz"
    ):
        write_table(tmp_path / "deep.parquet", {"h": np.zeros((2, 3, 4))})


@pytest.mark.parametrize("row", [None, [1.0, None]])
def test_a_parquet_row_without_a_value_is_refused(row: Any, tmp_path: Path) -> None:
    h = arrow.array([[1.0, 2.0], row, [3.0, 2.0]], type=arrow.list_(arrow.float32(), 2))
    parquet.write_table(arrow.table({"h": h}), tmp_path / "out.parquet")
    refused = row is None and int(arrow.__version__.partition(".")[0]) < 26  # by Arrow itself
    said = "Expected all lists to be of size=2" if refused else r"1 values in h are null\)"
    with pytest.raises(DataError, match=rf"cannot be read .*\({said}"):
        read_table(tmp_path / "out.parquet")


def test_an_array_under_the_name_of_an_archive_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "out.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match=r"\(it is a single array of NumPy, \.npy\)"):
        read_table(tmp_path / "out.npz")


def test_a_name_that_parquet_cannot_hold_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    odd = tmp_path / "images" / os.fsdecode(b"cat\xff") / "a.png"
    odd.parent.mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(odd)
    data = ImageFolderDataModule(str(tmp_path / "images"), num_workers=0, image_size=16, holdout=0)
    module, seen = simclr(), []
    module.register_forward_pre_hook(lambda *args: seen.append(1))
    with pytest.raises(DataError, match=r"the path 'cat\\udcff/a\.png' is not in UTF-8, and Parquet has"):
        trainer(tmp_path, RepresentationWriter(str(tmp_path / "o.parquet"))).predict(module, data)
    assert not seen
    with pytest.raises(DataError, match=r"the name '\\udcff' is not in UTF-8"):
        write_table(tmp_path / "own.parquet", {"name": np.array(["a", "\udcff"])})


def test_what_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"ends in .npz or .parquet, got .*out.csv"):
        RepresentationWriter(str(tmp_path / "out.csv")).setup(trainer(tmp_path), Plain(), "predict")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install \"mmcl-lightning\[parquet\]\", or choose .npz"):
        RepresentationWriter(str(tmp_path / "out.parquet")).setup(trainer(tmp_path), Plain(), "predict")


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_pictures_are_left_out_and_named(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brightness(tmp_path / "photos")
    for index in (0, 7, 8, 20):
        (tmp_path / "photos" / f"{index:02d}.png").write_bytes(b"no picture")
    options = {"image_size": 16, "holdout": 0.0, "num_workers": workers, "eval_batch_size": 4}
    data = ImageFolderDataModule(str(tmp_path / "photos"), on_bad_image="skip", **options)
    writer = RepresentationWriter(str(tmp_path / "out.npz"))
    with pytest.warns(UserWarning, match=r"4 of 21 images cannot be read, and are left out: 00.png, 07.png"):
        trainer(tmp_path, writer).predict(mean_module(), data)
    found = np.load(tmp_path / "out.npz")
    kept = [index for index in range(21) if index not in (0, 7, 8, 20)]
    assert found["path"].tolist() == [f"{index:02d}.png" for index in kept]
    assert (found["h"].ravel() * 255 / 10).round().tolist() == kept
    assert "split (17,) (17 of 21 images read)" in capsys.readouterr().out
    refusing = ImageFolderDataModule(str(tmp_path / "photos"), **options)
    with pytest.raises(DataError, match=r"the image .*00.png cannot be read"):
        trainer(tmp_path).predict(mean_module(), refusing)
    for path in (tmp_path / "photos").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(
        DataError, match=r"100 images in a row cannot be read, the first of them: the image .*00.png"
    ):
        trainer(tmp_path).predict(mean_module(), data)
