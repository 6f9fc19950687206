"""The command line: what it does, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers import make_views
from jsonargparse import ArgumentParser
from PIL import Image
from test_recipes import SMALL

from mmcl_lightning import __version__, _messages, losses
from mmcl_lightning._messages import filter_warnings
from mmcl_lightning._trainer_cli import MMCLCLI
from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.kernels import RBF, Tanh
from mmcl_lightning.ledger import Record
from mmcl_lightning.losses import ContrastiveLoss, HCLLoss, MMCLLoss, NTXentLoss
from mmcl_lightning.modules import MMCL, ContrastiveModule
from mmcl_lightning.recipes import recipe_folder
from mmcl_lightning.svm import Exact

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(args: list[str], capsys: pytest.CaptureFixture[str], code: int) -> str:
    """Run in vain, and return what a user reads, which must be short."""
    with pytest.raises(SystemExit) as end:
        main(args)
    assert end.value.code == code
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("tip: ")]
    said = lines[next(i for i, line in enumerate(lines) if line.startswith("error: ")) :]
    assert len(said) == 1, said
    assert len(said[0]) < 600
    assert "Traceback" not in said[0]
    return said[0]


QUICK = ["fit", "--config=quickstart", *SMALL]
STOP = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=knn/top11"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model.C=-1"], "C must be a number > 0, got -1.0: .inf for no upper bound"),
        (["--model.kernel.gamma=-1"], "gamma must be a finite number > 0 or 'median', got -1.0"),
        (["--data.batch_size=1"], "batch_size must be at least 2"),
        (
            ["--data.batch_size=null"],
            "batch_size must be at least 2, since a contrast needs two images; got None",
        ),
        (["--model.backbone=null"], "backbone must be a name, a name with options, or a module, got None"),
        (
            ["--trainer.sync_batchnorm=true", "--trainer.devices=2", "--trainer.strategy=ddp"],
            "sync_batchnorm works on GPUs alone, and there are 2 processes on the CPU: set",
        ),
        (["--trainer.accumulate_grad_batches=0"], "accumulate_grad_batches must be an integer >= 1, got 0"),
        (["--trainer.val_check_interval=100"], "`val_check_interval` (100) must be less than or equal to"),
        (["--trainer.accelerator=gpux"], "invalid accelerator name"),
        pytest.param(
            ["--trainer.accelerator=gpu"],
            "error: torch finds no GPU: set --trainer.accelerator to cpu or auto, or look at the driver",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        pytest.param(
            ["--trainer.accelerator=gpu", "--trainer.devices=64"],
            "gpu",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is none"),
        ),
        (["--trainer.strategy=nope"], "invalid strategy name"),
        (["--seed_everything=-5"], "-5 is not in bounds"),
        (["--ckpt_path=best"], "is not configured to save the best model"),
        (["--ckpt_path=https://example.org/x.ckpt"], "Checkpoint file not found: https://example.org/x.ckpt"),
        (["--trainer.callbacks+=OnlineKNN"], "expected one readout of a kind, got several of KNN"),
        (["--trainer.logger.save_dir=/dev/null/x"], "Not a directory: /dev/null/x"),
        (["--data.batch_size=64"], "there are only 16 training images; set batch_size to 16 or less"),
        (["--model.backbone=resnet51"], "Unknown backbone 'resnet51'. Did you mean 'resnet50'"),
        (
            ['--model.schedule={"kernel.gama": {"1": 2}}'],
            "'kernel.gama' is no option of this loss; there are",
        ),
        (['--model.schedule={"C": {"9": -2}}'], "C must be a number > 0"),
        (
            ["--model.warmup=1"],
            "warmup must be a finite number in [0, 1), got 1.0: it is a share of all steps",
        ),
        (["--trainer.max_epochs=-1"], "needs an end: set trainer.max_epochs or max_steps"),
        (["--ckpt_path=nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
        (
            [*STOP, "--trainer.callbacks.mode=up"],
            "trainer.callbacks: EarlyStopping: `mode` can be min, max, got up",
        ),
        pytest.param(
            ["--trainer.logger=CometLogger"],
            "trainer.logger: CometLogger: Requirement 'comet-ml",
            marks=pytest.mark.skipif(find_spec("comet_ml") is not None, reason="it is installed"),
        ),
        (["--trainer.profiler=fast"], "`profiler` parameter of `Trainer`, it can only be one of"),
        (["--config=stl11_mmcl"], "did you mean stl10_mmcl.yaml?"),
    ],
)
def test_an_option_that_cannot_work(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in complaint([*QUICK, *options], capsys, code=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model=mmcl_lightning.modules.MMCLX"], "error: model: mmcl_lightning.modules.MMCLX: module "),
        (["--model.kernel=mmcl_lightning.kernels.RBFX"], "has no attribute 'RBFX'"),
        (
            ["--model.optimizer=torch.optim.Adamm"],
            "modules.MMCL: module 'torch.optim' has no attribute 'Adamm'",
        ),
        (["--model.optimizer.lrr=1"], "torch.optim.AdamW: Option 'lrr' is not accepted; did you mean 'lr'?"),
        (["--model.optimizer.lr=big"], "torch.optim.AdamW: lr: Expected float"),
        (["--model.gama=1"], "error: model: mmcl_lightning.modules.MMCL: Option 'gama' is not accepted"),
        (["--data.batchsize=8"], "Option 'batchsize' is not accepted"),
        (["--model.C=big"], "error: model.C: mmcl_lightning.modules.MMCL: Expected float. Got value: big"),
        (["--model.kernel.gamma=big"], "kernels.RBF: Expected float or 'median'"),
        (["--model.negatives=three"], "Expected 'both' or 'one'. Got value: three"),
        (["--model.gamma=1"], "modules.MMCL: Option 'gamma' is not accepted; did you mean 'kernel.gamma'?"),
        (["--model.max_steps=1"], "Option 'max_steps' is not accepted; did you mean 'solver.max_steps'?"),
        (["--trainer.precision=bf17"], "Expected int or 'transformer-engine' or "),
        (["--trainer.precision=bf17"], " or '64' or '32' or '16' or 'bf16'. Got value: bf17"),
        (["--model.solvr=Exact"], "Option 'solvr' is not accepted; did you mean 'solver'?"),
        (["--model.bakbone=conv4"], "Option 'bakbone' is not accepted; did you mean 'backbone'?"),
        (["--trainer.max_epochz=1"], "--trainer.max_epochz=1; did you mean --trainer.max_epochs?"),
        (["--readouts.knnn.k=5"], "--readouts.knnn.k=5; did you mean --readouts.knn.k?"),
        (["--readout.knn.k=5"], "--readout.knn.k=5; did you mean --readouts.knn.k?"),
        (
            [*STOP, "--trainer.callbacks.patiense=3"],
            "Option 'patiense' is not accepted; did you mean 'patience'?",
        ),
        (STOP[:1], "callbacks.EarlyStopping: the following arguments are required: monitor"),
        (["--trainer.max_epochs=many"], "max_epochs"),
    ],
)
def test_an_option_that_does_not_exist(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in complaint([*QUICK, *options], capsys, code=2)


def test_no_or_a_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "usage: mmcl COMMAND" in capsys.readouterr().err
    assert complaint(["train"], capsys, code=2) == "error: there is no command 'train': see mmcl --help"
    assert "did you mean fit?" in complaint(["ftt"], capsys, code=2)
    assert "did you mean validate?" in complaint(["valdate"], capsys, code=2)
    assert "required: fit.data, fit.model" in complaint(["fit", "--seed_everything=1"], capsys, code=2)


FOLDER = [
    "fit",
    "--config=folder_mmcl",
    *[option for option in SMALL if not option.startswith("--data")],
    "--data.image_size=16",
    "--data.batch_size=8",
    "--trainer.max_epochs=1",
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_that_is_missing_empty_or_damaged(
    workers: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*FOLDER, f"--data.num_workers={workers}"]
    assert "nowhere does not exist; set --data.root" in complaint([*args, "--data.root=nowhere"], capsys, 1)
    (folder / "empty").mkdir()
    assert str(folder / "empty") in complaint([*args, "--data.root=empty"], capsys, 1)
    (folder / "photos").mkdir()
    for index in range(20):
        Image.fromarray(np.full((20, 20, 3), index, np.uint8)).save(folder / "photos" / f"{index:02d}.png")
    for path in (folder / "photos").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    said = complaint([*args, "--data.root=photos"], capsys, 1)
    assert said.startswith(f"error: the image {folder / 'photos'}/")
    assert said.endswith("repair or remove it; --data.on_bad_image skip goes on without it")


def test_missing_files_of_a_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("stl10_mmcl", "cifar10_mmcl", "cifar100_mmcl"):
        args = ["fit", f"--config={name}", "--data.root=nowhere", "--data.num_workers=0"]
        options = ["--model.backbone=conv4", "--model.cifar_stem=false", "--trainer.accelerator=cpu"]
        assert "--data.download true" in complaint([*args, *options], capsys, 1)


@pytest.fixture
def trained(folder: Path) -> Path:
    main([*QUICK, "--trainer.max_epochs=1"])
    return next(folder.rglob("last.ckpt"))


def test_a_list_of_callbacks_takes_no_checkpoint_away(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Lightning's own checkpoint saves after validations, and the quickstart validates every fifth epoch.
    args = [*QUICK, "--trainer.max_epochs=1"]
    main([*args, "--trainer.callbacks=Throughput"])
    assert any(path.name == "last.ckpt" for path in folder.rglob("*.ckpt"))
    main([*args, "--trainer.callbacks=[]", "--trainer.enable_checkpointing=false"])
    assert "Checkpoint:   none was saved" in capsys.readouterr().out


def test_last_is_the_newest_checkpoint_of_any_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saving = "[{class_path: ModelCheckpoint, init_args: {save_on_train_epoch_end: true}}]"
    main([*QUICK, "--trainer.max_epochs=1", f"--trainer.callbacks={saving}"])
    (kept,) = folder.rglob("*.ckpt")
    assert kept.name == "epoch=0-step=2.ckpt"
    main([*QUICK, "--trainer.max_epochs=2", "--ckpt_path=last"])
    assert "Trained 2 epochs, 4 steps." in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_validate_predict_and_test(trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["validate", *QUICK[1:], f"--ckpt_path={trained}"])
    shown = capsys.readouterr().out
    assert "val/loss" in shown
    assert "knn/top1" in shown

    assert main(["predict", *QUICK[1:], f"--ckpt_path={trained}", "--data.eval_batch_size=4"]) is None
    (path,) = folder.rglob("representations.npz")
    assert f"Wrote {path.relative_to(folder)}: h (26, 256)" in capsys.readouterr().out
    written = np.load(path)
    data = ShapesDataModule(train_size=16, test_size=10, image_size=16, num_workers=0)
    images, targets, _ = next(iter(data.predict_dataloader()))
    module = MMCL.load_from_checkpoint(trained).eval()
    with torch.no_grad():
        h = module(images)
        z = module.projection_head(h)
    np.testing.assert_allclose(written["h"], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(written["z"], z, rtol=1e-5, atol=1e-6)
    assert written["target"].tolist() == targets.tolist()
    assert written["split"].tolist() == ["train"] * 16 + ["test"] * 10
    assert written["path"].tolist() == [str(i) for i in (*range(16), *range(10))]
    assert written["class"].tolist() == [data.class_names[target] for target in targets.tolist()]
    main(["predict", *QUICK[1:], f"--ckpt_path={trained}", "--data.predict_split=test"])
    assert len(np.load(path.with_stem("representations_2"))["h"]) == 10
    assert len(np.load(path)["h"]) == 26

    args = ["test", *QUICK[1:], f"--ckpt_path={trained}"]
    assert "MMCL has no test: `validate` gives" in complaint(args, capsys, 1)


def test_the_configuration_wins_over_the_checkpoint_and_says_so(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    args = [*QUICK, f"--ckpt_path={trained}", "--trainer.max_epochs=2"]
    main([*args, "--model.C=5", "--model.kernel.gamma=0.5"])
    said = [line for line in capsys.readouterr().err.splitlines() if "which is used" in line]
    assert len(said) == 2
    assert said[0].startswith(f"model.kernel: checkpoint {trained}: ")
    assert said[1] == f"model.C: checkpoint {trained}: 100.0; configuration: 5.0, which is used"


def test_other_data_than_the_checkpoints_is_said(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*QUICK, f"--ckpt_path={trained}", "--trainer.max_epochs=2"]
    capsys.readouterr()
    changes = ["--data.seed=3", "--data.augment=worker", "--data.num_workers=1"]  # the last changes nothing
    main([*args, *changes, "--seed_everything=5"])
    said = [line for line in capsys.readouterr().err.splitlines() if "which is used" in line]
    assert said == [
        f"seed_everything: checkpoint {trained}: 0; configuration: 5, which is used",
        f"data.augment: checkpoint {trained}: device; configuration: worker, which is used",
        f"data.seed: checkpoint {trained}: 0; configuration: 3, which is used",
    ]
    (trained.parent.parent / "config.yaml").write_text("data: [")  # which stops nothing
    main([*args, "--data.seed=3"])
    assert "data.seed" not in capsys.readouterr().err
    (moved := folder / "moved.ckpt").write_bytes(trained.read_bytes())  # away from its config.yaml
    main([*QUICK, f"--ckpt_path={moved}", "--trainer.max_epochs=2", "--data.seed=3"])
    assert "data.seed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "difference"),
    [
        ("--model.optimizer.lr=0.5", "checkpoint: lr=0.003; configuration: lr=0.5"),
        (
            "--model.optimizer.weight_decay=0",
            "checkpoint: weight_decay=0.0001; configuration: weight_decay=0.0",
        ),
        ("--model.optimizer=torch.optim.SGD", "checkpoint: class=AdamW; configuration: class=SGD"),
        ("--model.warmup=0.5", "checkpoint: warmup=0.05; configuration: warmup=0.5"),
        (
            "--model.lr_schedule=constant",
            "checkpoint: lr_schedule=cosine; configuration: lr_schedule=constant",
        ),
    ],
)
def test_a_run_is_not_resumed_with_another_optimizer(
    option: str, difference: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*QUICK, f"--ckpt_path={trained}", "--trainer.max_epochs=2"]
    said = complaint([*args, option], capsys, 1)
    assert f"with the optimizer that it had, and these differ: {difference}. Give the options" in said


@pytest.mark.parametrize("logger", ["list", "false", "no name", "own config"])
def test_last_with_any_logger(logger: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [
        {"class_path": "TensorBoardLogger", "init_args": {"save_dir": "here", "name": "mine"}},
        {"class_path": "CSVLogger", "init_args": {"save_dir": "there"}},
    ]
    options = {
        "list": [f"--trainer.logger={json.dumps(loggers)}"],
        "false": ["--trainer.logger=false"],
        "no name": ["--trainer.logger.name="],
        "own config": [],
    }[logger]
    fit = [*QUICK, "--trainer.max_epochs=1", *options]
    main(fit)
    (first,) = folder.rglob("last.ckpt")
    if logger == "own config":
        main(fit)
        fit = ["fit", f"--config={first.parents[1] / 'config.yaml'}"]
    capsys.readouterr()
    main([*fit, "--ckpt_path=last"])
    captured = capsys.readouterr()
    assert f"--ckpt_path is {first.relative_to(folder)}" in captured.err.replace(f"{folder}/", "")
    assert f"Checkpoint:   {first.relative_to(folder)}" in captured.out, "nothing was left to train"
    assert "The checkpoint had as many: nothing was left to train. --trainer.max_epochs sets" in captured.out


def test_another_optimizer_keeps_nothing_of_the_old_one(folder: Path) -> None:
    options = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.5", "--trainer.max_epochs=1"]
    main([*QUICK, *options])
    group = torch.load(next(folder.rglob("last.ckpt")), weights_only=True)["optimizer_states"][0][
        "param_groups"
    ][0]
    assert group["initial_lr"] == 0.5
    assert group["weight_decay"] == 1e-4  # of the recipe, which sets it in sight


def test_an_optimizer_without_a_recipe_has_its_own_defaults(folder: Path) -> None:
    model = ["--model=mmcl_lightning.modules.MMCL", "--model.projection_head=cifar"]
    options = ["--model.optimizer=torch.optim.AdamW", "--trainer.max_epochs=1"]
    main(["fit", *model, *SMALL, *options])
    groups = torch.load(next(folder.rglob("*.ckpt")), weights_only=True)["optimizer_states"][0][
        "param_groups"
    ]
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        "backbone": 0.01,
        "backbone_no_weight_decay": 0.0,
        "projection_head": 0.01,
        "projection_head_no_weight_decay": 0.0,
    }


LOSS = ["fit", "--model=ContrastiveModule", "--model.projection_head=cifar", *SMALL, "--trainer.max_steps=1"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["HCLLoss", "tau_plus=0.05"], HCLLoss(tau_plus=0.05)),
        (["NTXentLoss", "kernel=Tanh", "kernel.gamma=2"], NTXentLoss(kernel=Tanh(gamma=2.0))),
        (
            ["MMCLLoss", "kernel=RBF", "kernel.gamma=0.5", "solver=Exact", "C=2"],
            MMCLLoss(RBF(gamma=0.5), Exact(), 2.0),
        ),
    ],
    ids=lambda part: part[0] if isinstance(part, list) else None,
)
def test_a_loss_by_its_name(options: list[str], expected: ContrastiveLoss, folder: Path) -> None:
    name, *arguments = options
    main([*LOSS, f"--model.criterion={name}", *[f"--model.criterion.{option}" for option in arguments]])
    path = next(folder.rglob("last.ckpt"))
    criterion = ContrastiveModule.load_from_checkpoint(path).criterion
    assert type(criterion) is type(expected)
    assert criterion.options() == expected.options()


@pytest.mark.parametrize(
    ("options", "expected", "code"),
    [
        (["--model.criterion=HCLLos"], "there is no class 'HCLLos'; did you mean HCLLoss?", 2),
        (["--model.criterion=HCLLoss", "--model.criterion.tau=1"], "Option 'tau' is not accepted", 2),
        (["--model.criterion=HCLLoss", "--model.criterion.tau_plus=1"], "in [0, 1), got 1.0", 1),
        (
            ["--model.criterion=HingeLoss", "--model.criterion.margin=0"],
            "margin must be a finite number > 0, got 0.0",
            1,
        ),
    ],
)
def test_a_loss_that_does_not_exist_or_cannot_work(
    options: list[str], expected: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in complaint([*LOSS, *options], capsys, code)


BASELINE_LINES = re.findall(
    r"^ +(?:# )?(criterion: .*)$", (recipe_folder() / "cifar10_baseline.yaml").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("line", BASELINE_LINES, ids=lambda line: line[24:60])
def test_every_loss_that_the_baseline_recipe_names(line: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--criterion", type=ContrastiveLoss)
    choice = yaml.safe_load(line)
    loss = parser.instantiate_classes(parser.parse_object(choice)).criterion
    assert type(loss).__name__ == choice["criterion"]["class_path"]
    given = choice["criterion"]["init_args"]
    expected = {
        name: Tanh(**value["init_args"]) if name == "kernel" else value for name, value in given.items()
    }
    assert {name: loss.options()[name] for name in given} == expected
    assert loss(*make_views(6, 4)).isfinite()


def test_the_baseline_recipe_names_every_loss() -> None:
    assert {yaml.safe_load(line)["criterion"]["class_path"] for line in BASELINE_LINES} == {
        name
        for name in losses.__all__
        if issubclass(getattr(losses, name), ContrastiveLoss) and name != "ContrastiveLoss"
    }


def test_a_class_beside_the_configuration_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
    (folder / "my_rules.py").write_text(
        "from mmcl_lightning.losses import NegativeWeights, Weights\n\n\n"
        "class Nearest(NegativeWeights):\n"
        "    def __init__(self, beta: float = 1.0):\n"
        "        self.beta = beta\n\n"
        "    def __call__(self, contrast):\n"
        "        return Weights.proportional(self.beta * contrast.similarity.detach(), contrast)\n"
    )
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "fit",
                "--config=cifar10_baseline",
                "--model.criterion=WeightedContrastiveLoss",
                "--model.criterion.weights=my_rules.Nearest",
                "--model.criterion.weights.beta=2",
                "--print_config",
            ]
        )
    assert stop.value.code == 0
    assert "class_path: my_rules.Nearest" in capsys.readouterr().out


@pytest.mark.parametrize("program", [["cli.py"], ["-m", "mmcl_lightning"]])
def test_as_a_program(program: list[str]) -> None:
    command = [sys.executable, *program, "fit", "--config=quickstart", "--print_config"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "class_path: mmcl_lightning.modules.MMCL\n" in result.stdout
    assert result.stderr == ""


def test_a_run_on_two_processes_leaves_its_record(folder: Path) -> None:
    command = [sys.executable, "-m", "mmcl_lightning", *QUICK, "--trainer.max_epochs=1"]
    command += ["--trainer.devices=2", "--trainer.strategy=ddp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (record,) = [Record.read(path) for path in folder.rglob("ledger.json")]
    assert (record.status, record.hardware["processes"]) == ("finished", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must have options such as 'trainer: {max_epochs: 10}', and has nothing"),
        ("- a", "must have options such as 'trainer: {max_epochs: 10}', and has a list"),
        (
            "a: [",
            "is no YAML: line 1, column 5: expected the node content, but found '<stream end>'",
        ),
        ("trainer:\n", "nothing stands below trainer: indent its options, or leave it out"),
        ("name: x\nvariants: {a: {}}\n", "is a study, not a configuration of one run: mmcl sweep"),
    ],
)
def test_a_file_without_options_is_named(
    text: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.yaml").write_text(text)
    said = complaint([*QUICK, "--config=mine.yaml"], capsys, 1)
    assert said.startswith("error: mine.yaml")
    assert expected in said


def test_a_schedule_sets_flags_and_counts(folder: Path) -> None:
    schedule = {"drop_at_bound": {"1": True}, "solver.max_steps": {"1": 4}, "C": {"1": 0.5}}
    main(
        [*QUICK, "--model.solver=Exact", f"--model.schedule={json.dumps(schedule)}", "--trainer.max_epochs=1"]
    )
    saved = torch.load(next(folder.rglob("last.ckpt")), weights_only=True)["hyper_parameters"]["schedule"]
    assert saved == schedule


def test_help_knows_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "usage: mmcl COMMAND" in said
    for command in ("fit", "validate", "test", "predict", "negatives", "export", "report", "sweep"):
        assert f" {command} " in said
    assert "quickstart" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "usage: mmcl COMMAND"),
        (["--version"], 0, f"mmcl {__version__}"),
        ([], 2, "usage: mmcl COMMAND"),
        (["export", "--help"], 0, "--checkpoint PATH"),
        (["report", "--help"], 0, "--reference METHOD"),
        (["sweep", "--help"], 0, "--parallel N"),
        (["transfer", "--help"], 0, "--sets NAME"),
        (["sweep", "nothing"], 1, "no configuration 'nothing'"),
        (["fit", "--config", "nothing"], 1, "no configuration 'nothing'"),
        (["predict", "--config=quikstart"], 1, "did you mean quickstart.yaml?"),
    ],
)
def test_what_needs_no_torch_imports_none(arguments: list[str], code: int, said: str) -> None:
    check = (
        "import sys\n"
        "from mmcl_lightning.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    found = {'torch', 'lightning', 'numpy', 'jsonargparse'} & sys.modules.keys()\n"
        "    assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", check, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_an_overlay_before_its_recipe_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(["fit", "--config=overlays/log", "--config=quickstart"], capsys, 2)
    assert "kernel.init_args.gamma is given before any class that has it: name the recipe first" in said


def test_our_own_warnings_are_sentences_in_a_fresh_process() -> None:
    program = (
        "import sys, warnings\n"
        "from mmcl_lightning import cli\n"
        "assert 'lightning' not in sys.modules\n"  # whose import puts back how warnings are printed
        "module = cli._load('_trainer_cli')\n"
        "warnings.warn_explicit('one of ours', UserWarning, module.__file__, 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "warning: one of ours\n" in done.stderr


def test_a_configuration_that_is_left_out_is_no_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(["fit", "--config", "--trainer.max_epochs=3"], capsys, 2)
    assert "argument -c/--config: expected one argument, such as quickstart: mmcl recipes lists" in said


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        (["fit", "--config=x"], ["fit"]),
        (["--config=x", "fit"], ["fit", "validate", "test", "predict"]),
        (None, ["fit", "validate", "test", "predict"]),
    ],
)
def test_a_command_collects_its_own_options_alone(arguments: list[str] | None, commands: list[str]) -> None:
    cli = MMCLCLI.__new__(MMCLCLI)
    cli._arguments = arguments or []
    assert list(cli.subcommands()) == commands


def test_a_class_of_another_kind_is_not_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["fit", "--model=ContrastiveModule", "--model.criterion=InfoNCELoss", *SMALL]
    assert "InfoNCELoss is of another kind than this option takes" in complaint(args, capsys, 2)


def test_a_run_as_the_checkpoint(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["validate", *QUICK[1:], f"--ckpt_path={trained.parents[1]}"])
    assert f"--ckpt_path is {trained}" in capsys.readouterr().err
    said = complaint(["validate", *QUICK[1:], "--ckpt_path=."], capsys, 1)
    assert said == "error: --ckpt_path: there is no run with a checkpoint in ."


@pytest.mark.parametrize("place", ["setup", "on_sanity_check_start", "on_train_start"])
def test_ctrl_c_before_the_first_step(place: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Readouts, place, interrupt)
    with pytest.raises(SystemExit) as end:
        main([*QUICK, "--trainer.num_sanity_val_steps=1"])
    assert end.value.code == 130
    assert not list(folder.rglob("*.ckpt"))


def test_a_metric_to_monitor_that_nobody_logs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="EarlyStopping monitors knn/top11, which .* did you mean knn/top1?"):
        main([*QUICK, *STOP, "--trainer.limit_val_batches=0"])


def test_an_error_in_somebodys_code_keeps_its_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "theirs.py").write_text(
        "from lightning.pytorch import Callback\n"
        "class Opens(Callback):\n"
        "    def on_train_batch_end(self, *args):\n"
        "        open('nowhere.txt')\n"
    )
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(FileNotFoundError, match=r"nowhere.txt"):
        main([*QUICK, "--trainer.callbacks+=theirs.Opens"])


@pytest.mark.parametrize(("hook", "kept"), [("on_train_start", False), ("on_train_batch_end", True)])
def test_a_run_that_never_trains_leaves_no_folder(
    hook: str, kept: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / f"fails_{hook}.py").write_text(
        "from lightning.pytorch import Callback\n"
        "class Fails(Callback):\n"
        f"    def {hook}(self, *args):\n"
        "        raise RuntimeError('no disk')\n"
    )
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(RuntimeError, match="no disk"):
        main([*QUICK, f"--trainer.callbacks+=fails_{hook}.Fails"])
    found = {path.name for path in folder.rglob("version_0/*")}
    assert {"config.yaml", "ledger.json", "checkpoints"} <= found if kept else found == set()
    assert len(list(folder.rglob("version_*"))) == kept


def test_predict_and_validate_write_no_configuration(folder: Path) -> None:
    main(["predict", *QUICK[1:]])
    assert (folder / "runs" / "representations.npz").is_file()
    assert not list(folder.rglob("version_*"))
    main(["validate", *QUICK[1:]])
    assert not list(folder.rglob("config.yaml"))


def test_our_warnings_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    filter_warnings()
    ours = str(Path(_messages.__file__).with_name("kernels.py"))
    assert warnings.formatwarning("z has collapsed", UserWarning, ours, 3) == "warning: z has collapsed\n"
    assert warnings.formatwarning("no", UserWarning, "theirs.py", 3) == "theirs.py:3: no\n"


def test_an_option_that_a_class_fixes_itself_is_not_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint([*QUICK, "--model.criterion=NTXentLoss"], capsys, 2)
    assert said.endswith("Option 'criterion' is not accepted")
