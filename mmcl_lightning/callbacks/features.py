"""One pass over images in evaluation mode that leaves no trace in the module or the random state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["collect_features", "evaluating"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule's own mode and all random states come back."""
    modes = {child: child.training for child in module.modules()}
    try:
        with isolate_rng(), torch.no_grad():  # a loader draws from the global generator when it starts
            module.eval()
            yield
    finally:
        for child, training in modes.items():
            child.training = training


def collect_features(
    trainer: Trainer, module: LightningModule, loader: Iterable[Any], feature: str = "h"
) -> tuple[Tensor, Tensor]:
    """Run every batch of a loader through the module, in the precision of the training.

    Args:
        trainer: The running trainer, for its precision.
        module: Its ``forward`` gives h; for ``feature="z"`` its ``projection_head`` gives z.
        loader: Batches whose first two items are images ``(B, 3, H, W)`` and labels ``(B,)``.
        feature: ``"h"`` or ``"z"``.

    Returns:
        Features ``(N, F)`` in float32 on the module's device, and labels ``(N,)`` there, -1 = unlabelled.

    Raises:
        ConfigError: If ``feature`` is ``"z"`` and the module has no ``projection_head``.
        DataError: If the loader is empty.
    """
    head = getattr(module, "projection_head", None)
    if feature == "z" and head is None:
        raise ConfigError(
            f"feature='z' needs a module with a projection_head; {type(module).__name__} has none"
        )
    features, labels = [], []
    with evaluating(module), trainer.precision_plugin.forward_context():
        for batch in loader:
            images = trainer.precision_plugin.convert_input(batch[0])
            h = module(images.to(module.device, non_blocking=True))
            features.append((head(h) if feature == "z" and head is not None else h).float())
            labels.append(batch[1].to(module.device, non_blocking=True))
    if not features:
        raise DataError(
            "the loader gave no batch: the data set is empty, or smaller than its drop_last batch"
        )
    return torch.cat(features), torch.cat(labels)
