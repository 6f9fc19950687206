"""Let what only reads end at once when it is told to: there is nothing to save."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from mmcl_lightning._lightning import takes_steps

__all__ = ["StopAtOnce"]


class StopAtOnce(Callback):
    """End a prediction, validation, test, or a fit that takes no steps, at SIGTERM, with the status 143.

    Lightning would note the signal, look at it in training alone, and end well when all the work is done.
    Ctrl-C ends them at once by itself.
    """

    def __init__(self) -> None:
        self._speaker: int | None = None  # neither another process nor a worker

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signal; the trainer gives it back when it ends."""
        self._speaker = os.getpid() if trainer.is_global_zero else None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signal, unless a training goes on, whose checkpoint has it."""
        if trainer.state.fn != TrainerFn.FITTING:
            self.on_predict_start(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signal where no optimizer takes steps after which a training could stop."""
        if not takes_steps(trainer):
            self.on_predict_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signal."""
        self.on_predict_start(trainer, pl_module)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._speaker == os.getpid():  # past Python's buffers, which the interrupted code may write to
            os.write(2, b"\nStopped: nothing is written\n")
        raise SystemExit(128 + number)
