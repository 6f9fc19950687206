"""Representations of a folder without a recipe: ``mmcl embed``."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import simclr, trainer
from test_cli import complaint

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules import PretrainedBackbone
from mmcl_lightning.modules.weight_files import EXPORTED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A flat folder of pictures, a checkpoint and its exported backbone."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for index in range(10):
        pixels = generator.integers(256, size=(16, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    run = trainer(tmp_path)
    run.strategy.connect(simclr())
    run.save_checkpoint(tmp_path / "run.ckpt")
    main(["export", "--checkpoint=run.ckpt", "--out=backbone.pt"])
    torch.save(dict(torch.load("backbone.pt", weights_only=True)), "bare.pt")  # which says nothing of itself
    return tmp_path


DATA = ["--data.root=photos", "--data.image_size=16", "--data.num_workers=0", "--accelerator=cpu"]


def expected(folder: Path) -> torch.Tensor:
    """The same by hand: the middle of the long side, through the network."""
    rows = []
    for index in range(10):
        pixels = np.asarray(Image.open(folder / "photos" / f"{index}.png"))[:, 2:18]
        rows.append(torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1))
    with torch.no_grad():
        return simclr().eval()(torch.stack(rows))


@pytest.mark.parametrize("source", [["run.ckpt"], ["backbone.pt"], ["bare.pt", "--backbone=conv4"]])
def test_of_a_flat_folder(source: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "photos" / "broken.jpg").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"1 of 11 images cannot be read, and are left out: broken.jpg"):
        main(["embed", "--checkpoint", *source, *DATA, "--out=made/out.npz"])
    assert "Wrote made/out.npz: h (10, 256)" in capsys.readouterr().out
    found = np.load("made/out.npz")
    assert found["path"].tolist() == [f"{index}.png" for index in range(10)]
    assert set(found["split"].tolist()) == {"train"}
    assert found["target"].tolist() == [-1] * 10
    torch.testing.assert_close(torch.from_numpy(found["h"]), expected(folder))


def test_with_labels_and_splits_of_a_file(folder: Path) -> None:
    rows = [f"{index},{index % 3},{'train' if index < 7 else 'val'}" for index in range(10)]
    (folder / "labels.csv").write_text("\n".join(["id,label,split", *rows]))
    for _ in range(2):
        main(["embed", "--checkpoint=run.ckpt", *DATA, "--data.labels=labels.csv"])
    found = np.load("representations_2.npz")
    assert dict(zip(found["path"].tolist(), found["class"].tolist(), strict=True)) == {
        f"{index}.png": str(index % 3) for index in range(10)
    }
    assert found["target"].tolist() == [int(name) for name in found["class"].tolist()]
    assert [int(path[0]) < 7 for path in found["path"]] == [split == "train" for split in found["split"]]


def test_paths_below_a_folder_beside_the_current_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    for index, root in enumerate(("../photos", f"{folder}/work/../photos/", "../work/../photos")):
        data = [f"--data.root={root}", *DATA[1:]]
        main(["embed", "--checkpoint=../run.ckpt", *data, f"--out={index}.npz", "--map=none"])
        assert np.load(f"{index}.npz")["path"].tolist() == [f"{index}.png" for index in range(10)]


def test_a_map_and_the_projector_are_written_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["embed", "--checkpoint=run.ckpt", *DATA, "--tensorboard=projector"])
    said = capsys.readouterr().out.splitlines()
    assert said[-3] == "Wrote projector: 10 of 10 images for the projector, with thumbnails"
    assert said[-2].startswith("Wrote representations.png: 10 images by PCA, ")
    assert said[-1] == "next: mmcl neighbours representations.npz --picture --root photos"
    assert Image.open("representations.png").width > 800
    (sprite,) = folder.glob("projector/*/h/sprite.png")
    assert Image.open(sprite).size == (4 * 48, 4 * 48)
    (folder / "representations.npz").unlink()
    main(["embed", "--checkpoint=run.ckpt", *DATA, "--map=none"])  # whose map would not have another name
    for index in range(2, 10):
        (folder / "photos" / f"{index}.png").unlink()
    main(["embed", "--checkpoint=run.ckpt", *DATA, "--out=two.npz"])
    assert "no map: a map needs at least 3 images, got 2\n" in capsys.readouterr().out
    assert sorted(path.name for path in folder.glob("representations*")) == [
        "representations.png",
        "representations_2.npz",
    ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--checkpoint=bare.pt"], 1, "bare.pt does not say of which network it is: set --backbone"),
        (["--checkpoint=backbone.pt", "--backbone=resnet18"], 1, "backbone.pt does not fit the backbone"),
        (["--checkpoint=run.ckpt", "--out=backbone.pt"], 1, "backbone.pt exists: give another path"),
        (["--checkpoint=run.ckpt", "--out=out.csv"], 1, "a file that ends in .npz or .parquet, got out.csv"),
        (["--checkpoint=run.ckpt", "--tensorboard=photos"], 1, "photos exists: give another path to write"),
        (["--checkpoint=run.ckpt", "--map=umap"], 2, "map"),
        (["--checkpoint=run.ckpt", "--data.batch_size=8"], 2, "unrecognized arguments: --data.batch_size=8"),
        (["--checkpoint=run.ckpt", "--data.root=nowhere"], 1, "the image folder .*nowhere does not exist"),
        ([], 2, "the following arguments are required: --checkpoint: see mmcl embed --help"),
    ],
)
def test_what_cannot_work(
    options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(["embed", *DATA, *options], capsys, code=code)
    assert re.search(message, said), said


def test_the_module_is_one_for_predict_alone() -> None:
    module = PretrainedBackbone("run.ckpt")
    assert not any(weight.requires_grad for weight in module.parameters())
    images = torch.rand(2, 3, 16, 16)
    found = module.eval().predict_step((images, torch.tensor([1, 2]), ["a", "b"]), 0)
    assert (found["target"].tolist(), found["name"]) == ([1, 2], ["a", "b"])
    torch.testing.assert_close(found["h"], simclr().eval()(images))


def test_predict_takes_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model=PretrainedBackbone", "--model.checkpoint=run.ckpt"]
    data = ["--data=ImageFolderDataModule", *DATA[:3], "--data.labels=none", "--data.holdout=0"]
    main(["predict", *model, *data, "--trainer.accelerator=cpu", "--trainer.logger=false"])
    assert "random weights" not in capsys.readouterr().err
    torch.testing.assert_close(torch.from_numpy(np.load("runs/representations.npz")["h"]), expected(folder))


def test_what_an_exported_file_tells_may_be_anything(folder: Path) -> None:
    weights = OrderedDict(torch.load("backbone.pt", weights_only=True))
    setattr(weights, EXPORTED, "nonsense")
    torch.save(weights, "odd.pt")
    module = PretrainedBackbone("odd.pt", "conv4")
    assert module.preprocessing is None
    with pytest.raises(ConfigError, match=r"odd\.pt does not say of which network it is"):
        PretrainedBackbone("odd.pt")


def test_images_are_made_as_those_of_the_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = PretrainedBackbone("run.ckpt")
    made = ImageFolderDataModule("photos", image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3).preprocessing()
    weights = OrderedDict(torch.load("backbone.pt", weights_only=True))
    told = {"hyper_parameters": {"backbone": "conv4"}, "preprocessing": made.to_plain()}
    setattr(weights, EXPORTED, told)
    torch.save(weights, "told.pt")
    (folder / "photos" / "0.png").write_bytes(b"no picture")  # the first is looked at for its channels
    data = ["--data.root=photos", "--data.num_workers=0", "--accelerator=cpu"]
    with pytest.warns(UserWarning, match=r"1 of 10 images cannot be read, and are left out: 0.png"):
        main(["embed", "--checkpoint=told.pt", *data, "--out=told.npz"])
    pixels = np.stack([np.asarray(Image.open(f"photos/{index}.png"))[:, 2:18] for index in range(1, 10)])
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    torch.testing.assert_close(
        torch.from_numpy(np.load("told.npz")["h"]), module.eval()(images), rtol=1e-4, atol=1e-5
    )
    other = ["--data.mean=[0.1,0.1,0.1]", "--data.std=[1,1,1]"]
    said = complaint(["embed", "--checkpoint=told.pt", *data, *other], capsys, code=1)
    assert said.endswith("set --preprocessing data")
    with pytest.warns(UserWarning, match="left out: 0.png"):
        main(["embed", "--checkpoint=told.pt", *data, *other, "--preprocessing=data", "--data.image_size=16"])
