"""Every shipped study's runs are command lines that parse."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcl_lightning.cli import main
from mmcl_lightning.recipes import find_recipe, recipe_folder
from mmcl_lightning.studies import Study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((recipe_folder() / "ablations").glob("*.yaml"))
FORMS = sorted(set((ROOT / "benchmarks").glob("forms_*.yaml")) - {ROOT / "benchmarks" / "forms_run.yaml"})


def test_a_shipped_study_is_found_by_its_name() -> None:
    assert Path(find_recipe("ablations/kernel")) == recipe_folder() / "ablations" / "kernel.yaml"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_run_parses(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Study.load(path)
    first, last = study.variants[0], study.variants[-1]
    for variant in (first, last):  # those between differ in a value
        run = study.runs(variant, variant.tries()[0])[0]
        with pytest.raises(SystemExit) as stopped:
            main([*run.arguments, "--print_config"])
        assert stopped.value.code == 0, capsys.readouterr().err
    assert len({str(variant.options) for variant in study.variants}) == len(study.variants)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_every_method_of_the_forms_studies_parses(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # its configurations are named from there
    study = Study.load(path)
    tried = [len(variant.tries()) for variant in study.variants if variant.tune]
    assert set(tried) <= {6}  # the same for every method
    laid_over = "base:" in path.read_text()  # has the variants of another, and options of its own
    for variant in study.variants[:1] if laid_over else study.variants:
        run = (study.tuning_runs(variant) or study.runs(variant, {}))[-1]
        with pytest.raises(SystemExit) as stopped:
            main([*run.arguments, "--print_config"])
        assert stopped.value.code == 0, capsys.readouterr().err
