"""The parser of the command line: recipes by name, short messages."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from mmcl_lightning._parser_messages import main_message, unknown_arguments
from mmcl_lightning._text import plain_lines, say
from mmcl_lightning.datamodules import ImageDataModule, ImageFolderDataModule, SSLDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.recipes import find_recipe, layers, read_recipe

__all__ = ["RecipeFile", "RecipeParser", "folder_options"]


class RecipeFile(ActionConfigFile):
    """``--config`` that takes a path or the name of a shipped recipe.

    A file with ``base: OTHER`` is laid over that other recipe, and so says only what differs from it. The
    other is looked for beside the file first, so that a shipped recipe always has a shipped one below it.
    """

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Find the file, read what it is laid over, then read it as usual."""
        if not isinstance(values, str):
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
            return
        path = find_recipe(values)
        for part in layers(path):
            content = {name: value for name, value in read_recipe(part).items() if name != "base"}
            text = yaml.safe_dump(content, sort_keys=False) if "base" in read_recipe(part) else part
            super().__call__(parser, cfg, text, option_string)  # type: ignore[no-untyped-call]
            if text != part:  # a text has no path; the checkpoint of a run is looked for beside its file
                cfg[self.dest][-1] = Path(part)


class PlainHelp(DefaultHelpFormatter):
    """Help of docstrings without their marks for Sphinx, which a terminal does not read."""

    def _expand_help(self, action: Any) -> str:
        return _few_subclasses(_without_marks(super()._expand_help(action)))

    def _format_text(self, text: str) -> str:
        return super()._format_text(_without_marks(text))

    def start_section(self, heading: str | None) -> None:
        """Begin the options of a class, under the first line of its docstring."""
        super().start_section(None if heading is None else _without_marks(heading))


def _without_marks(text: str) -> str:
    """Return a text with ``code`` and references such as :class:`~a.b.Name` as plain words."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"\1", text)
    return re.sub(r"``(.+?)``", r"\1", text, flags=re.DOTALL)


def _few_subclasses(text: str) -> str:
    """Return a text with the first of the classes that an option takes, and the number of the others."""

    def few(found: re.Match[str]) -> str:
        names = found[2].split(", ")
        return f"{found[1]}{', '.join(names[:4])} and {len(names) - 4} more" if len(names) > 8 else found[0]

    return re.sub(r"(known subclasses: )([^)]*)", few, text)


class RecipeParser(LightningArgumentParser):
    """A parser whose ``--config`` also finds shipped recipes by their bare name, with short messages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **({"formatter_class": PlainHelp} | kwargs))

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the action behind ``--config``."""
        if "--config" in args:
            kwargs["action"] = RecipeFile
        return super().add_argument(*args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Return a configuration as text. To check its values a second time takes longer than the rest."""
        return super().dump(*args, **(kwargs | {"skip_validation": True}))  # type: ignore[no-any-return]

    def _shown(self, name: str) -> str:
        """Return what an argument is called on the command line."""
        action = next((action for action in self._actions if action.dest == name), None)
        if action is None:
            return name
        return max(action.option_strings, key=len) if action.option_strings else str(action.metavar or name)

    def print_usage(self, file: Any = None) -> None:
        """Print nothing: the usage of ``fit`` fills a page and would bury the message below it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with the part of the message that says what is wrong."""
        if not self.exit_on_error:
            super().error(plain_lines(message), ex)
        message, command = main_message(message), self.prog.replace(" [options]", "")
        if message.startswith('Linked "data.root" '):
            message = f"the folder is given without an option: {command} FOLDER"
        absent = "the following arguments are required: "
        if message.startswith(absent):
            names = message.removeprefix(absent).split(", ")
            message = f"{absent}{', '.join(map(self._shown, names))}: see {command} --help"
        if message.lower().startswith("unrecognized arguments"):
            meant = unknown_arguments(message, self._option_string_actions)
            message = meant if meant != message else f"{message}: see {command} --help"
        if message == "argument -c/--config: expected one argument":
            message += ", such as quickstart: mmcl recipes lists what there is"
        say(f"error: {message}", file=sys.stderr)
        self.exit(2)


def folder_options(
    prog: str, description: str, command: Callable[..., Any], kept: set[str], arguments: list[str]
) -> dict[str, Any]:
    """Return what a command on a folder of pictures is called with, its data module as ``data``.

    Args:
        prog: What messages call the command.
        description: What it does.
        command: The function; its arguments but ``data`` are options.
        kept: Options of an image folder that it has as ``--data.*``.
        arguments: What stands after the command's name on the command line.

    Raises:
        ConfigError: If the folder is an empty text.
    """
    known = {
        name
        for kind in (ImageFolderDataModule, ImageDataModule, SSLDataModule)
        for name in inspect.signature(kind).parameters
    }
    parser = RecipeParser(prog=prog, description=description)
    parser.add_argument("root", metavar="FOLDER", help="the folder")
    parser.add_function_arguments(command, skip={"data"})
    parser.add_class_arguments(ImageFolderDataModule, "data", skip=known - {*kept, "kwargs", "root"})
    parser.link_arguments("root", "data.root")
    parsed = parser.parse_args(arguments)
    if not parsed.root:
        raise ConfigError("FOLDER is empty: give the folder of the pictures, . for this one")
    options: dict[str, Any] = dict(parser.instantiate_classes(parsed))
    del options["root"]
    return options
