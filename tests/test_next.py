"""The last line of every command: what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmcl_lightning._next import NEXT, say_next
from mmcl_lightning.cli import COMMANDS, TOOLS
from mmcl_lightning.recipes import find_recipe


def test_every_command_has_one_and_names_commands_and_recipes_that_exist() -> None:
    known = {*COMMANDS, *TOOLS}
    assert {ending.partition(",")[0] for ending in NEXT} == known
    for text in NEXT.values():
        for command in re.findall(r"^mmcl (\S+)", text):
            assert command in known
        for recipe in re.findall(r"--config ([a-z]\S+)", text):
            assert Path(find_recipe(recipe)).is_file()


def test_paths_are_short_and_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    say_next("predict", file=tmp_path / "runs" / "my file.npz")
    say_next("predict", file="../x\x1b.npz")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "next: mmcl map 'runs/my file.npz'"
    assert "\x1b" not in second
