"""Pretraining by a contrastive loss between two views of each item."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from torch import Tensor, nn

from mmcl_lightning._lightning import callbacks_of
from mmcl_lightning._specs import from_spec
from mmcl_lightning.callbacks.svm import SVMSolverCallback, solves_duals
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import ContrastiveLoss
from mmcl_lightning.modules.pretraining import PretrainingModule

__all__ = ["ContrastiveModule"]


class ContrastiveModule(PretrainingModule):
    """Pretrain a backbone by a contrastive loss between two views of each item.

    Both views pass the backbone in one forward, so batch norm sees them together.

    Args:
        criterion: Loss, called as ``criterion(z0, z1)`` on un-normalised projections ``(B, D)``: any of
            :mod:`mmcl_lightning.losses`; in YAML a name or a ``class_path`` with ``init_args``.
        backbone: A name or a module; see :class:`PretrainingModule`.
        schedule: Options of the loss by epoch, counted from 1, each in force from that epoch on, e.g.
            ``{"temperature": {1: 0.5, 50: 0.1}}``; see :meth:`ContrastiveLoss.set_option`.
        log_histogram: Where the loss solves SVMs, write the histogram of alpha at the end of every epoch.
        **kwargs: Head and optimisation: see :class:`PretrainingModule`.

    Logs:
        As :class:`PretrainingModule`. Where the loss solves SVMs, or has a schedule, what
        :class:`~mmcl_lightning.callbacks.SVMSolverCallback` writes.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        criterion: ContrastiveLoss,
        backbone: str | nn.Module | dict[str, Any] = "resnet50",
        schedule: dict[str, dict[int, bool | int | float]] | None = None,
        log_histogram: bool = True,
        **kwargs: Any,
    ):
        super().__init__(backbone=backbone, **kwargs)
        self.criterion = from_spec(criterion, ContrastiveLoss, "criterion")
        self._loss_callback = SVMSolverCallback(schedule=schedule, log_histogram=log_histogram)
        if schedule:
            if not isinstance(self.criterion, ContrastiveLoss):
                raise ConfigError(f"a schedule needs a ContrastiveLoss, got {type(self.criterion).__name__}")
            self._loss_callback.check(self.criterion)

    def configure_callbacks(self) -> list[Callback]:
        """Bring the callback that logs, schedules and guards the loss, unless the trainer has one."""
        if not (self._loss_callback.schedule or solves_duals(self.criterion)):
            return []
        own = [callback for callback in callbacks_of(self) if isinstance(callback, SVMSolverCallback)]
        if any(callback is not self._loss_callback for callback in own):
            if self._loss_callback.schedule:
                raise ConfigError("both the module and a SVMSolverCallback have a schedule: keep one")
            return []
        return [self._loss_callback]

    def loss_of_views(self, views: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the loss of two views, and h of both."""
        h, (z0, z1) = self.project(views)
        loss: Tensor = self.criterion(z0, z1)
        return loss, h
