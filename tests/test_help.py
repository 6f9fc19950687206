"""The pages that fit on a screen: help of the commands, and the list of recipes."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from mmcl_lightning import _trainer_cli
from mmcl_lightning._help import command_page, overview
from mmcl_lightning._recipe_list import _FETCHED, _FOLDERS, data, head
from mmcl_lightning.cli import COMMANDS, TOOLS, main
from mmcl_lightning.negatives.command import draw_negatives
from mmcl_lightning.recipes import recipe_names

#: Commands that take a recipe.
CONFIGURED = [*COMMANDS, "negatives"]


def said(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == code
    return capsys.readouterr()


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_command_with_nothing_says_what_to_give(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = said([command, "--help"], 0, capsys)[0]
    assert page.startswith(f"usage: mmcl {command} --config RECIPE")
    assert said([command], 2, capsys)[1] == f"error: {command} needs a recipe\n\n{page}"
    assert max(map(len, page.splitlines())) <= 80
    assert page.count("\n") < 60


def test_a_recipe_without_its_option_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    message = "error: give the recipe by its option: mmcl fit --config quickstart\n"
    assert said(["fit", "quickstart"], 2, capsys)[1] == message


def test_the_page_of_all_options_is_a_command_away(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("fit", "negatives"):
        page = said([command, "--help-all"], 0, capsys)[0]
        assert "--trainer.gradient_clip_val" in page
        assert re.findall(r"``|:\w+:`", page) == []


def test_a_command_on_a_folder_has_plain_help(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(["check-data", "--help"], 0, capsys)[0]
    assert re.findall(r"``|:\w+:`", page) == []
    assert '"splits", "classes" or "flat" (all images at any depth' in " ".join(page.split())
    assert said(["check-data", "--data.root", "photos"], 2, capsys)[1] == (
        "error: the folder is given without an option: mmcl check-data FOLDER\n"
    )


def test_what_is_meant_by_an_option_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(["fit", "--config=quickstart", "--max_epochs=2"], 2, capsys)[1]
    assert message.endswith("unrecognized arguments: --max_epochs=2; did you mean --trainer.max_epochs?\n")
    message = said(["check-data"], 2, capsys)[1]
    assert message == "error: the following arguments are required: FOLDER: see mmcl check-data --help\n"


def test_of_hundreds_of_classes_help_names_some(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(["embed", "--help"], 0, capsys)[0]
    assert page.count("\n") < 250
    assert re.search(r"known subclasses: [\w., ]+ and \d+ more", " ".join(page.split()))


def test_every_option_of_the_page_is_one_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    options = yaml.safe_load(said(["fit", "--config=cifar10_mmcl", "--print_config"], 0, capsys)[0])
    for name in re.findall(r"--((?:model|data|readouts|trainer)\.[\w.]+)", command_page("fit")):
        place = options
        for part in name.split("."):
            if part == "help":
                break
            place = place.get("init_args", place) if isinstance(place, dict) else place
            assert isinstance(place, dict), name
            known = part in place or name == "model.optimizer.lr"  # of the class that a recipe chooses
            assert known, name
            place = place.get(part)


@pytest.mark.parametrize("command", CONFIGURED)
def test_the_examples_of_the_page_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^  mmcl (.*?)(?:   .*)?$", command_page(command), flags=re.MULTILINE)
    assert lines
    for line in lines:
        if "config.yaml" not in line:  # of a run
            said([*shlex.split(line), "--print_config"], 0, capsys)


def test_every_option_of_the_picture_is_on_its_page() -> None:
    page = command_page("negatives")
    given = set(inspect.signature(draw_negatives).parameters) - {"trainer", "model", "datamodule"}
    assert given - set(re.findall(r"^  --(\w+) ", page, flags=re.MULTILINE)) == {"weights_only"}


def test_the_overview_has_every_command() -> None:
    page = overview(dict.fromkeys([*COMMANDS, *TOOLS], "purpose"))
    assert [name for name in [*COMMANDS, *TOOLS] if f"  {name} " not in page] == []


def test_every_recipe_says_what_it_does_reads_and_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    heads = {name: head(name) for name in recipe_names()}
    assert [name for name, (title, cost) in heads.items() if len(title) < 9 or "not stated" in cost] == []
    assert head("stl10_mmcl") == (
        "STL-10, max-margin contrast",
        "400 epochs x 410 steps of ResNet-50 on 2 x 256 images of 32 pixels",
    )
    main(["recipes"])
    page = capsys.readouterr().out
    assert [name for name in recipe_names() if f"{name.removesuffix('.yaml')} " not in page] == []
    assert max(map(len, page.splitlines())) <= 80
    assert page.count(": here") == 0
    # Below its data, and above the next cost.
    lines = page.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  stl10_mmcl "))
    (*_, place) = [line for line in lines[:at] if not line.startswith(" ")]
    assert place == "data/stl10_binary: not here (download)"
    cost = next(number for number, line in enumerate(lines) if number > at and "cost: " in line)
    assert " ".join(line.strip() for line in lines[cost : cost + 2]) == f"cost: {head('stl10_mmcl')[1]}"
    assert lines.index("data made on the spot") > lines.index("data/images: not here") > at


def test_data_that_are_here_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert data("quickstart") == "data made on the spot"
    assert data("cifar10_mmcl_log") == "data/cifar-10-batches-py: not here (download)"  # laid over another
    assert data("folder_mmcl") == "data/images: not here"
    for folder in ("cifar-10-batches-py", "images", "MUTAG"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    assert data("cifar10_mmcl_log") == "data/cifar-10-batches-py: here"
    assert data("folder_mmcl") == "data/images: here"
    assert data("mutag_mmcl") == "data/MUTAG: here"


def test_the_folders_are_torchvisions() -> None:
    official = {f"{kind.__name__}DataModule": kind.base_folder for kind in (CIFAR10, CIFAR100, STL10)}
    assert {name: _FOLDERS[name] for name in official} == official
    assert {*official, "TUDataModule"} == _FETCHED


def test_one_recipe_whole(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "stl10_mmcl"])
    assert "class_path: mmcl_lightning.modules.MMCL" in capsys.readouterr().out
    assert "did you mean stl10_mmcl.yaml?" in said(["recipes", "stl10_mcl"], 1, capsys)[1]


@pytest.mark.parametrize(
    ("workers", "processes", "left", "said"),
    [
        (0, 1, [], False), (3, 1, [5], False), (1, 2, [3], False), (8, 1, [4], False), (4, 4, [1], True),
        (9, 1, [4], True),
    ],
)  # fmt: skip
def test_torch_leaves_a_core_to_each_loading_worker(
    workers: int,
    processes: int,
    left: list[int],
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen: list[int] = []
    monkeypatch.setattr(_trainer_cli, "available_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    caplog.set_level("INFO")
    _trainer_cli._share_cores(workers, processes, True)
    assert chosen == left
    cores = "2 cores" if processes == 4 else "8 cores"
    assert (f"{workers} workers load on {cores}; --data.num_workers sets how many" in caplog.text) == said
    _trainer_cli._share_cores(workers, processes, False)  # on a GPU
    assert chosen == left
