"""What a module needs so that a run that broke off within an epoch continues with the next batch."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule

from mmcl_lightning.errors import NumericalError

__all__ = ["ResumableModule"]


class ResumableModule(LightningModule):
    """Hands the loaders their state from the checkpoint, and never saves weights that are not finite.

    For modules whose ``configure_optimizers`` asks the trainer for the number of steps, and loaders that
    count their batches, as :class:`~mmcl_lightning.datamodules.loading.ResumableDataLoader` does.
    """

    def on_train_start(self) -> None:
        """Hand the loaders their state from the checkpoint, so that an interrupted epoch continues."""
        # Lightning does it when it sets the loaders up. configure_optimizers asks for the number of steps,
        # which sets them up before the checkpoint's loop state is read, and then nobody does.
        self.trainer.fit_loop._load_combined_loader_states()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that are not finite; let a run that broke off within a batch resume with it."""
        if not all(p.isfinite().all() for p in self.parameters()):
            cause = sys.exc_info()[1]  # set where the checkpoint is one that is saved after an error
            said = f"{cause}. " if isinstance(cause, NumericalError) else ""
            raise NumericalError(
                f"{said}The weights are not finite at step {self.global_step}: no checkpoint is written, and "
                "the ones before stay as they are"
            )
        fit = checkpoint.get("loops", {}).get("fit_loop", {})
        current = fit.get("epoch_loop.batch_progress", {}).get("current", {})
        unfinished = current.get("ready", 0) - current.get("processed", 0)
        for loader in fit.get("state_dict", {}).get("combined_loader", []):
            if unfinished and "batches" in loader:  # a loader of ours counts what it handed out
                loader["batches"] -= unfinished

    def global_batch_size(self) -> int | None:
        """Images per optimizer step, over all devices and accumulated batches; None if no loader tells."""
        size = getattr(self.trainer.train_dataloader, "batch_size", None)
        if size is None:
            return None
        return int(size) * self.trainer.world_size * self.trainer.accumulate_grad_batches
