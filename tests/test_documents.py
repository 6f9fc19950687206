"""What the README and the pages of docs show has to run."""

from __future__ import annotations

import doctest
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import torch
from test_public_names import PUBLIC

from mmcl_lightning.cli import TOOLS, main
from mmcl_lightning.recipes import recipe_names

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "notebooks").glob("*.ipynb"),
]


def blocks(language: str) -> list[str]:
    texts = [page.read_text() for page in PAGES]
    return [
        block for text in texts for block in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    ]


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("\n")[-2][:40])
def test_python_of_the_pages_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code, "page", "exec", dont_inherit=True), {"__name__": "page"})


EXAMPLES = [path for path in (ROOT / "mmcl_lightning").rglob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_docstrings_run_by_themselves(path: Path) -> None:
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own = {name: getattr(module, name) for name in module.__all__}  # as after an import of what it is about
    runner = doctest.DocTestRunner()
    for examples in doctest.DocTestFinder(exclude_empty=True).find(module, globs=own):
        runner.run(examples)
    assert runner.summarize().attempted > 0
    assert runner.summarize().failed == 0


def command_lines(tools: bool) -> list[list[str]]:
    """The arguments of every call in the pages: those of the trainer, or those of the other commands."""
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    before = r"cd \S+ && |.*-e \"?\.\S* && |torchrun [^.]* |srun "
    begin = rf"^(?:{before})?(?:python cli\.py|cli\.py|mmcl|python -m mmcl_lightning) "
    lines = [re.sub(r"\$\w+", "2", line) for line in lines]  # what the shell fills in
    calls = [shlex.split(line[found.end() :]) for line in lines if (found := re.match(begin, line))]
    calls = [
        call
        for call in calls  # not with the config.yaml of a run, which is not here
        if not any(part.startswith("runs/") and part.endswith(".yaml") for part in call)
    ]
    return [call for call in calls if (call[0] in TOOLS and call[0] != "negatives") is tools]


@pytest.mark.parametrize("arguments", command_lines(tools=False), ids=" ".join)
def test_command_lines_of_the_pages_parse(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("my_svm." in argument for argument in arguments):
        monkeypatch.chdir(ROOT / "examples")
        monkeypatch.syspath_prepend(ROOT / "examples")
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert stop.value.code == 0
    assert "class_path" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", command_lines(tools=True), ids=" ".join)
def test_commands_of_the_pages_have_their_options(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in arguments if name.startswith("--") and "." not in name]
    kind = arguments[1:2] if arguments[0] == "transfer" else []
    with pytest.raises(SystemExit) as stop:
        main([arguments[0], *kind, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert [name for name in names if not re.search(rf"{name}\b", text)] == []


def test_the_reference_has_every_public_module() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    # The command line, what the losses use inside, and what others export again.
    inner = {"cli", "deferred", "recipes", "studies", "svm.solvers"}
    assert {name for name in PUBLIC if f"automodule:: mmcl_lightning.{name}\n" not in pages} == inner


def test_the_recipes_page_lists_every_recipe() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in recipe_names() if f"`{name}`" not in page] == []


def test_files_that_the_documents_point_to_exist() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
