"""A configuration whose aliases stand for more than a memory holds is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules.labels import sorted_names
from mmcl_lightning.errors import ConfigError, DataError
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a: {'1' * 5000}", "has a value that cannot be read"),
        ("seed_everything: 2020-99-99", "has a value that cannot be read"),
        ("trainer: {max_epochs: 1, max_epochs: 2}", "max_epochs stands twice in the part from line 1 on"),
        ("a: 1\nb: {x: 1}\na: 2\n", "a stands twice in the part from line 1 on"),
    ],
)
def test_a_value_that_cannot_be_read_and_an_option_twice_are_sentences(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_yaml(tmp_path / "x.yaml")


def test_large_numbers_of_images_are_told_apart() -> None:
    assert sorted_names(["9007199254740993", "9007199254740992", "10"]) == [
        "10", "9007199254740992", "9007199254740993"
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"'1' and '1.0' are one number"):
        sorted_names(["1", "1.0"])


def test_an_empty_folder_name_is_not_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check-data", ""])
    assert "FOLDER is empty" in capsys.readouterr().err
