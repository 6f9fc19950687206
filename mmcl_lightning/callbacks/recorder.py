"""The logger that keeps in memory what a run logs, for its record."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers.logger import Logger

from mmcl_lightning._lightning import pending_metrics
from mmcl_lightning.ledger import Metric

__all__ = ["Recorder", "smaller_is_better"]

#: Parts of the names of metrics that should be small.
_SMALLER = ("loss", "residual", "gap", "seconds", "alignment", "uniformity", "half_width", "degrees")


class Recorder(Logger):
    """A logger that keeps in memory what the others write."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Any = None  # the ledger, which knows the seconds
        self.trainer: Trainer | None = None
        self.metrics: dict[str, Metric] = {}

    # Where there is no other logger, Lightning asks this one where checkpoints go: where they go without any.

    @property
    def name(self) -> str:
        """Empty: it has no folder of its own."""
        return ""

    @property
    def version(self) -> str:
        """That of the logger beside it, so that a progress bar has one to show; empty without."""
        others = [] if self.trainer is None else [lg for lg in self.trainer.loggers if lg is not self]
        return str(others[0].version) if others else ""

    @property
    def save_dir(self) -> str | None:
        """Return the trainer's folder."""
        return None if self.trainer is None else self.trainer.default_root_dir

    @property
    def experiment(self) -> Any:
        """Something that takes every call and does nothing, for callbacks that write to any logger."""
        return _Nothing()

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing: the configuration is in the record anyway."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Keep every number but the epoch, which each point has."""
        for name, value in metrics.items():
            if name != "epoch":
                metric = self.metrics.setdefault(name, Metric(smaller_is_better=smaller_is_better(name)))
                metric.curve.append(self._point(value))

    def pending(self) -> dict[str, list[float]]:
        """Points of this epoch that Lightning hands to the loggers only after checkpoints are written."""
        return {name: self._point(value) for name, value in pending_metrics(self.trainer).items()}

    def _point(self, value: Any) -> list[float]:
        assert self.trainer is not None
        steps = self.trainer.global_step
        batches = self.trainer.num_training_batches / max(1, self.trainer.accumulate_grad_batches)
        if not batches or batches == float("inf"):  # of a loader without a length: epochs that are done
            progress: Any = self.trainer.fit_loop.epoch_progress
            epochs = float(progress.total.processed)
        else:
            epochs = steps / batches
        return [round(epochs, 3), steps, round(self.owner.seconds, 2), _short(value)]


class _Nothing:
    """Has every attribute, and takes every call."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


def _short(value: float) -> float:
    """Six digits: more would be noise, and fill the file."""
    return float(f"{float(value):.6g}")


def smaller_is_better(name: str) -> bool:
    """Whether a metric should be small, by its name."""
    return any(part in name for part in _SMALLER)
