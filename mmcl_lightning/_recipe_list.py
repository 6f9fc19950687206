"""The command ``mmcl recipes``: what every recipe does, the data it reads, what it costs.

All of that is read from the recipes: the first sentence of a file's head, its sentence that begins with
``Cost:``, and the options of its data.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcl_lightning._next import say_next
from mmcl_lightning._text import say
from mmcl_lightning.recipes import find_recipe, layers, read_recipe, recipe_folder, recipe_names

__all__ = ["recipes"]

#: Where the official files lie below ``root``, by data module; ``{name}`` is the name of the set.
_FOLDERS = {
    "CIFAR10DataModule": "cifar-10-batches-py",
    "CIFAR100DataModule": "cifar-100-python",
    "STL10DataModule": "stl10_binary",
    "TUDataModule": "{name}",
    "UCF101DataModule": "UCF-101",
    "VOCDetectionDataModule": "VOCdevkit",
}
#: Data modules that fetch their files with ``--data.download true``.
_FETCHED = {"CIFAR10DataModule", "CIFAR100DataModule", "STL10DataModule", "TUDataModule"}


_INDENT = 29  # columns of the names
_CLOSING = """
Of these, few_shot and transfer_linear run by mmcl test.
An evaluation judges the checkpoint of a pretraining, --model.checkpoint PATH.
All that a recipe says: mmcl recipes NAME. Data that are elsewhere: --data.root
PATH; those with (download) are fetched by --data.download true."""


def recipes(arguments: list[str]) -> None:
    """Run ``mmcl recipes``.

    Args:
        arguments: What stands after ``recipes`` on the command line.

    Raises:
        ConfigError: If there is no recipe of a name that was given.
    """
    parser = argparse.ArgumentParser(
        prog="mmcl recipes",
        description="List the recipes: what each does, the data it reads and whether it is here, its cost.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="print all that these recipes say instead")
    options = parser.parse_args(arguments)
    if options.names:
        say(
            "\n\n".join(
                Path(find_recipe(name)).read_text(encoding="utf-8").rstrip() for name in options.names
            )
        )
        return
    by_data: dict[str, list[str]] = {}
    for name in recipe_names():
        # The recipe of the package, and not a file of that name in the current folder.
        by_data.setdefault(data(str(recipe_folder() / name)), []).append(name)
    # Your own images and the quickstart last, where a terminal shows them.
    for start in ("folder_", "quickstart"):
        own = next(place for place, names in by_data.items() if any(name.startswith(start) for name in names))
        by_data[own] = by_data.pop(own)
    for place, names in by_data.items():
        say(f"{place}\n{_lines(names)}")
    say(_CLOSING)
    say_next("recipes")


def _lines(names: Sequence[str]) -> str:
    """Return names and titles of recipes on the same data, and below those of one cost that cost."""
    by_cost: dict[str, list[str]] = {}
    for name in names:
        title, cost = head(str(recipe_folder() / name))
        first, *rest = textwrap.wrap(title, 80 - _INDENT)
        named = f"  {name.removesuffix('.yaml'):<{_INDENT - 2}}{first}"
        by_cost.setdefault(cost, []).extend([named, *(" " * _INDENT + line for line in rest)])
    for cost, lines in by_cost.items():
        lines += textwrap.wrap(f"cost: {cost}", 80 - 6, initial_indent=" " * 4, subsequent_indent=" " * 10)
    return "\n".join(line for lines in by_cost.values() for line in lines)


def head(name: str) -> tuple[str, str]:
    """Return what a recipe is for and what it costs, from the comment at its head.

    Args:
        name: As for :func:`~mmcl_lightning.recipes.find_recipe`.
    """
    lines = Path(find_recipe(name)).read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    text = " ".join(line.lstrip("# ") for line in lines[:end])
    title = re.split(r"[.:] | \(", text, maxsplit=1)[0].rstrip(".")
    cost = re.search(r"Cost: (.*?)\.(?: [A-Z]|$)", text)
    return title, cost[1] if cost else "cost not stated"


def data(name: str) -> str:
    """Return the data that a recipe reads, and whether it is here.

    Args:
        name: As for :func:`~mmcl_lightning.recipes.find_recipe`.
    """
    kind, options = "", dict[str, Any]()
    for layer in layers(name):
        part = read_recipe(layer).get("data") or {}
        kind = str(part.get("class_path", kind)).rpartition(".")[2]
        options |= part.get("init_args") or {}
    root = options.get("root")
    if root is None:
        return "data made on the spot"
    place = Path(root) / _FOLDERS.get(kind, "").format(**options)
    if place.expanduser().is_dir():
        return f"{place}: here"
    return f"{place}: not here" + " (download)" * (kind in _FETCHED)
