"""A configuration whose aliases stand for more than a memory holds is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.recipes import read_yaml

LEVELS = range(1, 12)
BOMBS = {
    "lists": "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in LEVELS),
    "mappings": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{{', '.join(f'k{k}: *a{i - 1}' for k in range(9))}}}\n" for i in LEVELS),
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in LEVELS),
    "keys": "a0: &a0 [1, 1]\n"
    + "".join(f"a{i}: &a{i} {{? [{', '.join([f'*a{i - 1}'] * 9)}] : 1}}\n" for i in LEVELS),
    "itself": "a: &a [*a]\n",
    "deep": "[" * 5000,
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("command", ["fit", "sweep"])
def test_it_is_refused(
    kind: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bomb.yaml").write_text(BOMBS[kind])
    with pytest.raises(SystemExit):
        main([command, *(["--config"] if command == "fit" else []), "bomb.yaml"])
    said = capsys.readouterr().err
    assert "bomb.yaml stands for" in said or "bomb.yaml is nested too deeply" in said
    assert "Traceback" not in said


def test_aliases_of_an_ordinary_configuration_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: [1, 2]}\nb: {<<: *a, y: 3}\nc: *a\n")
    assert read_yaml(path) == {"a": {"x": [1, 2]}, "b": {"x": [1, 2], "y": 3}, "c": {"x": [1, 2]}}
    path.write_text("")
    assert read_yaml(path) is None
    path.write_text("a: *b")
    with pytest.raises(ConfigError, match="is no YAML"):
        read_yaml(path)
