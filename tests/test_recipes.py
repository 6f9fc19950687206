"""Every shipped recipe parses, trains and resumes through the command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import write_normals, write_official, write_tu, write_voc

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.recipes import find_recipe, layers, read_recipe, recipe_folder, recipe_names
from mmcl_lightning.svm import ProjectedGradient

#: Options that make any recipe run in a second; the rest is the recipe's own. The data are rendered, unless
#: OFFICIAL has the module that reads them.
SMALL = [
    "--data=mmcl_lightning.datamodules.ShapesDataModule",
    "--data.train_size=16",
    "--data.test_size=10",
    "--data.image_size=16",
    "--data.batch_size=8",
    "--data.num_workers=0",
    "--model.backbone=conv4",
    "--model.hidden_dim=16",
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
NO_STEM = ["--model.cifar_stem=false"]
#: The same for a recipe of graphs, which reads fake ones in the official layout.
SMALL_GRAPHS = [
    *[option for option in SMALL if "--data" not in option and "backbone" not in option],
    "--data.batch_size=8",
    "--readouts.cv.folds=2",
    "--readouts.cv.inner_folds=2",
]
GRAPHS = ("mutag_mmcl.yaml", "tu_graphcl.yaml")
#: The same for a recipe that evaluates a pretrained backbone.
SMALL_EVALUATION = [
    *[option for option in SMALL if "hidden_dim" not in option],
    "--model.checkpoint=random",
    "--trainer.accumulate_grad_batches=1",
    "--data.train_transform=null",  # 224 pixels where the recipe has its own
    "--data.eval_transform=null",
]
#: The same for surface normals, which are read from a miniature.
SMALL_NORMALS = [
    *[option for option in SMALL_EVALUATION if "--data" not in option and "backbone" not in option],
    "--model.backbone=resnet18",
    "--model.codes=2",
    "--model.hidden=4",
    "--data.root=data",
    "--data.short_sides=[32]",
    "--data.eval_short_side=32",
    "--data.num_workers=0",
]
#: The same for detection.
SMALL_DETECTION = [
    *[option for option in SMALL_NORMALS if not option.startswith(("--model.codes", "--model.hidden"))],
    "--model.channels=4",
    "--model.hidden=4",
    "--model.regions=8",
    "--data.years=[2007]",
    "--data.class_names=[dog,cat]",
]
#: Data modules whose files are made in the official layout, with the options that make them small.
OFFICIAL = {
    "CIFAR10DataModule": ["--data.train_subset=16"],  # of 5 files of 4
    "CIFAR100DataModule": [],
    "STL10DataModule": [],
    "ImageFolderDataModule": [
        "--data.image_size=16",
        "--data.eval_resize=null",
        "--data.class_list=null",
        "--data.train_transform=null",
        "--data.eval_transform=null",
    ],
}
#: Those that take no step.
FITTED = ("few_shot.yaml", "folder_logistic.yaml", "transfer_linear.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data_class(name: str) -> str:
    """The class of the data module of a recipe, which may be that of its base."""
    parts = [read_recipe(layer).get("data", {}) for layer in layers(name)]
    return [part["class_path"] for part in parts if "class_path" in part][-1].rpartition(".")[2]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in recipe_names() if name not in FITTED])
def test_recipe_trains_and_resumes(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A recipe saves every so many epochs; this one more checkpoint is there after any.
    saver = {"dirpath": "saved", "filename": "{step}", "every_n_train_steps": 2, "save_top_k": -1}
    evaluates = name.endswith(("_linear.yaml", "_finetune.yaml"))
    small = SMALL_EVALUATION if evaluates else [*SMALL, *NO_STEM]
    if name in GRAPHS:
        write_tu(folder / "data", graphs=16)
        small = SMALL_GRAPHS
    if name == "normals_nyuv2.yaml":
        write_normals(folder / "data")
        small = SMALL_NORMALS
    if name == "detection_voc.yaml":
        write_voc(folder / "data")
        small = SMALL_DETECTION
    if (kind := data_class(name)) in OFFICIAL:
        write_official("tiny-imagenet" if "tiny" in name else kind, folder / "data", monkeypatch)
        small = [
            option for option in small if "--data" not in option or "batch" in option or "worker" in option
        ]
        small += ["--data.root=data", *OFFICIAL[kind]]
    options = [
        *small,
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        *[f"--trainer.callbacks.{option}={value}" for option, value in saver.items()],
    ]
    assert main(["fit", "--config", name, *options, "--trainer.max_epochs=1"]) is None
    shown = capsys.readouterr()
    assert "Trained 1 epoch, 2 steps." in shown.out
    assert f"TensorBoard:  runs/{Path(name).stem}/version_0" in shown.out
    assert "litlogger" not in shown.err + shown.out
    assert "which is used" not in shown.err
    assert "what the checkpoint holds" not in shown.err
    main(["fit", "--config", name, *options, "--trainer.max_epochs=2", "--ckpt_path=saved/step=2.ckpt"])
    assert "Trained 2 epochs, 4 steps." in capsys.readouterr().out
    assert torch.load(folder / "saved" / "step=4.ckpt", weights_only=True)["global_step"] == 4


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_is_short_and_says_what_it_is(name: str) -> None:
    text = (recipe_folder() / name).read_text()
    lines = text.splitlines()
    assert len(lines) < 60
    assert lines[0].startswith("# ")
    assert max(map(len, lines)) <= 120
    content = yaml.safe_load(text)
    assert content["trainer"]["logger"]["init_args"]["name"] == Path(name).stem
    for callback in content["trainer"].get("callbacks", []):  # or those of its base
        options = callback.get("init_args", {})
        # Lightning writes last.ckpt only when it saves another: with a monitor it would be the best one.
        assert not (options.get("save_last") and options.get("monitor"))


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_builds_as_it_is(name: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Print_config gives a configuration that gives itself: all classes and options exist."""
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", name, "--print_config"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    (folder / "printed.yaml").write_text(printed)
    with pytest.raises(SystemExit):
        main(["fit", "--config", "printed.yaml", "--print_config"])
    assert capsys.readouterr().out == printed


