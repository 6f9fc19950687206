"""The examples run, and are short."""

from __future__ import annotations

import importlib.util
import runpy
import warnings
from pathlib import Path

import pytest

from mmcl_lightning.cli import main

HERE = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(path.name for path in HERE.glob("*.py") if path.name != "my_svm.py")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "loss_in_lightly.py" and importlib.util.find_spec("lightly") is None:
        pytest.skip("lightly is not installed")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(HERE / name), run_name="__main__")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_kernel_and_a_solver_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    main(
        [
            "fit", "--config=quickstart", "--model.kernel=my_svm.Cauchy", "--model.kernel.width=0.5",
            "--model.solver=my_svm.Steps", "--model.solver.count=20", "--trainer.max_epochs=1",
            "--data.train_size=32", "--data.test_size=8", "--data.image_size=16", "--data.batch_size=16",
            "--data.num_workers=0", "--trainer.accelerator=cpu",
        ]
    )  # fmt: skip
    assert "Trained 1 epoch, 2 steps." in capsys.readouterr().out


def test_they_are_short() -> None:
    for path in HERE.iterdir():
        if path.suffix in (".py", ".yaml"):
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            assert len(lines) <= 40, path.name
