"""Features of training images kept on disk, so that another fit to them needs no pass through the network."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._files import whole_file
from mmcl_lightning.errors import ConfigError

__all__ = ["kept_rows"]


def kept_rows(
    folder: str | None, made_of: dict[str, Any], trainer: Trainer, read: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return features and labels from a file of a folder, or read and keep them there.

    Every process has to call it. The first one looks for the file, and tells the others.

    Args:
        folder: Where to keep them; None for nowhere.
        made_of: All that they depend on, as JSON takes it: another is another file.
        trainer: The running trainer.
        read: Reads features ``(n, F)``, float32, and labels ``(n,)``.

    Raises:
        ConfigError: If the file is damaged, or the folder cannot be written.
    """
    if folder is None:
        return read()
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    path = Path(folder).expanduser() / f"features_{digest[:16]}.npz"
    kept = trainer.strategy.broadcast(_load(path) if trainer.is_global_zero else None)
    if kept is not None:
        rank_zero_info(f"features of {len(kept[0])} training images, from {path}")
        return kept[0], kept[1]
    x, y = read()
    if trainer.is_global_zero:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                np.savez(file, h=x.float().cpu().numpy(), target=y.cpu().numpy())
        except OSError as error:
            raise ConfigError(f"model.cache: {path} cannot be written ({error.strerror})") from error
        rank_zero_info(f"features of {len(x)} training images kept in {path}")
    return x, y


def _load(path: Path) -> tuple[Tensor, Tensor] | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as content:
            x, y = torch.from_numpy(content["h"]), torch.from_numpy(content["target"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"model.cache: {path} is damaged: remove it") from error
    if x.ndim != 2 or y.shape != x.shape[:1] or x.dtype != torch.float32 or y.dtype != torch.int64:
        raise ConfigError(f"model.cache: {path} holds no features (n, F) with labels (n,): remove it")
    return x, y
