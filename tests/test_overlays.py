"""Overlays of the recipes parse over them, and processes of torchrun train as one process does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Record
from mmcl_lightning.recipes import find_recipe, recipe_folder, recipe_names
from mmcl_lightning.svm import Exact, ProjectedGradient, Solver

ROOT = Path(__file__).parents[1]
OVERLAYS = sorted(path.stem for path in (recipe_folder() / "overlays").glob("*.yaml"))
#: Two steps of 16 images by a network without batch norm, whose statistics would be of a process.
SMALL = [
    "fit",
    "--config=quickstart",
    "--data={class_path: ShapesDataModule, init_args: {train_size: 32, test_size: 20, image_size: 16}}",
    "--data.num_workers=0",
    "--model.backbone={class_path: runs.FlatNet}",
    "--model.projection_head=moco",
    "--model.hidden_dim=16",
    "--model.output_dim=8",
    "--trainer.max_epochs=1",
    "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=1",
    "--trainer.check_val_every_n_epoch=1",
    "--readouts.knn.k=5",
    "--readouts.probe=null",
    "--readouts.support_vectors=null",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    with pytest.raises(SystemExit) as end:
        main(["fit", *arguments, "--print_config"])
    assert end.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize(("recipe", "overlay"), [("stl10_mmcl.yaml", "ddp"), ("imagenet_mmcl", "slurm")])
def test_an_overlay_changes_how_a_recipe_is_run_alone(
    recipe: str, overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = printed([f"--config={recipe}"], capsys)
    over = printed(
        [f"--config={recipe}", f"--config=overlays/{overlay}.yaml", "--trainer.num_nodes=4"], capsys
    )
    assert (over["trainer"]["strategy"], over["trainer"]["num_nodes"]) == ("ddp", 4)
    assert over["trainer"]["sync_batchnorm"] is True
    assert over["trainer"]["logger"] == plain["trainer"]["logger"]
    assert {key: over[key] for key in ("model", "data", "readouts")} == {
        key: plain[key] for key in ("model", "data", "readouts")
    }


def test_shards_take_the_place_of_a_folder_and_the_rest_stays(capsys: pytest.CaptureFixture[str]) -> None:
    plain = printed(["--config=folder_mmcl_log"], capsys)
    over = printed(["--config=folder_mmcl_log", "--config=overlays/stream", "--data.root=mine"], capsys)
    assert over["data"]["class_path"] == "mmcl_lightning.datamodules.StreamDataModule"
    chosen, usual = over["data"]["init_args"], plain["data"]["init_args"]
    assert (chosen.pop("root"), chosen.pop("predict_split")) == ("mine", "test")
    assert {name: chosen[name] for name in usual if name in chosen} == {
        name: value for name, value in usual.items() if name not in ("root", "predict_split")
    }
    assert {key: over[key] for key in ("model", "trainer", "readouts")} == {
        key: plain[key] for key in ("model", "trainer", "readouts")
    }


def test_overlays_are_found_by_name_and_are_no_recipes() -> None:
    assert OVERLAYS == [
        "cpu", "ddp", "exact", "large_batch", "log", "projected_gradient", "reference", "slurm", "stream",
    ]  # fmt: skip
    assert find_recipe("overlays/ddp") == str(recipe_folder() / "overlays" / "ddp.yaml")
    assert not {f"{name}.yaml" for name in OVERLAYS} & {*recipe_names()}
    with pytest.raises(ConfigError, match=r"'overlays/dpp'.*did you mean overlays/ddp\.yaml\?"):
        find_recipe("overlays/dpp")


@pytest.mark.parametrize("recipe", ["stl10_mmcl", "imagenet_mmcl_reference"])
@pytest.mark.parametrize("solver", [Exact(), ProjectedGradient()])
def test_an_overlay_of_a_solver_has_its_defaults(
    recipe: str, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also over a recipe that has other options of the same solver."""
    overlay = {"Exact": "exact", "ProjectedGradient": "projected_gradient"}[type(solver).__name__]
    config = printed([f"--config={recipe}", f"--config=overlays/{overlay}"], capsys)
    spec = config["model"]["init_args"]["solver"]
    assert spec["class_path"] == f"mmcl_lightning.svm.{type(solver).__name__}"
    assert type(solver)(**spec["init_args"]) == solver


