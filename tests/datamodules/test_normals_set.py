"""NormalsDataModule: images and normals of one size, resized, padded and thinned out together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import write_normals
from torchvision.transforms import functional as tvf

from mmcl_lightning.datamodules import NormalsDataModule
from mmcl_lightning.datamodules.normal_files import unit_normals
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform, ShortSide


def opened(root: Path, **options: Any) -> NormalsDataModule:
    data = NormalsDataModule(
        str(root), **({"short_sides": (32,), "eval_short_side": 32, "num_workers": 0} | options)
    )
    data.setup()
    return data


def test_colours_become_unit_normals() -> None:
    colours = np.array([[[255, 128, 128], [128, 128, 128], [0, 127, 127], [255, 255, 128]]], dtype=np.uint8)
    found = unit_normals(colours)[:, 0].T
    assert found[0].tolist() == pytest.approx([1.0, 0.0039, 0.0039], abs=1e-4)
    assert found[2].tolist() == pytest.approx([-1.0, -0.0039, -0.0039], abs=1e-4)
    assert found[1].tolist() == found[3].tolist() == [0.0, 0.0, 0.0]  # of length 0.007 and 1.41


def test_batches(tmp_path: Path) -> None:
    write_normals(tmp_path, size=(40, 30))
    data = opened(tmp_path)
    (images, normals), *rest = data.train_dataloader()
    assert len(rest) == 1
    assert images.shape == (2, 3, 32, 48)  # 42 x 32 pixels, padded
    assert normals.shape == (2, 3, 4, 6)
    assert images[:, :, :, 42:].abs().max() == 0
    assert images[:, :, :, :42].sum(1).min() > 0.5
    right, up, none = (torch.tensor(v) for v in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]))
    for column, expected in enumerate(
        (right, right, right, up, up, none)
    ):  # pixels 4, 12, ...; the edge is at 21
        assert torch.allclose(normals[:, :, 2, column], expected.expand(2, 3), atol=0.01), column
    image, full = next(iter(data.test_dataloader()))
    assert image.shape == (1, 3, 32, 48)  # resized to 48, not padded: 42 rounded up
    assert image[..., 47].sum() > 1
    assert full.shape == (1, 3, 30, 40)
    assert full[:, :, 0].abs().max() == 0
    assert full[:, :, 1:].norm(dim=1).allclose(torch.ones(1, 29, 40))


def test_the_short_side_is_of_the_batch_and_the_seed(tmp_path: Path) -> None:
    write_normals(tmp_path, train=8)

    def shapes(**options: Any) -> list[list[int]]:
        data = opened(tmp_path, short_sides=(16, 24, 32, 40), **options)
        loader, found = data.train_dataloader(), []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            found += [list(images.shape[2:]) for images, _ in loader]
        return found

    found = shapes()
    assert len({tuple(shape) for shape in found}) > 2
    assert found == shapes() != shapes(seed=1)


def test_images_of_differing_sizes_are_padded(tmp_path: Path) -> None:
    write_normals(tmp_path, train=4)
    for kind in ("image", "normal"):
        path = next((tmp_path / kind / "train").glob("00002.*"))
        Image.open(path).rotate(90, expand=True).save(path)
    images, normals = next(iter(opened(tmp_path, batch_size=4).train_dataloader()))
    assert images.shape == (4, 3, 48, 48)
    assert normals.shape == (4, 3, 6, 6)
    assert int((normals.norm(dim=1) > 0).sum()) == 4 * 20


def test_resizing_is_that_of_pillow(tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 41, 3), dtype=np.uint8))
    found = ShortSide(20, 1000, 8)(image)
    assert torch.equal(found, tvf.to_tensor(image.resize((32, 24), Image.Resampling.BILINEAR)))
    assert ShortSide(20, 1000, 1).size_of(image) == (20, 27)
    assert ShortSide(20, 24, 1).size_of(image) == (17, 24)
    assert ShortSide().size_of(Image.new("RGB", (640, 480))) == (456, 600)
    assert ShortSide(600).size_of(Image.new("RGB", (4000, 480))) == (120, 1000)


def test_mean_and_std_come_with_the_weights(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write_normals(tmp_path)
    statistics = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    found = Preprocessing.of(EvalTransform(36, 32, *statistics), (32, 32), (32, 32), 3)
    data, plain = opened(tmp_path), opened(tmp_path)
    data.take_over(found)
    assert not recwarn.list, "another size is the protocol's"
    for own, other in ((data.train_dataloader(), plain.train_dataloader()),
                       (data.test_dataloader(), plain.test_dataloader())):  # fmt: skip
        expected = next(iter(other))[0][0, :, 3, 3]
        expected = (expected - torch.tensor(statistics[0])) / torch.tensor(statistics[1])
        assert torch.allclose(next(iter(own))[0][0, :, 3, 3], expected, atol=1e-5)
    with pytest.raises(ConfigError, match="std 1, 1, 1: leave mean, std"):
        opened(tmp_path, mean=(0.1,) * 3, std=(1.0,) * 3).take_over(found)


def test_subsets_fingerprint_and_normals_of_the_codebook(tmp_path: Path) -> None:
    write_normals(tmp_path)
    data = opened(tmp_path, train_subset=2, test_subset=1)
    assert [len(data.splits.pretrain), len(data.test_dataloader())] == [2, 1]
    assert data.folder == tmp_path.name
    assert data.class_names is None
    normals = data.training_normals(100)
    assert normals.shape == (100, 3)
    assert 30 < int((normals[:, 0] > 0.9).sum()) < 70
    before = opened(tmp_path).fingerprint()
    path = tmp_path / "normal" / "test" / "00001.png"
    Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path)
    after = opened(tmp_path).fingerprint()
    assert before["pretrain"] == after["pretrain"]
    assert before["heldout"] != after["heldout"]


def test_bad_input_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.batch_size must be at least 2, got 1: the decoder averages"
    ):
        NormalsDataModule(batch_size=1)
    with pytest.raises(ConfigError, match=r"data\.short_sides must name one length"):
        NormalsDataModule(short_sides=())
    with pytest.raises(ConfigError, match="short_sides must be an integer >= 8, got 4"):
        NormalsDataModule(short_sides=(300, 4))
    with pytest.raises(
        DataError, match=r"the folder .*image/train is missing; set --data\.root to the folder"
    ):
        opened(tmp_path)
    (tmp_path / "test_surfacenormal.pklz").touch()
    with pytest.raises(
        DataError, match=r"test_surfacenormal\.pklz is a pickle, which can run code, and is not"
    ):
        opened(tmp_path)
    write_normals(tmp_path)
    with pytest.raises(
        ConfigError, match=r"data\.batch_size is 5 on each of 1 devices, and there are only 4"
    ):
        opened(tmp_path, batch_size=5).train_dataloader()
    (tmp_path / "normal" / "train" / "00003.png").unlink()
    with pytest.raises(
        DataError, match=r"1 of the 4 names .* the first being 00003, which is not in .*normal/tr"
    ):
        opened(tmp_path)
    Image.new("RGB", (40, 31)).save(tmp_path / "normal" / "train" / "00003.png")
    with pytest.raises(
        DataError, match=r"differ in size: .*00003\.jpg has 40 x 30 pixels, .*00003\.png has 40 x 31"
    ):
        list(opened(tmp_path).train_dataloader())
    for path in (tmp_path / "normal" / "train").iterdir():
        Image.new("RGB", (40, 30), (127, 127, 127)).save(path)
    with pytest.raises(DataError, match=r"no pixel of the 4 training images in .* has a valid normal"):
        opened(tmp_path).training_normals()
    (tmp_path / "image" / "test" / "00001.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"00001\.jpg"):
        list(opened(tmp_path).test_dataloader())
    for path in (tmp_path / "normal" / "test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"the folder .*normal/test has no picture"):
        opened(tmp_path)
