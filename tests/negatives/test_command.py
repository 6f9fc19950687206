"""The command that draws which negatives count."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import complaint
from test_recipes import SMALL

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.modules import MMCL

QUICK = ["--config=quickstart", *SMALL]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *QUICK, "--trainer.max_epochs=1", "--model.C=0.5"])
    capsys.readouterr()
    options = ["--ckpt_path=last", "--model.C=0.5", "--data.test_size=30", "--data.seed=3"]
    options += ["--images=20", "--queries=3", "--support_vectors=4", "--others=1", "--data.augment=worker"]
    assert main(["negatives", *QUICK, *options, "--out=made/grid.png"]) is None
    shown = capsys.readouterr()
    assert "Wrote made/grid.png, made/grid.json, made/grid.csv" in shown.out
    assert "20 held-out images, 38 negatives each" in shown.out
    assert "which is used" not in shown.err
    assert "what the checkpoint holds" not in shown.err
    with Image.open(folder / "made" / "grid.png") as picture:
        assert picture.width > 7 * 96
        assert picture.height > 3 * 96

    # What a run has saved works as well as the recipe.
    saved = next(folder.rglob("config.yaml"))
    main(["negatives", f"--config={saved}", *options, "--out=again.png"])
    assert (folder / "again.csv").read_text() == (folder / "made" / "grid.csv").read_text()
    assert (folder / "again.png").read_bytes() == (folder / "made" / "grid.png").read_bytes()

    # The same by hand: the images of the choice, in evaluation mode, through the loss itself.
    summary = json.loads((folder / "made" / "grid.json").read_text())
    rows = list(csv.DictReader((folder / "made" / "grid.csv").open()))
    data = ShapesDataModule(train_size=16, test_size=30, image_size=16, seed=3, num_workers=0)
    dataset = data.val_dataloader().dataset
    module = MMCL.load_from_checkpoint(next(folder.rglob("last.ckpt"))).eval()
    positions = torch.randperm(30, generator=torch.Generator().manual_seed(3))[:20].sort().values.tolist()
    views = [torch.stack([dataset[i][0][view] for i in positions]) for view in (0, 1)]
    loss = MMCLLoss(module.criterion.kernel, module.criterion.solver, C=0.5)
    with torch.no_grad():
        loss(*[module.projection_head(module(view)) for view in views])
    alpha, targets = loss.last_duals[0].solution.alpha, [dataset[i][1] for i in positions]
    expected = {
        (positions[b], positions[j % 20], j // 20): float(alpha[b, j])
        for b in range(20)
        for j in range(40)
        if alpha[b, j] > 1e-6
    }
    found = {(int(r["query"]), int(r["position"]), int(r["view"])): r for r in rows}
    assert found.keys() == expected.keys()
    assert [float(r["alpha"]) for r in found.values()] == pytest.approx(
        [expected[key] for key in found], rel=1e-3
    )
    false = [r["false_negative"] == "True" for r in rows]
    label = dict(zip(positions, targets, strict=True))
    assert false == [label[int(r["query"])] == label[int(r["position"])] for r in rows]
    assert summary["stats"]["false_negative_share"] == pytest.approx(sum(false) / len(rows))
    assert summary["stats"]["sv_fraction"] == pytest.approx(len(rows) / (20 * 38))
    assert len(summary["queries"]) == 3
    for query in summary["queries"]:
        alphas = sorted((a for key, a in expected.items() if key[0] == query["position"]), reverse=True)
        assert [entry["alpha"] for entry in query["strongest"]] == pytest.approx(alphas[:4], rel=1e-3)
        assert query["support_vectors"] == len(alphas)
        assert query["class"] == data.class_names[query["target"]]


def test_no_file_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "negatives.csv").write_text("mine")
    options = [*QUICK, "--data.test_size=8", "--images=8", "--queries=2"]
    for number in (2, 3):
        main(["negatives", *options])
        said = capsys.readouterr().out
        assert f"Wrote negatives_{number}.png, negatives_{number}.json, negatives_{number}.csv" in said
    assert (folder / "negatives.csv").read_text() == "mine"
    assert not (folder / "negatives.png").exists()
    said = complaint(["negatives", *options, "--out=negatives.png"], capsys, code=1)
    assert said.endswith("negatives.csv exists: give another path to write to, or remove it")
    assert not (folder / "negatives.json").exists()


def photos(folder: Path, labelled: bool) -> Path:
    generator = np.random.default_rng(0)
    for index in range(24):
        parent = folder / "photos" / (f"kind{index % 2}" if labelled else "")
        parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(256, size=(20, 20, 3), dtype=np.uint8)).save(
            parent / f"{index:02d}.png"
        )
    return folder / "photos"


FOLDER = [
    "negatives",
    "--config=folder_mmcl",
    *[option for option in SMALL if not option.startswith("--data")],
    "--data.image_size=16",
    "--data.batch_size=8",
    "--data.num_workers=0",
    "--data.holdout=0.5",
    "--out=grid.png",
]


@pytest.mark.parametrize(("labelled", "views"), [(False, "clean"), (True, "augmented")])
def test_on_a_folder(labelled: bool, views: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*FOLDER, f"--data.root={photos(folder, labelled)}", f"--views={views}"])
    shown = capsys.readouterr()
    assert "warning: no --ckpt_path, so these are random weights" in shown.err
    assert ("false negatives" in shown.out) == labelled
    summary = json.loads((folder / "grid.json").read_text())
    assert summary["views"] == (2 if views == "augmented" else 1)
    assert summary["images"] == 12
    assert summary["C"] is None  # the recipe has no bound, and JSON no infinity
    assert {query["class"] for query in summary["queries"]} == ({"kind0", "kind1"} if labelled else {""})
    assert (folder / "grid.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--out=grid.jpg"], "--out is a picture whose name ends in .png, got grid.jpg"),
        (["--ckpt_path=nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
        (["--data.test_size=1"], "one held-out image has no negatives"),
    ],
)
def test_what_cannot_work(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in complaint(["negatives", *QUICK, *options], capsys, code=1)


def test_another_loss(capsys: pytest.CaptureFixture[str]) -> None:
    args: list[Any] = ["negatives", "--config=cifar10_simclr", *SMALL, "--model.cifar_stem=false"]
    said = complaint(args, capsys, code=1)
    assert said.endswith("whose attribute criterion is an MMCLLoss; that of ContrastiveModule is NTXentLoss")
