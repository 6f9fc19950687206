"""A codebook of normals from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.errors import ConfigError

__all__ = ["read_codebook"]


def read_codebook(path: str, codes: int) -> Tensor:
    """Return a codebook ``(K, 3)``, float32, of a file ``.npy``.

    Args:
        path: The file.
        codes: K.

    Raises:
        ConfigError: If it is no such file, of another shape, or its rows are not of unit length.
    """
    if Path(path).suffix in (".pklz", ".pkl", ".pickle"):
        raise ConfigError(
            f"{path} is a pickle, which can run code, and is not read: give --model.codebook as a .npy file"
        )
    try:
        values = np.asarray(np.load(Path(path).expanduser(), allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"--model.codebook {path} cannot be read as a .npy file of numbers ({error})"
        ) from error
    if values.ndim != 2 or values.shape[1] != 3 or values.dtype.kind not in "fiu":
        raise ConfigError(
            f"--model.codebook {path} must hold numbers (K, 3), got {values.shape} of type {values.dtype}"
        )
    if len(values) != codes:
        raise ConfigError(
            f"--model.codebook {path} has {len(values)} normals, and --model.codes is {codes}: set it to "
            f"{len(values)}"
        )
    lengths = np.linalg.norm(values.astype(np.float64), axis=1)
    if not np.all(np.abs(lengths - 1) < 1e-3):
        raise ConfigError(
            f"--model.codebook {path} must hold unit vectors, and their lengths are from {lengths.min():.3g} "
            f"to {lengths.max():.3g}: divide each by its length"
        )
    return F.normalize(torch.tensor(values, dtype=torch.float32), dim=1)
