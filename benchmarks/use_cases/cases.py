"""The list of cases, and what the cases need."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from PIL import Image

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule

__all__ = [
    "CASES",
    "Case",
    "captured",
    "case",
    "command",
    "error_of",
    "fit",
    "folder",
    "picture",
    "quiet_trainer",
    "tree",
    "within",
]


@dataclass(frozen=True)
class Case:
    """One use.

    Attributes:
        group: Kind of use.
        what: The use, in words.
        expected: What the outcome has to contain.
        run: Called with an empty folder, which is the current one; returns the outcome in words.
    """

    group: str
    what: str
    expected: str
    run: Callable[[Path], str]


CASES: list[Case] = []


def case(group: str, what: str, expected: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Add a function to the list of cases."""

    def add(run: Callable[[Path], str]) -> Callable[[Path], str]:
        CASES.append(Case(group, what, expected, run))
        return run

    return add


def picture(path: Path | str, colour: Any = None, size: tuple[int, int] = (20, 16), **options: Any) -> Path:
    """Write a picture: of one colour, or of noise that its path decides."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if colour is None:
        rng = np.random.default_rng(sum(str(path).encode()))
        image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    else:
        image = Image.new("RGB", size, colour)
    image.save(path, **options)
    return path


def tree(*folders: str, each: int = 4) -> None:
    """Write some pictures into each folder."""
    for name in folders:
        for index in range(each):
            picture(f"{name}/{index}.png")


def folder(root: str = ".", **options: Any) -> ImageFolderDataModule:
    """Return the data module of a folder, for tiny runs."""
    return ImageFolderDataModule(root, **({"image_size": 16, "batch_size": 4, "num_workers": 0} | options))


def quiet_trainer(**options: Any) -> Trainer:
    """Return a trainer of one epoch that writes nothing unless told to."""
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "enable_model_summary": False, **silent, **options}
    )


def fit(module: Any, *data: Any, **options: Any) -> Trainer:
    """Train for an epoch."""
    trainer = quiet_trainer(**options)
    trainer.fit(module, *data)
    return trainer


def error_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the message of the error that a call ends in, and of what kind it is."""
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def command(*arguments: str, keep: str = "") -> str:
    """Run ``mmcl`` and return its last line, or the lines that match ``keep``.

    Args:
        *arguments: Of the command line.
        keep: A pattern.
    """
    with captured() as lines:
        try:
            main(list(arguments))
        except SystemExit as stop:
            if stop.code not in (0, None) and not keep:
                keep = "^error|: error"
    chosen = [line for line in lines() if not keep or re.search(keep, line)]
    return " / ".join(chosen if keep else chosen[-1:])


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], list[str]]]:
    """Collect the lines that are printed, warned of and logged."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            yield lambda: [
                *(" ".join(str(warning.message).split()) for warning in said),
                *(line.strip() for line in out.getvalue().splitlines() if line.strip()),
            ]
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def within(place: Path) -> Iterator[None]:
    """Make a folder the current one."""
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)
