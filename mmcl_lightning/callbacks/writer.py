"""Write what ``predict`` computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from mmcl_lightning._files import free_path
from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning._text import say
from mmcl_lightning.callbacks.tables import check_format, check_text, write_table
from mmcl_lightning.distributed import layout
from mmcl_lightning.errors import DataError

__all__ = ["RepresentationWriter"]


class RepresentationWriter(BasePredictionWriter):
    """Write representations, projections and labels of ``predict`` as one file, whatever the processes.

    Args:
        path: File to write, which must not exist, a NumPy archive (.npz) or Parquet (.parquet, with
            ``pip install "mmcl-lightning[parquet]"``); ``None`` for ``representations.npz`` in the trainer's
            default folder, or the first of ``representations_2.npz`` and so on that is free.

    Attributes:
        target: The file, once it is chosen.

    Reads:
        ``name`` of the predictions, which the modules take from the batch; the datamodule's ``rows()``.

    Writes:
        Arrays ``h`` ``(N, F)``, ``z`` ``(N, D)`` and ``target`` ``(N,)``, in the order of the data, and which
        image each row is of: ``path``, ``class`` and ``split`` of a datamodule of ours, or ``name`` as the
        batches have it. In Parquet h and z are lists of a fixed size. Images that could not be read, which a
        datamodule with ``on_bad_image: skip`` numbers ``~position``, have no row, and are named once.
    """

    def __init__(self, path: str | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.path = path
        self.target: Path | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the file, before anything is computed.

        Raises:
            ConfigError: If the given file exists, or is of no such kind.
        """
        super().setup(trainer, pl_module, stage)
        if stage == "predict":
            beside = (".png",) if self.path is None else ()  # so that its map has its name
            default = Path(trainer.default_root_dir) / "representations.npz"
            self.target = free_path(self.path, default, *beside)
            check_format(self.target)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the names of all images, before anything is computed.

        Raises:
            DataError: If the file cannot hold one.
        """
        datamodule, loader = datamodule_of(trainer), trainer.predict_dataloaders
        parquet = self.target is not None and self.target.suffix.lower() == ".parquet"
        if parquet and hasattr(datamodule, "rows") and isinstance(loader, DataLoader):
            for name, values in datamodule.rows(range(len(loader.dataset))).items():  # type: ignore[arg-type]
                check_text(name, values)

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write the file, in the first process, and say where it is."""
        arrays = (
            {name: _joined([batch[name] for batch in predictions]) for name in predictions[0]}
            if predictions
            else {}
        )
        parts = _at_first([(_flat(batch_indices), arrays)])
        if not trainer.is_global_zero:
            return
        arrays = _in_order([part for part in parts if part[1]])
        if not arrays:
            raise DataError("there is nothing to write: the prediction loader gave no batch")
        assert self.target is not None
        arrays["target"] = arrays["target"].astype(np.int64)
        names, datamodule, read = arrays.get("name"), datamodule_of(trainer), ""
        if names is not None and names.dtype.kind in "iu" and hasattr(datamodule, "rows"):
            arrays, read = _without_damaged(arrays, datamodule)
            rows = datamodule.rows(arrays.pop("name").tolist())
            arrays |= {name: np.array(values) for name, values in rows.items()}
        write_table(self.target, arrays)
        shapes = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
        say(f"Wrote {self.target}: {shapes}{read}")


def _without_damaged(arrays: dict[str, NDArray[Any]], datamodule: Any) -> tuple[dict[str, NDArray[Any]], str]:
    """Leave out the images that could not be read, name them, and say how many were."""
    names = arrays["name"]
    damaged, items = ~names[names < 0], getattr(datamodule, "items", "images")
    if len(damaged):
        some = ", ".join(datamodule.rows(damaged[:5].tolist())["path"]) + ", ..." * (len(damaged) > 5)
        rank_zero_warn(f"{len(damaged)} of {len(names)} {items} cannot be read, and are left out: {some}")
    kept = {name: values[names >= 0] for name, values in arrays.items()}
    return kept, f" ({len(names) - len(damaged)} of {len(names)} {items} read)"


def _joined(parts: list[Any]) -> NDArray[Any]:
    """Return tensors or lists of strings as one array."""
    if not isinstance(parts[0], torch.Tensor):
        return np.array([item for part in parts for item in part])
    rows = torch.cat(parts).cpu()
    joined: NDArray[Any] = (rows.float() if rows.is_floating_point() else rows).numpy()
    return joined


def _flat(batch_indices: Any) -> list[int]:
    """Positions of the rows in the data, from Lightning's nested lists; none where it does not know them."""
    if isinstance(batch_indices, int):
        return [batch_indices]
    return [] if batch_indices is None else [index for part in batch_indices for index in _flat(part)]


def _at_first(parts: list[Any]) -> list[Any]:
    """Return the parts of all processes in the first one, by rank, and nothing elsewhere."""
    where = layout()
    if where.world_size == 1:
        return parts
    found: list[Any] | None = [None] * where.world_size if where.rank == 0 else None
    dist.gather_object(parts, found)
    return [] if found is None else [part for theirs in found for part in theirs]


def _in_order(parts: list[tuple[list[int], dict[str, NDArray[Any]]]]) -> dict[str, NDArray[Any]]:
    """Join the rows of several processes, each image once, in the order of the data."""
    if len(parts) < 2:
        return parts[0][1] if parts else {}
    arrays = {name: np.concatenate([own[name] for _, own in parts]) for name in parts[0][1]}
    indices = [index for own, _ in parts for index in own]
    if len(indices) != len(arrays["target"]):  # a loader without positions
        return arrays
    _, first = np.unique(indices, return_index=True)
    return {name: values[first] for name, values in arrays.items()}
