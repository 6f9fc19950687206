"""The parser of the command line: recipes by name, short messages."""

from __future__ import annotations

from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from mmcl_lightning._messages import main_message
from mmcl_lightning.recipes import RecipeFile

__all__ = ["RecipeParser"]


class RecipeParser(LightningArgumentParser):
    """A parser whose ``--config`` also finds shipped recipes by their bare name, with short messages."""

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the action behind ``--config``."""
        if "--config" in args:
            kwargs["action"] = RecipeFile
        return super().add_argument(*args, **kwargs)

    def print_usage(self, file: Any = None) -> None:
        """Print nothing: the usage of ``fit`` fills a page and would bury the message below it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with the part of the message that says what is wrong."""
        super().error(main_message(message) if self.exit_on_error else message, ex)
