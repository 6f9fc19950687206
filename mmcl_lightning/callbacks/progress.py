"""Progress bars that show what one looks at during a run, in a line of 80 columns."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._lightning import datamodule_of, is_training_done, rich_is_installed

__all__ = ["EpochLines", "RichBar", "TextBar", "brings_a_bar", "progress_bar"]

#: Logged metrics, and what the bar calls them.
_SHOWN = {"train/loss": "loss", "knn/top1": "k-NN", "val/top1": "top-1"}


class _RunMetrics:
    """Loss, accuracies, images per second and the time left of the whole run, in words."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None  # time and step of this session's first batch
        self._shown: dict[str, Any] = {}

    def start(self, trainer: Trainer) -> None:
        """Start the clock."""
        self._start = time.monotonic(), trainer.global_step

    def read(self, trainer: Trainer) -> dict[str, Any]:
        """Return what to show; everything else is in TensorBoard."""
        return self._values(trainer) | self._times(trainer)

    def _values(self, trainer: Trainer) -> dict[str, Any]:
        """Metrics; within an epoch those of the last step that was logged, since a GPU is waited for here."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        within = trainer.training and not is_training_done(trainer)
        if self._shown and within and every and trainer.global_step % every:
            return self._shown
        logged = trainer.callback_metrics
        shown: dict[str, Any] = {
            short: f"{float(logged[name]):.3f}" for name, short in _SHOWN.items() if name in logged
        }
        if skipped := int(logged.get("data/skipped_images", 0)):
            shown["skipped"] = f"{skipped}"
        if "time/images_per_second" in logged:
            items = getattr(datamodule_of(trainer), "items", "images")
            unit = "img/s" if items == "images" else f"{items}/s"  # the line has 80 columns
            shown[unit] = f"{float(logged['time/images_per_second']):.0f}"
        self._shown = shown
        return shown

    def _times(self, trainer: Trainer) -> dict[str, Any]:
        """Time that is left of the run, if it is known."""
        if (left := self._seconds_left(trainer)) is None:
            return {}
        hours = f"{left // 3600:.0f}:" if left >= 3600 else ""
        return {"left": f"{hours}{left // 60 % 60:02.0f}:{left % 60:02.0f}"}

    def _seconds_left(self, trainer: Trainer) -> float | None:
        """Estimate from the steps of this session, readouts and validations included; None if unknown."""
        if self._start is None or not trainer.training:
            return None
        since, first = self._start
        done = trainer.global_step - first
        left = _steps_left(trainer)
        if done < 1 or left == math.inf:
            return None
        return (time.monotonic() - since) / done * max(0.0, left)


def _steps_left(trainer: Trainer) -> float:
    """Return the optimizer steps that are left; those before a resume may be of another batch size."""
    accumulated: int = trainer.accumulate_grad_batches
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs - trainer.current_epoch
    per_epoch = _rounded_up(trainer.num_training_batches, accumulated)
    within = _rounded_up(trainer.fit_loop.batch_idx + 1, accumulated)
    by_steps = math.inf if trainer.max_steps < 0 else trainer.max_steps - trainer.global_step
    return min(by_steps, epochs * per_epoch - within)


def _rounded_up(batches: float, accumulated: int) -> float:
    return batches if batches == math.inf else math.ceil(batches / accumulated)


class _AboveBar(logging.Formatter):
    """Lets a message take the line of a bar, which is drawn anew below it."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self.inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the message after what erases a line of a terminal."""
        return "\r\x1b[2K" + (self.inner or logging.Formatter()).format(record)


class _FewMetrics(ProgressBar):
    """A bar with the metrics of a run that one looks at."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._run = _RunMetrics()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        super().on_train_start(trainer, pl_module)
        self._run.start(trainer)
        for handler in _terminals():
            handler.setFormatter(_AboveBar(handler.formatter))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give messages their form back."""
        super().teardown(trainer, pl_module, stage)
        _give_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give it back here too: there is no teardown."""
        super().on_exception(trainer, pl_module, exception)
        _give_back()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the epoch's values."""
        # On every process: values are brought together when they are first read. The bar of the first process
        # would read them alone, and wait for the others, which wait for it elsewhere.
        trainer.callback_metrics  # noqa: B018
        super().on_train_epoch_end(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return what the bar shows."""
        return self._run.read(trainer)


def _terminals() -> list[logging.StreamHandler[Any]]:
    """Return the handlers by which Lightning's messages, and ours, come to a terminal."""
    handlers = logging.getLogger("lightning.pytorch").handlers
    return [part for part in handlers if isinstance(part, logging.StreamHandler) and part.stream.isatty()]


def _give_back() -> None:
    for handler in logging.getLogger("lightning.pytorch").handlers:
        if isinstance(handler.formatter, _AboveBar):
            handler.setFormatter(handler.formatter.inner)


class EpochLines(Callback):
    """A line after every epoch, where there is no terminal for a bar: loss, accuracies, speed, time left."""

    def __init__(self) -> None:
        self._run = _RunMetrics()
        self._before: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; an epoch that a resumed run goes on with has no start of its own."""
        self._run.start(trainer)
        self._before = dict(trainer.callback_metrics)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what earlier epochs have read."""
        self._before = dict(trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line, without what an earlier epoch has read."""
        logged = trainer.callback_metrics
        old = {
            short for name, short in _SHOWN.items()
            if name in logged and logged[name] is self._before.get(name)
        }  # fmt: skip
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None
        place = f"epoch {trainer.current_epoch + 1}{f' of {epochs}' if epochs else ''}"
        values = ", ".join(
            f"{name} {value}" for name, value in self._run.read(trainer).items() if name not in old
        )
        rank_zero_info(f"{place}, step {trainer.global_step}{': ' if values else ''}{values}")


class TextBar(_FewMetrics, TQDMProgressBar):
    """Lightning's plain bar with few metrics; see :func:`progress_bar`."""

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"  # the time left is that of the run, in postfix


class RichBar(_FewMetrics, RichProgressBar):
    """Lightning's rich bar with few metrics; see :func:`progress_bar`."""

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return epoch, a short bar and batches; the metrics come after them."""
        description, bar, batches, *_ = super().configure_columns(trainer)
        bar.bar_width = 8
        return [description, bar, batches]


def brings_a_bar(trainer: Trainer) -> bool:
    """Whether one of these bars or lines shows the loss."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(callback, _FewMetrics | EpochLines) for callback in callbacks)


def progress_bar() -> ProgressBar:
    """Return the rich bar where rich is installed, else the plain one."""
    return RichBar() if rich_is_installed() else TextBar()
