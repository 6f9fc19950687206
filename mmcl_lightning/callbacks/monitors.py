"""A callback that watches a metric which nobody logs does nothing, and says nothing."""

from __future__ import annotations

import difflib
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from mmcl_lightning._lightning import looks_after_validation, option_of_every_epoch

__all__ = ["MonitorCheck"]


class MonitorCheck(Callback):
    """Say after the first epoch which callbacks monitor what nothing has logged.

    Lightning's EarlyStopping and ModelCheckpoint look only after a validation, which may never come.
    """

    def __init__(self) -> None:
        self._checked = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare, once in a run."""
        if self._checked:
            return
        self._checked = True
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            name, known = getattr(callback, "monitor", None), sorted(trainer.callback_metrics)
            if name in known and looks_after_validation(trainer, callback):
                rank_zero_warn(
                    f"{type(callback).__name__} looks at {name} after a validation, which comes every "
                    f"{trainer.check_val_every_n_epoch} epochs: set --trainer.check_val_every_n_epoch 1, or "
                    f"the callback's {option_of_every_epoch(callback)} to true"
                )
            if isinstance(name, str) and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                rank_zero_warn(
                    f"{type(callback).__name__} monitors {name}, which nothing has logged so far; {hint}"
                )
