"""Notebooks run, and are saved as they ran: with outputs and pictures, small, without paths of machines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: nbformat.NotebookNode) -> set[str]:
    """Return what a cell wrote and drew: names of streams and types of data."""
    return {kind for output in cell.outputs for kind in output.get("data", [output.get("name", "error")])}


def texts(cell: nbformat.NotebookNode) -> str:
    """Return all that a cell gave but pictures."""
    found = [output.get("text", "") for output in cell.outputs]
    found += [output["data"].get("text/plain", "") for output in cell.outputs if "data" in output]
    return "\n".join(found)


@pytest.mark.notebook
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_and_gives_what_is_saved(name: str, tmp_path: Path) -> None:
    copied = shutil.copytree(FOLDER, tmp_path / "notebooks", ignore=shutil.ignore_patterns("runs"))
    command = [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=600", name]
    ended = subprocess.run(command, cwd=copied, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found, saved = code_cells(copied / name), code_cells(FOLDER / name)
    assert [kinds(cell) for cell in saved] == [kinds(cell) - {"stderr"} for cell in found]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_saved_as_it_ran(name: str) -> None:
    cells = code_cells(FOLDER / name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(kind.startswith("image/") for cell in cells for kind in kinds(cell))
    assert not {"stderr", "error"} & set().union(*map(kinds, cells))
    assert (FOLDER / name).stat().st_size < 400_000  # bytes
    written = "\n".join(map(texts, cells))
    assert re.findall(r"(?:^|[\s'\"=])(?:/\w+/|~/|[A-Za-z]:\\).*|file://.*", written) == []  # a path


def test_the_photos_are_few_and_their_licence_is_said() -> None:
    photos = [path for path in (FOLDER / "photos").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in photos) < 1_000_000  # bytes
    assert "CC0" in (FOLDER / "photos" / "README.md").read_text()