def test_a_recipe_is_found_by_name(folder: Path) -> None:
    shipped = str(recipe_folder() / "quickstart.yaml")
    assert find_recipe("quickstart") == find_recipe("quickstart.yaml") == shipped
    assert find_recipe(shipped) == shipped
    Path("quickstart.yaml").write_text("trainer: {max_epochs: 3}\n")
    assert find_recipe("quickstart") == "quickstart.yaml"  # the current folder comes first
    Path("stl10_mmcl").mkdir()  # a folder is no configuration
    assert find_recipe("stl10_mmcl") == str(recipe_folder() / "stl10_mmcl.yaml")


def test_a_recipe_may_be_laid_over_another(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("base: cifar10_mmcl_log\nmodel: {init_args: {reg: 3.0}}\n")
    with pytest.raises(SystemExit):
        main(["fit", "--config", "mine.yaml", "--model.C=7", "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    options = printed["model"]["init_args"]
    assert (options["reg"], options["C"], options["form"], options["backbone"]) == (3.0, 7, "log", "resnet50")
    assert printed["trainer"]["logger"]["init_args"]["save_dir"] == "runs"  # of the base of the base
    assert "base" not in printed


def test_simclr_is_one_experiment_under_two_names(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for name in ("cifar10_simclr", "cifar10_baseline"):
        with pytest.raises(SystemExit):
            main(["fit", "--config", name, "--print_config"])
        printed.append(yaml.safe_load(capsys.readouterr().out))
        del printed[-1]["trainer"]["logger"]
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("name", "C", "gamma", "step"),
    [
        ("cifar100_mmcl_reference", 100.0, {"1": 0.02, "75": 0.2, "125": 2.0}, 1e-3),
        ("imagenet_mmcl_reference", math.inf, None, "frobenius"),
        ("imagenet100_mmcl_reference", math.inf, None, "frobenius"),
    ],
)
def test_a_reference_recipe_has_the_published_loss(
    name: str, C: float, gamma: Any, step: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--config", name, "--print_config"])
    options = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    published = MMCLLoss.reference()
    assert (options["negatives"], options["assume_unit_diag"]) == ("one", True)
    assert (published.negatives, published.assume_unit_diag) == ("one", True)
    solver = ProjectedGradient.reference(step_size=step)
    assert ProjectedGradient(**options["solver"]["init_args"]) == solver
    assert (options["C"], options["reg"], options["form"], options["symmetric"]) == (C, 0.1, "paper", False)
    assert options["schedule"] == (gamma and {"kernel.gamma": gamma})
    assert options["kernel"]["init_args"]["gamma"] == (0.1 if gamma is None else 0.02)


def test_a_base_is_looked_for_beside_the_file_that_names_it() -> None:
    Path("cifar10_moco.yaml").write_text("model: {init_args: {queue_size: 77}}\n")
    mochi = str(recipe_folder() / "cifar10_mochi.yaml")
    assert layers("cifar10_mochi") == [str(recipe_folder() / "cifar10_moco.yaml"), mochi]
    Path("sub").mkdir()
    Path("sub/a.yaml").write_text("base: b\n")
    Path("sub/b.yaml").write_text("base: quickstart\n")
    assert layers("sub/a.yaml")[1:] == ["sub/b.yaml", "sub/a.yaml"]
    Path("sub/c.yaml").write_text("base: [b, overlays/exact, b]\n")
    exact = str(recipe_folder() / "overlays" / "exact.yaml")
    quick, b = str(recipe_folder() / "quickstart.yaml"), "sub/b.yaml"
    assert layers("sub/c.yaml") == [quick, b, exact, quick, b, "sub/c.yaml"]  # as of several --config
    with pytest.raises(ConfigError, match="no configuration 'aaa"):
        find_recipe("a" * 5000)


def test_a_base_that_cannot_be_is_said() -> None:
    Path("a.yaml").write_text("base: b.yaml\n")
    Path("b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ConfigError, match=r"a.yaml is laid over itself: a.yaml -> b.yaml -> a.yaml"):
        layers("a.yaml")
    Path("a.yaml").write_text("base: 3\n")
    with pytest.raises(ConfigError, match=r"a.yaml: base must be the name of a recipe or file, .* got 3"):
        layers("a.yaml")
    Path("a.yaml").write_text("base: [quickstart, {}]\n")
    with pytest.raises(ConfigError, match=r"a.yaml: base must be .* or a list of such names, got \{\}"):
        layers("a.yaml")
    Path("a.yaml").write_text("base: nowhere\n")
    with pytest.raises(ConfigError, match="no configuration 'nowhere'"):
        layers("a.yaml")


def test_an_unknown_recipe_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'stl11_mmcl'.*did you mean stl10_mmcl\.yaml\?$"):
        find_recipe("stl11_mmcl")
    with pytest.raises(ConfigError, match=r"'zzzzzz'.* nor as a recipe\. Recipes: cifar100_.*quickstart"):
        find_recipe("zzzzzz")
    with pytest.raises(ConfigError, match="no configuration 'sub/quickstart'"):
        find_recipe("sub/quickstart")
