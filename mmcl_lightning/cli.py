"""The command line.

``python cli.py fit --config quickstart.yaml``, ``mmcl fit ...`` and ``python -m mmcl_lightning fit ...`` are
the same. A recipe is found by its bare name; a YAML file can name any class by its ``class_path``, and so
can run code: use only configurations you trust.

torch and Lightning take seconds to import, so each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmcl_lightning import __version__
from mmcl_lightning._files import free_path
from mmcl_lightning._help import command_page, overview
from mmcl_lightning._messages import filter_warnings, plain_message
from mmcl_lightning._next import say_next
from mmcl_lightning._text import say
from mmcl_lightning.recipes import layers, recipe_names
from mmcl_lightning.studies import command

__all__ = ["main"]


def export(arguments: list[str]) -> None:
    """Run ``mmcl export``.

    Args:
        arguments: What stands after ``export`` on the command line.
    """
    parser = argparse.ArgumentParser(
        prog="mmcl export",
        description="Write the backbone of a checkpoint alone, and compare what was written with it.",
    )
    formats = ("torchvision", "timm", "safetensors", "onnx", "huggingface")
    parser.add_argument("--checkpoint", required=True, metavar="PATH", help="checkpoint of a run")
    parser.add_argument("--out", metavar="PATH", help="file to write (backbone.pt, or as the format has it)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file of that name")
    parser.add_argument("--format", choices=formats, default=formats[0], help="(torchvision)")
    parser.add_argument("--backbone", metavar="NAME", help="the network, where the checkpoint does not say")
    options = parser.parse_args(arguments)
    export_backbone = _load("modules.export").export_backbone
    usual = _load("modules.formats").FORMATS[options.format].default
    out = options.out or str(usual if options.overwrite else free_path(None, usual))
    chosen = options.checkpoint, out, options.format, options.backbone
    say(export_backbone(*chosen, overwrite=options.overwrite))
    say_next("export" if options.format in formats[:3] else "export, another library's", file=out)


def _later(module: str, name: str) -> Callable[[list[str]], None]:
    """Return a command that is imported when it runs."""

    def run(arguments: list[str]) -> None:
        getattr(_load(module), name)(arguments)

    return run


def _load(module: str) -> Any:
    """Import a module of this package; Lightning, which it may bring, puts back how warnings are printed."""
    loaded = importlib.import_module(f"mmcl_lightning.{module}")
    filter_warnings()
    return loaded


class Tool(NamedTuple):
    """A command that is no method of the trainer."""

    run: Callable[[list[str]], None]
    """Called with the arguments after its name."""
    purpose: str


#: The methods of the trainer.
COMMANDS = {
    "fit": "train, from a recipe and options that differ from it",
    "validate": "loss and readouts of a checkpoint on held-out images",
    "test": "accuracy of an evaluation's checkpoint",
    "predict": "write the representations of images",
}
#: All others.
TOOLS = {
    "check-data": Tool(
        _later("_check_data", "check_data"), "find damaged, empty, doubled and odd pictures of a folder"
    ),
    "embed": Tool(_later("_embed", "embed"), "write the representations of a folder of images"),
    "export": Tool(export, "write a backbone's weights alone"),
    "flow": Tool(_later("_flow", "flow"), "write the optical flow of videos"),
    "map": Tool(
        _later("representations.command", "map_representations"), "draw representations as points of a plane"
    ),
    "negatives": Tool(_later("_trainer_cli", "negatives"), "draw which negatives count"),
    "neighbours": Tool(
        _later("neighbours.command", "neighbours"),
        "find images that a network takes for alike, and near duplicates",
    ),
    "recipes": Tool(_later("_recipe_list", "recipes"), "list the recipes, their data and their cost"),
    "report": Tool(command.report, "tables and plots of runs"),
    "shards": Tool(_later("_shards", "shards"), "write a folder of images as shards to stream from"),
    "sweep": Tool(command.sweep, "run a study"),
    "transfer": Tool(_later("studies.transfer", "transfer"), "judge a backbone on the paper's transfer sets"),
}


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments without the program's name; ``None`` takes those of the process.

    Raises:
        SystemExit: With code 1 after an error of this package, whose message is all that is printed;
            with code 2 after a wrong argument or none, 130 after Ctrl-C, 143 after
            SIGTERM, and so on: 128 + the signal.
    """
    filter_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files that are no UTF-8 are printed too
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if args is None else args
    if str(Path.cwd()) not in sys.path:  # a class of the user's own may lie beside the configuration
        sys.path.append(str(Path.cwd()))
    try:
        _run(given)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # as of `mmcl report runs | head`
        sys.stdout = None  # or Python would try to flush it once more
        raise SystemExit(141) from None
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):  # for which Lightning exits with 1
            raise SystemExit(130) from None
        raise
    except Exception as error:
        message = plain_message(error)
        if message is None:
            raise
        say(f"error: {message}", file=sys.stderr)
        raise SystemExit(1) from error


def _run(given: list[str]) -> None:
    """Run what the arguments name."""
    if not given or given[0] in ("-h", "--help"):
        purposes = {**COMMANDS, **{name: tool.purpose for name, tool in TOOLS.items()}}
        say(overview(purposes), file=sys.stdout if given else sys.stderr)
        raise SystemExit(0 if given else 2)
    configured = given[0] in COMMANDS or given[0] == "negatives"
    if configured and given[1:] in ([], ["-h"], ["--help"]):
        if asked := given[1:]:
            say(command_page(given[0]))
        else:
            say(f"error: {given[0]} needs a recipe\n\n{command_page(given[0])}", file=sys.stderr)
        raise SystemExit(0 if asked else 2)
    if configured and f"{given[1].removesuffix('.yaml')}.yaml" in recipe_names():
        say(f"error: give the recipe by its option: mmcl {given[0]} --config {given[1]}", file=sys.stderr)
        raise SystemExit(2)
    if given[0] == "--version":
        say(f"mmcl {__version__}")
    elif given[0] in TOOLS:
        TOOLS[given[0]].run(["--help" if part == "--help-all" else part for part in given[1:]])
    elif given[0] in COMMANDS or given[0].startswith("-"):
        for name in () if {"-h", "--help", "--help-all"} & {*given} else _configurations(given):
            layers(name)  # a wrong name is said before the seconds that the imports take
        _load("_trainer_cli").train(["--help" if part == "--help-all" else part for part in given])
    else:
        near = difflib.get_close_matches(given[0], [*COMMANDS, *TOOLS], n=1, cutoff=0.65)
        hint = f"; did you mean {near[0]}?" if near else ": see mmcl --help"
        say(f"error: there is no command {given[0]!r}{hint}", file=sys.stderr)
        raise SystemExit(2)


def _configurations(given: list[str]) -> list[str]:
    """Return what ``--config`` names."""
    pairs = [pair for pair in itertools.pairwise(given) if pair[0] in ("-c", "--config")]
    follows = [value for _, value in pairs if not value.startswith("-")]
    return follows + [part.removeprefix("--config=") for part in given if part.startswith("--config=")]
