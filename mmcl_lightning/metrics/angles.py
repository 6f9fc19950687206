"""Angular errors of surface normals, over all pixels of all images together."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcl_lightning.errors import DataError, NumericalError, ShapeError

__all__ = ["AngularErrors", "angular_error", "mean_normal"]

_PER_DEGREE = 1000  # bins
_WITHIN = (11.25, 22.5, 30.0)  # degrees, the field's thresholds; each is the edge of a bin


def mean_normal(probabilities: Tensor, codebook: Tensor) -> Tensor:
    """Return the mean of the normals of a codebook, weighted by their probabilities, as unit vectors.

    Args:
        probabilities: ``(B, K, H, W)``.
        codebook: Unit normals ``(K, 3)``.

    Returns:
        ``(B, 3, H, W)``.

    Raises:
        ShapeError: If they do not go together.
    """
    if probabilities.ndim != 4 or codebook.shape != (probabilities.shape[1], 3):
        raise ShapeError(
            f"expected probabilities (B, K, H, W) and a codebook (K, 3), got {tuple(probabilities.shape)} "
            f"and {tuple(codebook.shape)}"
        )
    mean = torch.einsum("bkhw,kc->bchw", probabilities, codebook.to(probabilities))
    return torch.nn.functional.normalize(mean, dim=1)


def angular_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the angles between vectors ``(..., 3)``, in degrees ``(...)``; their lengths do not count.

    By the cross product and not by the arc cosine, which in single precision is 0.02 degrees off near 0.

    Args:
        predicted: Vectors ``(..., 3)``.
        target: As many.

    Raises:
        ShapeError: If their shapes differ, or the last dimension is not 3.
    """
    if predicted.shape != target.shape or predicted.shape[-1:] != (3,):
        raise ShapeError(
            f"expected two tensors (..., 3), got {tuple(predicted.shape)} and {tuple(target.shape)}"
        )
    across = torch.linalg.vector_norm(torch.linalg.cross(predicted, target), dim=-1)
    return torch.rad2deg(torch.atan2(across, (predicted * target).sum(dim=-1)))


class AngularErrors:
    """Mean, median and shares of the errors of any number of pixels, in the memory of 1.5 MB.

    Counts by thousandths of a degree: the shares below 11.25, 22.5 and 30 degrees and the mean are exact, the
    median within 0.0005 degrees. The published evaluation (Ericsson et al., CVPR 2021) keeps every error.
    Counts of several processes are added by :meth:`add`.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(180 * _PER_DEGREE + 1, dtype=torch.int64)
        self.sum = 0.0

    def update(self, errors: Tensor) -> None:
        """Count errors.

        Args:
            errors: Degrees from 0 to 180, any shape.

        Raises:
            NumericalError: If one is not a number, or out of this range.
        """
        errors = errors.detach().flatten().double().cpu()
        bad = int((~((errors >= 0) & (errors <= 180 + 1e-4))).sum())  # of single precision
        if bad:
            raise NumericalError(f"{bad} of {len(errors)} angular errors are no angles from 0 to 180 degrees")
        bins = (errors * _PER_DEGREE).long().clamp_max(len(self.counts) - 1)
        self.counts += torch.bincount(bins, minlength=len(self.counts))
        self.sum += float(errors.sum())

    def add(self, other: AngularErrors) -> None:
        """Count what another one has counted.

        Args:
            other: Counts of other pixels.
        """
        self.counts += other.counts
        self.sum += other.sum

    def compute(self) -> dict[str, float]:
        """Return ``mean``, ``median`` in degrees; ``within_11.25``, ``within_22.5``, ``within_30`` as shares.

        Raises:
            DataError: If nothing was counted.
        """
        total = int(self.counts.sum())
        if not total:
            raise DataError("no pixel has a valid normal: there is no angular error to tell")
        reached = self.counts.cumsum(0)
        middle = torch.tensor([(total - 1) // 2 + 1, total // 2 + 1])  # equal where the number is odd
        median = (torch.searchsorted(reached, middle) + 0.5).mean() / _PER_DEGREE
        shares = {
            f"within_{limit:g}": int(reached[round(limit * _PER_DEGREE) - 1]) / total for limit in _WITHIN
        }
        return {"mean": self.sum / total, "median": float(median), **shares}
