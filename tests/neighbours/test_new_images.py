"""Neighbours of images that are not in the file: they are embedded as those of the file were."""

from __future__ import annotations

import csv
import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import simclr, trainer
from test_cli import complaint

from mmcl_lightning.callbacks.tables import write_table
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.modules.weight_files import EXPORTED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six photos with their representations, and files elsewhere: two copies, and one that is broken."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for index in range(6):
        pixels = generator.integers(256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    run = trainer(tmp_path)
    run.strategy.connect(simclr())
    run.save_checkpoint(tmp_path / "run.ckpt")
    main(["export", "--checkpoint=run.ckpt", "--out=silent.pt"])
    weights = OrderedDict(torch.load("silent.pt", weights_only=True))
    made = ImageFolderDataModule("photos", image_size=16).preprocessing().to_plain()
    setattr(weights, EXPORTED, {"hyper_parameters": {"backbone": "conv4"}, "preprocessing": made})
    torch.save(weights, "told.pt")
    data = ["--data.root=photos", "--data.num_workers=0", "--accelerator=cpu"]
    main(["embed", "--checkpoint=told.pt", *data, "--out=out.npz", "--map=none"])
    (tmp_path / "new").mkdir()
    shutil.copy("photos/3.png", "new/a.png")
    shutil.copy("photos/3.png", "new/b.png")
    (tmp_path / "new" / "broken.png").write_bytes(b"no picture")
    return tmp_path


def rows() -> list[list[str]]:
    with open("neighbours.csv", newline="") as file:
        return list(csv.reader(file))[1:]


def test_a_copy_finds_its_original_and_no_other_query(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = ["new/a.png", "5.png", "new/b.png"]
    picture = ["--picture=n.png", "--root=photos"]
    main(["neighbours", "out.npz", "--checkpoint=told.pt", "--k=2", "--query", *queries, *picture])
    found = rows()
    a, b = str(folder / "new" / "a.png"), str(folder / "new" / "b.png")
    assert [row[0] for row in found] == [a, a, "5.png", "5.png", b, b]
    assert found[0][2:] == ["3.png", "1.000000"]
    assert found[4][2:] == ["3.png", "1.000000"]
    assert {row[2] for row in found} <= {f"{index}.png" for index in range(6)}
    said = capsys.readouterr().out
    assert "have a cosine similarity" in said
    assert "across splits" not in said, "an image that is searched for is of no split"
    assert said.endswith("Wrote neighbours.csv, neighbours.duplicates.csv, n.png\nnext: look at n.png\n")
    assert "unlabelled" not in said, "how a temporary folder was read is nobody's business"


def test_it_is_asked_for_no_more_neighbours_than_there_are(folder: Path) -> None:
    main(["neighbours", "out.npz", "--checkpoint=told.pt", "--k=50", "--query", "new/a.png"])
    assert sorted(row[2] for row in rows()) == [f"{index}.png" for index in range(6)]


def test_what_cannot_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*options: str) -> str:
        return complaint(["neighbours", *options], capsys, code=1)

    assert "with --checkpoint it is searched for" in said("out.npz", "--query=new/a.png")
    both = ["out.npz", "--checkpoint=told.pt"]
    silent = said("out.npz", "--checkpoint=silent.pt", "--query=new/a.png")
    assert "silent.pt does not say how its images are made, so others could not be compared" in silent
    assert "all of --query are: leave it out, or name another picture" in said(*both, "--query=1.png")
    assert "--query none.png fits 0 of the 7 images" in said(*both, "--query", "none.png", "new/a.png")
    assert "new/broken.png" in said(*both, "--query=new/broken.png")
    write_table(Path("other.npz"), {"h": np.eye(3, dtype=np.float32)})
    message = said("other.npz", "--checkpoint=told.pt", "--query=new/a.png")
    assert "gives h of 256 features, and the file has 3: give the weights" in message
    assert not list(folder.glob("*.csv"))
