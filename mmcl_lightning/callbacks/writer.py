"""Write what ``predict`` computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from mmcl_lightning.errors import DataError

__all__ = ["RepresentationWriter"]


class RepresentationWriter(BasePredictionWriter):
    """Write representations, projections and labels of ``predict`` as one NumPy archive per process.

    Args:
        path: File to write; ``None`` for ``representations.npz`` in the trainer's default folder. With
            several processes each adds ``-rankN`` before the suffix.

    Writes:
        Arrays ``h`` ``(N, F)``, ``z`` ``(N, D)`` and ``target`` ``(N,)``, in the order of the data.
    """

    def __init__(self, path: str | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.path = path

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write the archive and say where it is."""
        if not predictions:
            raise DataError("there is nothing to write: the prediction loader gave no batch")
        path = Path(self.path or Path(trainer.default_root_dir) / "representations.npz")
        if trainer.world_size > 1:
            path = path.with_stem(f"{path.stem}-rank{trainer.global_rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: torch.cat([batch[name] for batch in predictions]).cpu() for name in predictions[0]}
        arrays = {name: (x.float() if x.is_floating_point() else x).numpy() for name, x in tensors.items()}
        arrays["target"] = arrays["target"].astype(np.int64)
        np.savez(path, **arrays)  # type: ignore[arg-type]
        shapes = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
        print(f"Wrote {path}: {shapes}")
