"""What every two-view contrastive loss has in common: checks, precision, length, gathering, anchors."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import logging
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmcl_lightning._options import arguments_of, check_choice, check_flags, is_number
from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.distributed import gather_with_gradient, layout
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.precision import (
    check_loss,
    check_rows,
    shortest_row,
    unit_length,
    warn_of_short_rows,
    watch_gradients,
    working_dtype,
)

__all__ = ["ContrastiveLoss"]

log = logging.getLogger(__name__)


class ContrastiveLoss(nn.Module, abc.ABC):
    """Base of the losses that compare two views of a batch; call it as ``loss(z0, z1)``.

    Projections come in un-normalised, in any floating dtype, also under autocast; the loss computes in
    float32 (float64 stays float64). Where a process group is up, anchors are the local images and
    candidates those of all processes. A loss of one's own implements :meth:`_terms`.

    Args:
        negatives: ``"both"`` views of every other image, 2 (G - 1) for G images, or only the view of the
            positive (``"one"``), G - 1.
        symmetric: Score each view once, 2 B anchors in a process. Otherwise view 1 is scored and view 0 is
            the positive, B anchors.
        normalize: Scale every projection to unit length first, so that similarities are cosines.
        gather: Use the images of all processes as candidates. Without a process group it does nothing.
    """

    def __init__(
        self,
        *,
        negatives: Literal["both", "one"] = "both",
        symmetric: bool = True,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__()
        check_flags(symmetric=symmetric, normalize=normalize, gather=gather)
        check_choice("negatives", negatives, ("both", "one"))
        self.negatives = negatives
        self.symmetric = symmetric
        self.normalize = normalize
        self.gather = gather
        self._announced = False
        self._short_rows_said: list[str] = []
        self._checks = DeferredChecks()  # where nobody else collects them
        self._stats: list[dict[str, Tensor]] = []  # of the last call, one entry per set of anchors

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
        with (
            self._checks.unless_waiting(z0),
            torch.autocast(device_type=z0.device.type, enabled=False),
        ):
            dtype = working_dtype(z0.dtype)
            single = (z0.to(dtype), z1.to(dtype))
            contrasts = self._contrasts(*single, shortest_row(z0.dtype))
            if not self._announced and not torch.compiler.is_compiling():
                self._announced = True
                self._announce(len(z0), contrasts[0].images)
            loss = self._loss(contrasts)
            if z0.dtype == torch.float16:
                watch_gradients(loss, single)
            check_loss(loss, self)
            warn_of_short_rows((z0, z1), self._short_rows_said)
        return loss

    def _loss(self, contrasts: list[Contrast]) -> Tensor:
        """Mean loss of the local anchors; the sets of anchors are equally large."""
        self._stats = []
        means = [self._terms(contrast).mean() for contrast in contrasts]
        return means[0] if len(means) == 1 else torch.stack(means).mean()

    @abc.abstractmethod
    def _terms(self, contrast: Contrast) -> Tensor:
        """Loss of every anchor, shape ``(R,)``."""

    def _contrasts(self, z0: Tensor, z1: Tensor, shortest: float | None = None) -> list[Contrast]:
        """Say who is told from whom: one set of anchors for each set of candidates."""
        local, everyone, first = self._prepare(z0, z1, shortest)
        images = everyone.shape[1]
        rows = torch.arange(len(z0), device=z0.device) + first
        roles = (0, 1) if self.symmetric else (0,)  # the view that is the positive
        total = len(roles) * images
        if self.negatives == "one":
            return [
                Contrast(local[1 - role], everyone[role], rows[:, None], images, rows + role * images, total)
                for role in roles
            ]
        pairs = torch.stack([rows, rows + images], dim=1)  # both views of each image among the candidates
        return [
            Contrast(
                anchors=local.flip(0).flatten(0, 1) if self.symmetric else local[1],
                candidates=everyone.flatten(0, 1),
                excluded=torch.cat([pairs if role == 0 else pairs.flip(1) for role in roles]),
                images=images,
                rows=torch.cat([rows + role * images for role in roles]),
                total_rows=total,
            )
        ]

    def _prepare(self, z0: Tensor, z1: Tensor, shortest: float | None) -> tuple[Tensor, Tensor, int]:
        """Return the views of this process, ``(2, B, D)``, those of all, and the row there of its first."""
        local = torch.stack([z0, z1])
        local = unit_length(local, shortest) if self.normalize else local
        where = layout() if self.gather else None
        if where is not None and where.world_size > 1:
            gathered = gather_with_gradient(torch.cat([local[0], local[1]], dim=1))
            everyone = torch.stack(gathered.chunk(2, dim=1))
        else:
            everyone = local
        # Checked after the gather, so that all processes stop together instead of waiting for one.
        images = everyone.shape[1]
        if images < 2:
            raise ShapeError(f"contrast needs at least 2 images per batch, got {len(z0)}: raise batch_size")
        check_rows(everyone, [("rows of view 0", images), ("rows of view 1", images)])
        first = where.rank * len(z0) if where is not None and where.world_size > 1 else 0
        return local, everyone, first

    def _announce(self, anchors: int, images: int) -> None:
        """Say once how many negatives an anchor sees."""
        log.info(
            "%s: %d images per process, %d in all, %d negatives per anchor",
            type(self).__name__,
            anchors,
            images,
            self.negatives_per_anchor(images),
        )

    @property
    def method(self) -> str:
        """What a table of results calls the loss."""
        return type(self).__name__.removesuffix("Loss")

    def negatives_per_anchor(self, images: int) -> int:
        """Number of negatives of an anchor among ``images`` images."""
        return (2 if self.negatives == "both" else 1) * (images - 1)

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """Scalars that describe the last call, by name; empty before the first."""
        return {
            name: torch.stack([stats[name] for stats in self._stats]).mean()
            for name in (self._stats[0] if self._stats else ())
        }

    def extra_repr(self) -> str:
        """Options as ``print(module)`` shows them."""
        names = inspect.signature(type(self)).parameters
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names if hasattr(self, name))

    def set_option(self, path: str, value: Any) -> None:
        """Change an option by name between steps, for schedules.

        Args:
            path: An argument of the constructor that is a number or a flag, such as ``"temperature"`` or
                ``"C"``, or a field of one that is a part, such as ``"kernel.gamma"``.
            value: The new value; checked as in the constructor.

        Raises:
            ConfigError: If there is no such option or the value is out of range; nothing is changed then.
        """
        for name, part in vars(self._with(path, value)).items():
            if not name.startswith("_") and name not in ("training", "last_duals"):  # of a run, no options
                setattr(self, name, part)

    def check_option(self, path: str, value: Any) -> None:
        """Raise :class:`ConfigError` if :meth:`set_option` would, and change nothing."""
        self._with(path, value)

    def _with(self, path: str, value: Any) -> ContrastiveLoss:
        """Return a new loss with another value of an option, which its constructor checks."""
        options = self.options()
        plain = [name for name, given in options.items() if is_number(given) or isinstance(given, bool)]
        known = [name for name in plain if name not in ("symmetric", "normalize", "gather")]
        parts = {name: part for name, part in options.items() if dataclasses.is_dataclass(part)}
        known += [f"{name}.{f.name}" for name, part in parts.items() for f in dataclasses.fields(part)]
        if path not in known:
            raise ConfigError(f"{path!r} is no option of this loss; there are {', '.join(known)}")
        part, _, name = path.rpartition(".")
        if part:
            changes = {name: value} | ({"gamma": None} if name == "sigma2" else {})  # sigma2 is an alias
            return type(self)(**(options | {part: dataclasses.replace(options[part], **changes)}))
        return type(self)(**(options | {path: value}))

    def options(self) -> dict[str, Any]:
        """Return the arguments that build this loss again, by name, read from the attributes of those names.

        Raises:
            ConfigError: If an argument of the constructor is not kept as an attribute of its name.
        """
        return arguments_of(self)


def _check_views(z0: Tensor, z1: Tensor) -> None:
    if not (isinstance(z0, Tensor) and isinstance(z1, Tensor)):
        raise ShapeError(f"views must be tensors, got {type(z0).__name__} and {type(z1).__name__}")
    if z0.ndim != 2 or z0.shape != z1.shape or z0.shape[1] == 0:
        raise ShapeError(
            f"views must both have shape (B, D) with D >= 1, got {tuple(z0.shape)} and {tuple(z1.shape)}"
        )
    if z0.dtype != z1.dtype or not z0.is_floating_point():
        raise ShapeError(f"views must share a floating dtype, got {z0.dtype} and {z1.dtype}")
