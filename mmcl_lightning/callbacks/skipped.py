"""The callback that counts the images that were skipped."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning.distributed import gather_objects

__all__ = ["SkippedImages"]


class SkippedImages(Callback):
    """Log after every epoch how many images of a datamodule could not be read, over all processes.

    Each counts once in a run, however often it was tried, and a resumed run goes on with the count. Nothing
    is logged where such images are an error.

    Reads:
        The datamodule's ``on_bad_image`` and ``skipped_images()``, if it has them.

    Writes:
        ``data/skipped_images``, the number so far in the run, training and readouts together.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._classes: list[str] = []  # of which no training image can be read

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the count."""
        if self._gather(trainer):
            pl_module.log("data/skipped_images", float(len(self._paths)), sync_dist=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count those of the last readout."""
        self._gather(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say the count of a validation outside of a fit."""
        if trainer.state.fn == "validate" and self._gather(trainer):
            rank_zero_info("\n".join(self.summary()))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say the count."""
        if self._gather(trainer):
            rank_zero_info("\n".join(self.summary()))

    def summary(self) -> list[str]:
        """Return what is said at the end of a run."""
        if not self._paths:
            return []
        some = ", ".join(sorted(self._paths)[:3]) + (", ..." if len(self._paths) > 3 else "")
        lines = [f"Skipped:      {len(self._paths)} images that cannot be read: {some}"]
        if self._classes:
            lines.append(f"{'':<14}among them all training images of {', '.join(self._classes)}")
        return lines

    def state_dict(self) -> dict[str, Any]:
        """Return the images so far."""
        return {"paths": sorted(self._paths)} if self._paths else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up."""
        self._paths = set(state_dict["paths"])

    def _gather(self, trainer: Trainer) -> bool:
        """Bring together what the processes met, and return whether anything is skipped at all."""
        datamodule = datamodule_of(trainer)
        if getattr(datamodule, "on_bad_image", "error") != "skip":
            return False
        self._paths.update(*gather_objects(datamodule.skipped_images()))
        if hasattr(datamodule, "unread_classes"):
            self._classes = datamodule.unread_classes(self._paths)
        return True
