"""The shipped recipes and how a configuration is found by its name."""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from mmcl_lightning.errors import ConfigError

__all__ = ["find_recipe", "layers", "read_recipe", "read_yaml", "recipe_folder", "recipe_names"]

_MOST_VALUES = 100_000
#: Parts of a configuration, besides options of a command.
_PARTS = ("base", "ckpt_path", "data", "model", "readouts", "seed_everything", "trainer", "weights_only")


def recipe_folder() -> Path:
    """Return the folder of the shipped recipes: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def recipe_names() -> list[str]:
    """Return the file names of the shipped recipes, sorted."""
    return sorted(path.name for path in recipe_folder().glob("*.yaml"))


def find_recipe(name: str) -> str:
    """Return the path of a configuration.

    Args:
        name: A path, or the name of a shipped recipe, study (``ablations/kernel``) or overlay
            (``overlays/ddp``), with or without ``.yaml``. A file in the current folder comes first.

    Raises:
        ConfigError: If there is neither; the message lists the recipes.
    """
    for candidate in (name, f"{name}.yaml"):
        if _is_file(Path(candidate)):
            return candidate
        shipped = recipe_folder() / candidate
        inside = not Path(candidate).is_absolute() and ".." not in Path(candidate).parts
        if inside and _is_file(shipped):
            return str(shipped)
    nested = sorted(f"{path.parent.name}/{path.name}" for path in recipe_folder().glob("*/*.yaml"))
    known = [recipe.removesuffix(".yaml") for recipe in recipe_names()]
    given = f"{name.removesuffix('.yaml')}.yaml"  # or the letters of .yaml count against it
    near = difflib.get_close_matches(given, [*recipe_names(), *nested], n=1)
    near = near or difflib.get_close_matches(Path(given).name, recipe_names(), n=1)
    raise ConfigError(
        f"no configuration {name!r}, neither as a file (looked in {Path.cwd()}) nor as a recipe"
        + (f"; did you mean {near[0]}?" if near else ".")
        + (
            f" Studies and overlays: {', '.join(nested)}"
            if "/" in name
            else ""
            if near
            else f" Recipes: {', '.join(known)}"
        )
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def layers(name: str) -> list[str]:
    """Return the files of a recipe, each after those that it is laid over.

    Args:
        name: As for :func:`find_recipe`.

    Raises:
        ConfigError: If a file is its own base, or one is missing or no configuration.
    """
    return _layers(find_recipe(name), ())


def _layers(path: str, above: tuple[str, ...]) -> list[str]:
    if os.path.abspath(path) in map(os.path.abspath, above):
        above = (*above, path)
        raise ConfigError(f"{path} is laid over itself: {' -> '.join(above)}")
    given = read_recipe(path).get("base")
    bases = given if isinstance(given, list) else [] if given is None else [given]
    found = []
    for base in bases:
        if not isinstance(base, str):
            raise ConfigError(
                f"{path}: base must be the name of a recipe or file, or a list of such names, got {base!r}"
            )
        beside = [Path(path).parent / base, Path(path).parent / f"{base}.yaml"]
        file = next((str(file) for file in beside if _is_file(file)), None)
        found += _layers(file or find_recipe(base), (*above, path))
    return [*found, path]


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML file holds.

    Args:
        path: The file.

    Raises:
        ConfigError: If it is none, or its aliases stand for so much that reading it would not end.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        values = _count(node, {}, str(path))
        if values > _MOST_VALUES:
            raise ConfigError(
                f"{path} stands for {values:.3g} values with its aliases (*name) written out, more than "
                f"{_MOST_VALUES:,}: no configuration has as many; write out what it needs"
            )
        return None if node is None else loader.construct_document(node)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no YAML text in UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {_fault(error, text)}") from error
    except ConfigError:
        raise
    except ValueError as error:  # a date that there is not, a number of more digits than Python reads
        raise ConfigError(f"{path} has a value that cannot be read: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply for a configuration") from error


def _fault(error: yaml.YAMLError, text: str) -> str:
    """Return where a text is wrong, lines and columns from 1, and how."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        return f"line {line + 1}, column {column + 1}: {error.reason}, found #x{error.character:04x}"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None or error.problem is None:
        return " ".join(str(error).split())
    mark, begun = error.problem_mark, error.context_mark
    context = "" if begun is None else f" ({error.context}, line {begun.line + 1})"
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem.removeprefix('but ')}{context}"


def _count(node: Any, known: dict[int, float], path: str) -> float:
    """Return the number of values of a YAML node with its aliases written out; of one in itself, infinity.

    Raises:
        ConfigError: If an option stands twice in one place, the first of which YAML would drop in silence.
    """
    if id(node) not in known:
        if isinstance(node, yaml.MappingNode):
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for name in (name for (_, name), count in Counter(keys).items() if count > 1 and name != "<<"):
                line = node.start_mark.line + 1
                raise ConfigError(f"{path}: {name} stands twice in the part from line {line} on: keep one")
        known[id(node)] = math.inf  # until it is counted
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_count(part, known, path) for part in parts)
    return known[id(node)]


def read_recipe(path: str) -> dict[str, Any]:
    """Return the options in a file; say of one that holds none what it is instead."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path} must have options such as 'trainer: {{max_epochs: 10}}', and has {found}")
    if "variants" in content:
        raise ConfigError(f"{path} is a study, not a configuration of one run: mmcl sweep {path}")
    for name in content:
        near = difflib.get_close_matches(str(name), _PARTS, n=1, cutoff=0.75)
        if near and name not in _PARTS:
            raise ConfigError(f"{path} has a part {name!r}, which there is not; did you mean {near[0]!r}?")
    for name in ("trainer", "model", "data", "readouts"):
        value = content.get(name, {})
        if value is None:
            raise ConfigError(f"{path}: nothing stands below {name}: indent its options, or leave it out")
        if not isinstance(value, dict) and name in ("trainer", "readouts"):
            raise ConfigError(f"{path}: below {name} stand options such as 'name: value', got {value!r}")
    return content
