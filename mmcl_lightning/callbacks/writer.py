"""Write what ``predict`` computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from numpy.typing import NDArray

from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["RepresentationWriter"]


class RepresentationWriter(BasePredictionWriter):
    """Write representations, projections and labels of ``predict`` as one NumPy archive per process.

    Args:
        path: File to write, which must not exist; ``None`` for ``representations.npz`` in the trainer's
            default folder, or the first of ``representations_2.npz`` and so on that is free. With several
            processes each adds ``-rankN`` before the suffix.

    Reads:
        ``name`` of the predictions, which the modules take from the batch; the datamodule's ``rows()``.

    Writes:
        Arrays ``h`` ``(N, F)``, ``z`` ``(N, D)`` and ``target`` ``(N,)``, in the order of the data, and which
        image each row is of: ``path``, ``class`` and ``split`` of a datamodule of ours, or ``name`` as the
        batches have it.
    """

    def __init__(self, path: str | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.path = path
        self._target: Path | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the file, before anything is computed.

        Raises:
            ConfigError: If the given file exists.
        """
        super().setup(trainer, pl_module, stage)
        if stage != "predict":
            return
        path = Path(self.path or Path(trainer.default_root_dir) / "representations.npz")
        if trainer.world_size > 1:
            path = path.with_stem(f"{path.stem}-rank{trainer.global_rank}")
        if self.path is not None and path.exists():
            raise ConfigError(f"{path} exists: give another path to write to, or remove it")
        stem, number = path.stem, 1
        while path.exists():
            number += 1
            path = path.with_stem(f"{stem}_{number}")
        self._target = path

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
        assert self._target is not None
        self._target.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: _joined([batch[name] for batch in predictions]) for name in predictions[0]}
        arrays["target"] = arrays["target"].astype(np.int64)
        names, datamodule = arrays.get("name"), datamodule_of(trainer)
        if names is not None and names.dtype.kind in "iu" and hasattr(datamodule, "rows"):
            rows = datamodule.rows(arrays.pop("name").tolist())
            arrays |= {name: np.array(values) for name, values in rows.items()}
        np.savez(self._target, **arrays)  # type: ignore[arg-type]
        shapes = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
        print(f"Wrote {self._target}: {shapes}")


def _joined(parts: list[Any]) -> NDArray[Any]:
    """Return tensors or lists of strings as one array."""
    if not isinstance(parts[0], torch.Tensor):
        return np.array([item for part in parts for item in part])
    rows = torch.cat(parts).cpu()
    joined: NDArray[Any] = (rows.float() if rows.is_floating_point() else rows).numpy()
    return joined
