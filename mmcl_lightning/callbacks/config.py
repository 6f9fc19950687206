"""The configuration of a run, written when the run really begins."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

__all__ = ["SaveConfigAtStart"]


class SaveConfigAtStart(SaveConfigCallback):
    """Lightning's SaveConfigCallback, but for what never trains.

    ``validate`` and ``predict`` write no configuration. A fit that ends before its first step leaves none:
    its logger made one for the options alone.
    """

    unused: Path | None = None
    """The folder of the run, where it is new and holds nothing of a training."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write nothing yet."""

    def watch(self, trainer: Trainer) -> None:
        """Note whether the logger's folder will be a new one; Lightning makes it before any hook of a fit.

        Args:
            trainer: A trainer that is about to fit.
        """
        folder = getattr(trainer.logger, "log_dir", None)
        new = trainer.is_global_zero and folder is not None and not Path(folder).exists()
        self.unused = Path(str(folder)) if new else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the configuration."""
        super().setup(trainer, pl_module, "fit")

    def on_train_batch_start(self, *args: Any) -> None:
        """Keep the folder from now on."""
        self.unused = None

    def remove_unused(self) -> None:
        """Remove the folder of a run that has failed, when all have let go of it."""
        if self.unused is not None and not any(self.unused.rglob("*.ckpt")):
            shutil.rmtree(self.unused, ignore_errors=True)
