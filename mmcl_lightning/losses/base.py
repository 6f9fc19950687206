"""What every two-view contrastive loss has in common: checks, precision, length and gathering."""

from __future__ import annotations

import abc
import inspect
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning._options import check_flags
from mmcl_lightning.distributed import gather_with_gradient, layout
from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError

__all__ = ["ContrastiveLoss", "Views"]

log = logging.getLogger(__name__)


class Views:
    """The projections of a batch, ready for a loss.

    Args:
        local: Projections of this process, one tensor per view, each ``(B, D)``, with gradient.
        all: Projections of all processes, one tensor per view, each ``(G, D)``, with gradient.
        first_row: Row of ``all`` at which the local rows begin.
    """

    def __init__(self, local: tuple[Tensor, Tensor], all: tuple[Tensor, Tensor], first_row: int):
        self.local, self.all, self.first_row = local, all, first_row

    @property
    def anchors(self) -> Tensor:
        """Rows of the local images among all, shape ``(B,)``."""
        return torch.arange(len(self.local[0]), device=self.local[0].device) + self.first_row


class ContrastiveLoss(nn.Module, abc.ABC):
    """Base of the losses that compare two views of a batch; call it as ``loss(z0, z1)``.

    Projections come in un-normalised, in any floating dtype, also under autocast; the loss computes in
    float32 (float64 stays float64). Where a process group is up, anchors are the local images and
    candidates those of all processes.

    Args:
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates. Without a process group it does nothing.
    """

    def __init__(self, *, normalize: bool = True, gather: bool = True):
        super().__init__()
        check_flags(normalize=normalize, gather=gather)
        self.normalize = normalize
        self.gather = gather
        self._announced = False

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        """Compute the loss of a batch.

        Args:
            z0: Projections of the first view, shape ``(B, D)`` with B >= 2.
            z1: Projections of the second view of the same images in the same order, shape ``(B, D)``.

        Returns:
            The mean over the local anchors, a scalar.

        Raises:
            ShapeError: If the views do not fit together or hold fewer than two images.
            NumericalError: If a projection is not finite.
        """
        _check_views(z0, z1)
        with torch.autocast(device_type=z0.device.type, enabled=False):
            views = self._prepare(z0, z1)
            if not self._announced:
                self._announced = True
                self._announce(views)
            loss = self._loss(views)
        if not loss.isfinite():
            raise NumericalError(f"the loss is {loss.item()} although all projections are finite: {self}")
        return loss

    @abc.abstractmethod
    def _loss(self, views: Views) -> Tensor:
        """Mean loss of the local anchors."""

    def _prepare(self, z0: Tensor, z1: Tensor) -> Views:
        dtype = torch.float64 if z0.dtype == torch.float64 else torch.float32
        local = [z.to(dtype) for z in (z0, z1)]
        if self.normalize:
            local = [_unit_length(z) for z in local]
        where = layout() if self.gather else None
        if where is not None and where.world_size > 1:
            gathered = gather_with_gradient(torch.cat(local, dim=1))
            everyone = gathered.chunk(2, dim=1)
        else:
            everyone = (local[0], local[1])
        # Checked after the gather, so that all processes stop together instead of waiting for one.
        if len(everyone[0]) < 2:
            raise ShapeError(f"contrast needs at least 2 images per batch, got {len(z0)}: raise batch_size")
        if not torch.stack([z.detach().isfinite().all() for z in everyone]).all():
            bad = [int((~z.isfinite()).any(dim=1).sum()) for z in everyone]
            raise NumericalError(
                f"projections are not finite: {bad[0]} of {len(everyone[0])} rows of view 0 and {bad[1]} of "
                "view 1. Lower the learning rate, warm up longer, or use bf16-mixed in place of 16-mixed"
            )
        first = where.rank * len(z0) if where is not None and where.world_size > 1 else 0
        return Views((local[0], local[1]), (everyone[0], everyone[1]), first)

    def _announce(self, views: Views) -> None:
        """Say once how many negatives an anchor sees."""
        log.info(
            "%s: %d anchors per process, %d images in all, %d negatives per anchor",
            type(self).__name__,
            len(views.local[0]),
            len(views.all[0]),
            self.negatives_per_anchor(len(views.all[0])),
        )

    def options(self) -> dict[str, Any]:
        """Return the arguments that build this loss again, by name, read from the attributes of those names.

        Raises:
            ConfigError: If an argument of the constructor is not kept as an attribute of its name.
        """
        names = inspect.signature(type(self)).parameters
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} does not say how it was built: keep the argument {missing[0]!r} of "
                f"its __init__ as self.{missing[0]}"
            )
        return {name: getattr(self, name) for name in names}

    @property
    @abc.abstractmethod
    def last_stats(self) -> dict[str, Tensor]:
        """Scalars that describe the last call, by name; empty before the first."""

    @abc.abstractmethod
    def negatives_per_anchor(self, images: int) -> int:
        """Number of negatives of an anchor among ``images`` images."""


def _unit_length(z: Tensor) -> Tensor:
    """Scale rows to unit length; rows of any size, since their largest entry is divided out first.

    A row of zeros stays zero and gets no gradient: it has no direction, and the gradient has no bound there.
    """
    largest = z.detach().abs().amax(dim=1, keepdim=True)
    alive = ~(largest <= torch.finfo(z.dtype).tiny ** 0.5)  # nan counts as alive, to be found out
    return F.normalize(torch.where(alive, z / torch.where(alive, largest, 1.0), 0.0), dim=1)


def _check_views(z0: Tensor, z1: Tensor) -> None:
    if not (isinstance(z0, Tensor) and isinstance(z1, Tensor)):
        raise ShapeError(f"views must be tensors, got {type(z0).__name__} and {type(z1).__name__}")
    if z0.ndim != 2 or z0.shape != z1.shape or z0.shape[1] == 0:
        raise ShapeError(
            f"views must both have shape (B, D) with D >= 1, got {tuple(z0.shape)} and {tuple(z1.shape)}"
        )
    if z0.dtype != z1.dtype or not z0.is_floating_point():
        raise ShapeError(f"views must share a floating dtype, got {z0.dtype} and {z1.dtype}")
