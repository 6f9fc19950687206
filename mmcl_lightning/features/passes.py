"""One pass over images in evaluation mode that leaves no trace in the module or the random state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.batches import clean_views
from mmcl_lightning.distributed import gather_objects, layout
from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.features._sharing import every_nth, share_batches
from mmcl_lightning.metrics import FeatureShard, gather_in_order
from mmcl_lightning.models import explained
from mmcl_lightning.views import item_count, map_tensors, mean_over_views

__all__ = ["FeaturePass", "collect_features", "encode", "evaluating", "feature_pass", "pictures_of"]

_THUMBNAIL = 32  # pixels


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule's own mode and all random states come back.

    Args:
        module: The module.
    """
    modes = {child: child.training for child in module.modules()}
    try:
        with isolate_rng(), torch.no_grad():  # a loader draws from the global generator when it starts
            module.eval()
            yield
    finally:
        for child, training in modes.items():
            child.training = training


@dataclass(eq=False)
class FeaturePass:
    """What one pass over a loader gave, of which this process holds a share.

    Attributes:
        features: ``"h"``: ``(n, F)``, ``"z"``: ``(n, D)``, ``"thumbnail"``: ``(n, C, 32, 32)``, as asked for.
        labels: ``(n,)``, int64, -1 = unlabelled.
        index: Numbers of the rows in the order of the loader ``(n,)``, int64.
        size: Rows over all processes.
        labelled: Rows with a label over all processes.
    """

    features: dict[str, Tensor]
    labels: Tensor
    index: Tensor
    size: int
    labelled: int

    def shard(self, kind: str) -> FeatureShard:
        """Return the features of one kind with their labels, for the metrics."""
        return FeatureShard(self.features[kind], self.labels, self.index)

    def evenly_spaced(self, rows: Tensor, limit: int, device: torch.device) -> Tensor:
        """Return up to ``limit`` of ``rows`` ``(n, ...)``, in the loader's order, all on every process."""
        chosen = self.index % every_nth(self.size, limit) == 0
        return gather_in_order(rows[chosen].to(device), self.index[chosen].to(device))

    def labelled_rows(self, kind: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return features ``(n, F)`` of one kind in float32 and labels ``(n,)``, all on every process."""
        rows = self.evenly_spaced(self.features[kind].float(), self.size, device)
        labels = self.evenly_spaced(self.labels, self.size, device)
        return rows[labels >= 0], labels[labels >= 0]


def feature_pass(
    trainer: Trainer,
    module: LightningModule,
    loader: Iterable[Any],
    kinds: Iterable[str] = ("h",),
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    limit: int | None = None,
) -> FeaturePass:
    """Run this process's share of a loader through the module, in the precision of the training.

    Every process has to call it, with the same arguments; see :func:`share_batches` for who gets what.

    Args:
        trainer: The running trainer, for its precision.
        module: Its ``forward`` gives h; for ``"z"`` its ``projection_head`` gives z.
        loader: Batches as :func:`~mmcl_lightning.batches.clean_views` takes them.
        kinds: Which of ``"h"``, ``"z"``, ``"thumbnail"``.
        device: Where to keep the features; None for the module's device.
        dtype: How to keep them.
        limit: About how many images to take, evenly spaced; None for all.

    Raises:
        ConfigError: If ``kinds`` has ``"z"`` and the module has no ``projection_head``.
        DataError: If the loader is empty on every process.
        ShapeError: If the module gives anything but one row of features per image.
    """
    kinds = sorted(kinds)
    _check_head(module, kinds)
    device = module.device if device is None else device
    stores: dict[str, _Rows] = {}
    labels, counts = [torch.empty(0, dtype=torch.int64)], []
    with evaluating(module):
        batches, capacity = share_batches(loader, limit)
        for batch in batches:
            views, targets = clean_views(batch)
            for kind, rows in encode(trainer, module, views, kinds).items():
                if kind not in stores:
                    stores[kind] = _Rows(capacity or len(rows), rows.shape[1:], dtype, device)
                stores[kind].add(rows)
            labels.append(targets.cpu())
            counts.append(len(targets))
    return _assemble(stores, torch.cat(labels), counts, dtype, device)


def encode(
    trainer: Trainer, module: LightningModule, views: Sequence[Any], kinds: Iterable[str]
) -> dict[str, Tensor]:
    """Return features of a batch, each ``(B, ...)``; call it within :func:`evaluating`.

    Args:
        trainer: The running trainer, for its precision.
        module: As for :func:`feature_pass`.
        views: One view of the items or several, such as ten crops of each image: h is the mean over them, and
            z the projection of that.
        kinds: Which of ``"h"``, ``"z"``, ``"thumbnail"``; there are no thumbnails of items that are no images
            ``(B, C, H, W)`` and no clips ``(B, C, T, H, W)``, of which they show the middle frame.
    """

    def ready(x: Tensor) -> Tensor:
        moved: Tensor = trainer.precision_plugin.convert_input(x).to(module.device, non_blocking=True)
        return moved

    def represent(view: Any) -> Any:
        with explained(getattr(module, "backbone", module), view):
            h: Any = module(view)
        return h

    count = item_count(views[0])
    views = [map_tensors(view, ready) for view in views]
    found = {}
    # Around the network alone: it may set another default type, in which a loader's transforms would work.
    with trainer.precision_plugin.forward_context():
        h = mean_over_views(represent, views)
        rows = _rows_of(h, count, module)
        if "h" in kinds:
            found["h"] = rows.clone() if "z" in kinds else rows  # the head may work in place
        if "z" in kinds:
            found["z"] = _rows_of(module.projection_head(h), count, module)  # type: ignore[operator]
    if "thumbnail" in kinds and (pictures := pictures_of(views[0])) is not None:
        size = (_THUMBNAIL, _THUMBNAIL)
        found["thumbnail"] = F.interpolate(pictures.float(), size, mode="bilinear", antialias=True)
    return found


def pictures_of(view: Any) -> Tensor | None:
    """Return pictures ``(B, C, H, W)`` of the items of a view, of clips the middle frame; None of others.

    Args:
        view: A view.
    """
    if not isinstance(view, Tensor) or view.ndim not in (4, 5):
        return None
    return view if view.ndim == 4 else view[:, :, view.shape[2] // 2]


def collect_features(
    trainer: Trainer, module: LightningModule, loader: Iterable[Any], feature: str = "h"
) -> tuple[Tensor, Tensor]:
    """Run every batch of a loader through the module, in the precision of the training.

    With several processes each runs all of the loader that it is given.

    Args:
        trainer: The running trainer, for its precision.
        module: Its ``forward`` gives h; for ``feature="z"`` its ``projection_head`` gives z.
        loader: As for :func:`feature_pass`.
        feature: ``"h"`` or ``"z"``.

    Returns:
        Features ``(N, F)`` in float32 on the module's device, and labels ``(N,)`` there, -1 = unlabelled.

    Raises:
        ConfigError: If ``feature`` is ``"z"`` and the module has no ``projection_head``.
        DataError: If the loader is empty.
    """
    _check_head(module, [feature])
    features, labels = [], []
    with evaluating(module):
        for batch in loader:
            views, targets = clean_views(batch)
            features.append(encode(trainer, module, views, [feature])[feature].float())
            labels.append(targets.to(module.device, non_blocking=True))
    if not features:
        raise _nothing()
    return torch.cat(features), torch.cat(labels)


class _Rows:
    """Rows that arrive batch by batch, in one array: joining batches at the end would take memory twice."""

    def __init__(
        self, capacity: int, shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.empty(capacity, *shape, dtype=dtype, device=device)
        self.count = 0

    def add(self, rows: Tensor) -> None:
        stop = self.count + len(rows)
        if stop > len(self.data):  # their number was not known
            data = self.data.new_empty(max(stop, 2 * len(self.data)), *self.data.shape[1:])
            data[: self.count] = self.data[: self.count]
            self.data = data
        self.data[self.count : stop] = rows
        if self.data.dtype != rows.dtype and self.data.dtype.itemsize < 4:
            _check_kept(rows, self.data[self.count : stop])
        self.count = stop

    @property
    def rows(self) -> Tensor:
        return self.data[: self.count]


def _assemble(
    stores: dict[str, _Rows], labels: Tensor, counts: list[int], dtype: torch.dtype, device: torch.device
) -> FeaturePass:
    """Find out what the other processes have, and number the rows as one process would."""
    where = layout()
    shapes = {kind: store.data.shape[1:] for kind, store in stores.items()}
    found = gather_objects((counts, int((labels >= 0).sum()), shapes))
    turns = max(len(theirs) for theirs, _, _ in found)
    sizes = torch.zeros(turns, where.world_size, dtype=torch.int64)  # batch i of rank r is number i * W + r
    for rank, (theirs, _, _) in enumerate(found):
        sizes[: len(theirs), rank] = torch.tensor(theirs, dtype=torch.int64)
    if not int(sizes.sum()):
        raise _nothing()
    starts = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)[:, where.rank].tolist()
    index = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=False)]
    # A process without a batch still needs arrays of the right shape.
    shapes = {kind: shape for _, _, theirs in found for kind, shape in theirs.items()}
    features = {
        kind: stores[kind].rows if kind in stores else torch.empty(0, *shape, dtype=dtype, device=device)
        for kind, shape in shapes.items()
    }
    positions = torch.cat([torch.empty(0, dtype=torch.int64), *index])
    return FeaturePass(
        features,
        labels.to(device),
        positions.to(device),
        int(sizes.sum()),
        sum(labelled for _, labelled, _ in found),
    )


def _check_kept(rows: Tensor, kept: Tensor) -> None:
    """Refuse rows that halves do not hold, such as those of an untrained network of videos."""
    lost = int(((kept == 0).all(1) & (rows != 0).any(1)).sum()) if rows.ndim == 2 else 0
    if lost:
        raise NumericalError(
            f"{lost} of {len(rows)} rows of features are zeros in {kept.dtype}: their largest entry is "
            f"{float(rows.abs().max()):.1g}; set readouts.bank_dtype to float32"
        )


def _rows_of(features: Tensor, count: int, module: LightningModule) -> Tensor:
    if not isinstance(features, Tensor):
        raise ShapeError(
            f"Expected features ({count}, F) from {type(module).__name__}, got {type(features).__name__}: "
            "its forward must return one tensor, a vector per image"
        )
    if features.ndim > 2 and features.shape[2:].numel() == 1:  # pooled, but not flattened
        features = features.flatten(1)
    if features.ndim != 2 or len(features) != count:
        raise ShapeError(
            f"Expected features ({count}, F) of {count} images from {type(module).__name__}, got "
            f"{tuple(features.shape)}: its forward must give one vector per image"
        )
    return features


def _check_head(module: LightningModule, kinds: Iterable[str]) -> None:
    if "z" in kinds and getattr(module, "projection_head", None) is None:
        raise ConfigError(
            f"feature='z' needs a module with a projection_head; {type(module).__name__} has none"
        )


def _nothing() -> DataError:
    return DataError("the loader gave no batch: the data set is empty, or smaller than its drop_last batch")
