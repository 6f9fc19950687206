"""Feature rows as the metrics compute with them: float32, finite, optionally of unit length."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.errors import NumericalError

__all__ = ["check_norms", "float32_rows", "inverse_norms", "reciprocal", "row_norms", "without_autocast"]


def float32_rows(features: Tensor, normalize: bool, name: str) -> Tensor:
    """Return features ``(N, F)`` in float32, each row of unit length if asked; a zero row stays zero.

    Raises:
        NumericalError: If a feature is not finite.
    """
    rows = features.float()
    scale = inverse_norms(rows, name)
    return rows * scale.unsqueeze(1) if normalize else rows


def inverse_norms(features: Tensor, name: str) -> Tensor:
    """Return the factors ``(N,)`` that bring rows to unit length, in float32, without a copy of the whole.

    Raises:
        NumericalError: If a feature is not finite.
    """
    norms = row_norms(features)
    check_norms(int((~torch.isfinite(norms)).sum()), len(norms), name, features.dtype)
    return reciprocal(norms)


def row_norms(features: Tensor, chunk_size: int = 8192) -> Tensor:
    """Return the lengths of rows ``(N,)`` in float32; a length is finite only if its row is."""
    norms = torch.empty(len(features), device=features.device)
    for start in range(0, len(features), chunk_size):
        stop = start + chunk_size
        norms[start:stop] = torch.linalg.vector_norm(features[start:stop].float(), dim=1)
    return norms


def check_norms(bad: int, count: int, name: str, dtype: torch.dtype) -> None:
    """Raise :class:`NumericalError` if ``bad`` of ``count`` rows are not finite."""
    if bad:
        kind = "float16" if dtype == torch.float16 else "float32"
        raise NumericalError(
            f"{bad} of {count} rows of the {name} features hold NaN, infinity or a value too large for "
            f"{kind}. The network has probably diverged: check the loss and the learning rate."
        )


def reciprocal(norms: Tensor) -> Tensor:
    """Return the factors that bring rows of these lengths to length 1."""
    # Not 1e-12 as torch's normalize: untrained video networks give rows as short, and their squares are far
    # from underflow.
    return norms.clamp_min(1e-18).reciprocal()


def without_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which products stay float32, whatever precision the training runs in."""
    return torch.autocast(device.type, enabled=False)
