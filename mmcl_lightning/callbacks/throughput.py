"""How many images per second the training takes in."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from mmcl_lightning._log_number import log_number
from mmcl_lightning.batches import image_count

__all__ = ["Throughput"]


class Throughput(Callback):
    """Log the images per second of the training loop, over all processes.

    Counts images, not views, and the time of the training loop alone: readouts and validation between
    two logging steps are left out.

    Writes:
        ``time/images_per_second`` every ``log_every_n_steps``.
    """

    def __init__(self) -> None:
        self._images = 0
        self._seconds = 0.0
        self._mark: float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget another run."""
        self._images, self._seconds, self._mark = 0, 0.0, None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._mark = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; log where logging is due."""
        now = time.perf_counter()
        if self._mark is not None:
            self._seconds += now - self._mark
            self._images += image_count(batch) * trainer.world_size
        self._mark = now
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if self._images and every and trainer.global_step % every == 0:
            log_number(pl_module, "time/images_per_second", self._images / self._seconds, batch_size=1)
            self._images, self._seconds = 0, 0.0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._mark = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._mark = None
