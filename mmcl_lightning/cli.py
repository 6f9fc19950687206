"""The command line: LightningCLI around our modules and datamodules.

``python cli.py fit --config quickstart.yaml``, ``mmcl fit ...`` and ``python -m mmcl_lightning fit ...`` are
the same. A recipe is found by its bare name; a YAML file can name any class by its ``class_path``, and so
can run code: use only configurations you trust.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

from mmcl_lightning.callbacks import OnlineKNN, RepresentationWriter
from mmcl_lightning.errors import MMCLError
from mmcl_lightning.recipes import RecipeFile

__all__ = ["MMCLCLI", "main"]


class RecipeParser(LightningArgumentParser):
    """A parser whose ``--config`` also finds shipped recipes by their bare name."""

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the action behind ``--config``."""
        if "--config" in args:
            kwargs["action"] = RecipeFile
        return super().add_argument(*args, **kwargs)


class MMCLCLI(LightningCLI):
    """LightningCLI with recipes by name, plain error messages and a closing summary."""

    def _parse_ckpt_path(self) -> None:
        # Lightning would silently let the checkpoint's model options win over the configuration and the
        # command line. Here the configuration wins, and differences are said once the model is there.
        return

    def after_instantiate_classes(self) -> None:
        """Say where a checkpoint that is about to be resumed differs from the configuration."""
        path = self.config.get(self.subcommand or "", {}).get("ckpt_path") if self.subcommand else None
        if not path or not Path(path).is_file():
            return
        saved = torch.load(path, weights_only=True, map_location="cpu").get("hyper_parameters", {})
        for name, value in self.model.hparams.items():
            if not name.startswith("_") and name in saved and saved[name] != value:
                print(
                    f"model.{name} is {value} here and {saved[name]} in {path}: the configuration wins",
                    file=sys.stderr,
                )

    def after_fit(self) -> None:
        """Print where things lie and how to look at them."""
        if not self.trainer.is_global_zero:
            return
        print(f"\nTrained {self.trainer.current_epoch} epochs, {self.trainer.global_step} steps.")
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, OnlineKNN) and callback.curve:
                (_, start), (_, end) = callback.curve[0], callback.curve[-1]
                print(f"k-NN top-1:   {start:.3f} -> {end:.3f}  ({callback.described})")
        checkpoint = getattr(self.trainer.checkpoint_callback, "last_model_path", "") or getattr(
            self.trainer.checkpoint_callback, "best_model_path", ""
        )
        if checkpoint:
            print(f"Checkpoint:   {_short(checkpoint)}")
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                print(f"TensorBoard:  {_short(logger.log_dir)}")
                print(f"Open it with: tensorboard --logdir {_short(logger.root_dir)}")

    def before_predict(self) -> None:
        """Add the writer of representations, unless the configuration brings one."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, RepresentationWriter) for callback in callbacks):
            callbacks.append(RepresentationWriter())


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments without the program's name; ``None`` takes those of the process.

    Raises:
        SystemExit: With code 1 after an error of this package, whose message is all that is printed;
            with code 2 after a wrong argument.
    """
    try:
        MMCLCLI(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"default_root_dir": "runs"},
            parser_class=RecipeParser,
            args=args,
        )
    except MMCLError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _short(path: str) -> str:
    """Path relative to the current folder where it lies below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return path
