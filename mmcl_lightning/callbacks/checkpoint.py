"""Checkpoints from which a run goes on as if it had never stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from mmcl_lightning._files import whole_file
from mmcl_lightning._lightning import (
    is_last_epoch,
    is_resumed,
    is_spawned,
    is_step_whole,
    is_training_done,
    request_stop,
    requeue,
    requeue_signal,
    takes_steps,
    validates_now,
)
from mmcl_lightning.callbacks.averaging import end_averaged_validation
from mmcl_lightning.callbacks.checkpoint_io import keep_files_whole

__all__ = ["ResumableCheckpoint"]


class ResumableCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint whose ``last.ckpt`` is where the run ended, however it ended.

    * A run that comes to its end saves ``last.ckpt`` there, also within a period of ``every_n_epochs``.
    * Ctrl-C, SIGTERM, SIGHUP (a closed terminal) and SIGUSR1 stop a run after the optimizer step, validation
      or readout at work, all processes after the same one, so that nothing is done twice or left out when it
      is resumed. A second Ctrl-C stops at once, as Lightning does: within a step, whose images batch norm
      then sees twice. Of several processes it leaves the ``last.ckpt`` of the last period.
    * After an error it saves what there is.
    * Between two periods it saves ``last.ckpt`` by time.

    The process ends with the status 128 + the signal's number: 130 after Ctrl-C, 143 after SIGTERM. Under
    SLURM the signal of the requeue asks for it too, as Lightning does. ``nohup`` keeps its meaning, and so
    does SIGUSR1 where the program handles it itself. ``ddp_spawn`` and ``ddp_fork`` leave signals to
    Lightning. A run that ended by ``max_steps`` within an epoch goes on with the next epoch.

    Args:
        save_last: Write ``last.ckpt`` besides the numbered checkpoint.
        train_time_interval: Time after which ``last.ckpt`` is written if nothing else was, besides
            ``every_n_epochs`` or ``every_n_train_steps``; None for never.
        save_on_train_epoch_end: Save after a training epoch, not after a validation, which may never come.
        save_on_exception: Save where a run breaks off.
        **kwargs: As ModelCheckpoint: ``every_n_epochs``, ``dirpath``, ``monitor`` and so on.
    """

    def __init__(
        self,
        save_last: bool | Literal["link"] | None = True,
        save_on_train_epoch_end: bool | None = True,
        save_on_exception: bool = True,
        train_time_interval: timedelta | None = timedelta(minutes=15),
        **kwargs: Any,
    ) -> None:
        super().__init__(
            save_last=save_last,
            save_on_train_epoch_end=save_on_train_epoch_end,
            save_on_exception=save_on_exception,
            **kwargs,
        )
        self._interval = train_time_interval  # not Lightning's own, which rules out a period in epochs
        self._saved_at = 0.0
        self._signal: int | None = None  # that asked to stop
        self._speaker: int | None = None  # the process that answers it: neither another one nor a worker
        self._began = False  # whether steps of this session could begin, all states restored
        self._trained = False  # whether this session took a step
        self._behind = False  # whether last.ckpt lacks an end: of a validation, an epoch, a save
        self._validating = False  # with averaged weights, where a callback has some

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the trainer write whole files."""
        keep_files_whole(trainer)
        self._began = self._trained = False
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signals; the trainer gives them back when it ends."""
        super().on_train_start(trainer, pl_module)
        self._began = takes_steps(trainer)
        self._signal, self._validating, self._saved_at = None, False, time.monotonic()
        self._speaker = os.getpid() if trainer.is_global_zero else None
        # Processes of ddp_spawn and ddp_fork end without a word to their callbacks: nothing would be saved.
        main = threading.current_thread() is threading.main_thread()
        if main and self._began and not is_spawned(trainer):
            for number in self._signals(trainer):
                signal.signal(number, self._on_signal)

    @staticmethod
    def _signals(trainer: Trainer) -> set[int]:
        """Return the signals that stop a run: not those that are ignored, or somebody else's."""
        found: set[int] = {
            signal.SIGTERM
        }  # in place of Lightning's, which talks to other processes from the handler
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as a shell's background job has it
            found.add(signal.SIGINT)
        for name in ("SIGHUP", "SIGUSR1"):  # Windows has none
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                found.add(number)
        number = requeue_signal(trainer)
        return found if number is None else found | {number}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save where it is due, and stop where the step is whole and nothing belongs to it any more."""
        self._trained = True
        if is_training_done(trainer):
            return  # the end of the epoch saves: a checkpoint of now would leave out its readouts on a resume
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if not validates_now(trainer):  # a validation would be broken off
            self._stop_if_step_is_whole(trainer)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that averaged weights are in the module's place."""
        self._validating = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that they are back."""
        self._validating = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save where it is due, and stop a run that validates within an epoch."""
        self._behind = True
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._stop_if_step_is_whole(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save where it is due, and stop unless the run has come to its end anyway."""
        self._behind = True
        super().on_train_epoch_end(trainer, pl_module)
        super().on_train_batch_end(trainer, pl_module, None, None, trainer.fit_loop.epoch_loop.batch_idx)
        if not is_last_epoch(trainer):
            self._save_or_stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the end of the run: a checkpoint of its last step may lack what came after the step."""
        if self._trained and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave a ``last.ckpt`` also where nothing was left to train, as after a kill just before it."""
        path = trainer.ckpt_path
        if self._trained or not self.save_last or not is_resumed(trainer) or not Path(str(path)).is_file():
            return
        if Path(str(path)).stem.startswith(self.CHECKPOINT_NAME_LAST):
            return
        target = self.last_model_path or self.format_checkpoint_name({}, self.CHECKPOINT_NAME_LAST)
        if trainer.is_global_zero:
            with open(str(path), "rb") as source, whole_file(target) as file:
                shutil.copyfileobj(source, file)
        self.last_model_path = self._last_checkpoint_saved = target

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save what there is, and say where."""
        if isinstance(exception, SIGTERMException) and self._signal is not None:
            exception.code = 128 + self._signal
        if isinstance(exception, KeyboardInterrupt) and trainer.world_size > 1:
            return  # the processes are at different places, and saving would wait for all of them
        # Before it began, optimizer and schedule may not be those of the checkpoint yet.
        fitting = trainer.state.fn == TrainerFn.FITTING and self._began and not trainer.sanity_checking
        if not fitting or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self._validating:  # or average and weights would be saved in each other's place
            end_averaged_validation(trainer, pl_module)
        by_signal = isinstance(exception, SIGTERMException)  # then the step is whole, and none is half done
        if self.save_on_exception and (
            (by_signal and self._trained)
            or (trainer.global_step and self._behind)
            or self._last_global_step_saved != trainer.global_step
        ):
            try:
                self._save_end(trainer)
            except OSError as error:  # what broke the run off is to be read, and may be the same full disk
                rank_zero_warn(f"this step is not saved: {error.strerror}: {error.filename}")
        if self._last_checkpoint_saved:
            rank_zero_info(
                f"Stopped at step {trainer.global_step}. To go on: --ckpt_path {self._last_checkpoint_saved}"
            )
        if by_signal and self._signal is not None and self._signal == requeue_signal(trainer):
            requeue(trainer)

    def _save_end(self, trainer: Trainer) -> None:
        metrics = self._monitor_candidates(trainer)
        if self.save_last is not True:  # a link is one to an earlier step
            self._save_checkpoint(trainer, self.format_checkpoint_name(metrics))
        self._save_last_checkpoint(trainer, metrics)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)
        # A second Ctrl-C may come between a numbered checkpoint and the last one.
        self._behind, self._saved_at = bool(self.save_last), time.monotonic()

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Any]) -> None:
        super()._save_last_checkpoint(trainer, monitor_candidates)
        self._behind = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal is not None:
            raise KeyboardInterrupt
        self._signal = self._signal or number
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        if self._speaker == os.getpid():  # past Python's buffers, which the interrupted code may write to
            again = b"; Ctrl-C again to stop within it" if number == signal.SIGINT else b""
            os.write(2, b"\nStopping after this step" + again + b".\n")

    def _stop_if_step_is_whole(self, trainer: Trainer) -> None:
        if is_step_whole(trainer):  # an epoch's end has more to do
            self._save_or_stop(trainer)

    def _save_or_stop(self, trainer: Trainer) -> None:
        """Let the trainer end its loops, if any process was asked to; save if it is time."""
        waited = timedelta(seconds=time.monotonic() - self._saved_at)
        due = self._interval is not None and waited >= self._interval
        if trainer.world_size > 1:  # clocks differ
            asked = torch.tensor([self._signal or 0, int(due)], device=trainer.strategy.root_device)
            number, due = trainer.strategy.reduce(asked, reduce_op="max").tolist()
            self._signal = number or None
        if self._signal is not None:
            request_stop(trainer)
            if threading.current_thread() is threading.main_thread():  # the checkpoint is to be whole
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        elif due and not self._should_skip_saving_checkpoint(trainer):
            metrics = self._monitor_candidates(trainer)
            if self.save_last is not True:
                self._save_topk_checkpoint(trainer, metrics)
            self._save_last_checkpoint(trainer, metrics)


def _leave_terminal() -> None:
    """Let what is still printed go nowhere: to a terminal that is gone it would be an error."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