def test_the_log_form_and_the_published_code_over_other_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    own = printed(["--config=stl10_mmcl_log"], capsys)
    over = printed(["--config=stl10_mmcl", "--config=overlays/log"], capsys)
    assert over["model"] == own["model"]
    config = printed(["--config=stl10_mmcl", "--config=overlays/reference"], capsys)
    options = config["model"]["init_args"]
    assert ProjectedGradient(**options["solver"]["init_args"]) == ProjectedGradient.reference()
    assert (options["negatives"], options["C"]) == ("one", math.inf)


@pytest.mark.parametrize("recipe", ["folder_mmcl", "folder_mmcl_log", "folder_simclr"])
def test_photos_on_a_cpu(recipe: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(40):
        path = folder / "photos" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), 6 * index, np.uint8)).save(path)
    over = ["--config=overlays/cpu", "--data.root=photos"]
    config = printed([f"--config={recipe}", *over], capsys)
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 1e-3
    assert config["model"]["init_args"]["lr_schedule"] == "cosine"
    assert config["trainer"]["max_epochs"] == 60
    few = ["--data.batch_size=16", "--data.num_workers=0", "--trainer.max_steps=2", "--readouts.knn.k=5"]
    main(["fit", f"--config={recipe}", *over, *few, "--trainer.accelerator=cpu"])
    said = capsys.readouterr()
    assert "Trained 1 epoch, 2 steps." in said.out
    assert "k-NN top-1: " in said.out
    assert "overlays/cpu" not in said.err
    if recipe == "folder_mmcl":
        few += ["--data.image_size=32", "--trainer.max_steps=1", "--readouts.knn=null"]
        main(["fit", f"--config={recipe}", "--data.root=photos", *few, "--trainer.accelerator=cpu"])
        assert "A ResNet-50 is slow on a CPU: --config overlays/cpu" in capsys.readouterr().err


def test_a_large_batch_in_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    """LARS at 0.075 sqrt(batch), 4.8 at 4,096 and here 0.3; the loss sees all images of the batch."""
    config = printed(["--config=tiny_imagenet_simclr", "--config=overlays/large_batch"], capsys)
    assert config["data"]["init_args"]["batch_size"] == 4096
    options = ["--config=overlays/large_batch", "--data.batch_size=16", "--model.chunk_size=4"]
    main([*SMALL, *options, "--model.warmup=0", "--model.lr_schedule=constant", "--trainer.devices=1"])
    (path,) = Path("runs").rglob("ledger.json")
    metrics = Record.read(path).metrics
    assert [point[3] for point in metrics["train/lr"].curve] == pytest.approx([0.3, 0.3])
    assert Record.read(path).steps == 2


def torchrun(*options: str) -> subprocess.CompletedProcess[str]:
    """Run with two processes, each on a thread of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(ROOT / "cli.py")]
    return subprocess.run(
        [*command, *SMALL, *options],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_of_torchrun_equal_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, losses and k-NN; one record, one folder."""
    main([*SMALL, "--data.batch_size=16", "--trainer.devices=1", "--trainer.logger.name=one"])
    options = ["--data.batch_size=8", "--trainer.devices=2", "--trainer.logger.name=two"]
    done = torchrun("--config=overlays/ddp", *options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Trained 1 epoch, 2 steps.") == 1
    assert [path.name for path in Path("runs/two").iterdir()] == ["version_0"]
    (path,) = Path("runs/two").rglob("ledger.json")
    one, two = Record.read(Path("runs/one/version_0/ledger.json")), Record.read(path)
    assert (one.hardware["processes"], two.hardware["processes"]) == (1, 2)
    assert (two.status, two.steps) == ("finished", 2)
    for name in ("train/loss", "val/loss", "svm/margin", "knn/top1", "knn/top5"):
        first, second = ([point[3] for point in record.metrics[name].curve] for record in (one, two))
        assert second == pytest.approx(first, rel=1e-3), name
        assert len(first) == (1 if name == "val/loss" else 2)
    weights = [
        torch.load(f"runs/{name}/version_0/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("one", "two")
    ]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "1 devices on each of 1 machines are not the processes"),  # each would train by itself
        (["--config=overlays/ddp", "--trainer.devices=1"], "1 devices on each of 1 machines are not"),
        (["--config=overlays/ddp", "--trainer.devices=2", "--trainer.num_nodes=3"], "2 devices on each of 3"),
    ],
)
def test_processes_that_do_not_fit_are_said(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    started |= {"MASTER_ADDR": "localhost", "MASTER_PORT": 29_500, "TORCHELASTIC_RUN_ID": "none"}
    for name, value in started.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    with pytest.raises(SystemExit) as end:
        main([*SMALL, *options])
    assert end.value.code == 1
    assert f"error: {said}" in capsys.readouterr().err
    assert not Path("runs").exists()
