"""InfoNCE against a queue of earlier keys, the loss of MoCo."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.losses.mixing import HardNegativeMixing, MixingDraws
from mmcl_lightning.losses.precision import (
    check_loss,
    check_rows,
    shortest_row,
    unit_length,
    warn_of_short_rows,
    watch_gradients,
    working_dtype,
)
from mmcl_lightning.losses.weighted import check_temperature

__all__ = ["InfoNCELoss", "check_finite", "unit_rows"]


class InfoNCELoss(nn.Module):
    r"""InfoNCE with a queue: tell the key of a query from the keys of earlier batches.

    With query :math:`q_b`, its key :math:`k_b` and the rows :math:`n_j` of the queue, all of unit length,

    .. math:: L = -\frac1B \sum_b \log
        \frac{\exp(q_b \cdot k_b / T)}{\exp(q_b \cdot k_b / T) + \sum_j \exp(q_b \cdot n_j / T)}

    The negatives are the queue alone: other images of the batch play no part, so that processes need not
    gather anything. No gradient flows to keys or queue; who fills the queue is left to the caller. Called as
    ``loss(query, key, queue)``, which is why it is no :class:`~mmcl_lightning.losses.ContrastiveLoss`.

    Source: He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020,
    arXiv:1911.05722, equation 1.

    With ``mixing``, synthetic negatives join the sum over j; see
    :class:`~mmcl_lightning.losses.HardNegativeMixing`.

    Args:
        temperature: T > 0; 0.2 in MoCo v2, 0.07 in MoCo v1.
        mixing: How synthetic negatives are made of the hardest ones; ``None`` for none.

    Raises:
        ConfigError: If the temperature is not positive, or ``mixing`` is of another kind.

    Example:
        >>> import torch
        >>> queue = torch.nn.functional.normalize(torch.randn(32, 16), dim=1)
        >>> InfoNCELoss(temperature=0.2)(torch.randn(8, 16), torch.randn(8, 16), queue).shape
        torch.Size([])
    """

    def __init__(self, temperature: float = 0.2, mixing: HardNegativeMixing | None = None):
        super().__init__()
        check_temperature(temperature)
        if mixing is not None and not isinstance(mixing, HardNegativeMixing):
            raise ConfigError(f"expected mixing=HardNegativeMixing(...) or None, got {mixing!r}")
        self.temperature = temperature
        self.mixing = mixing
        self._stats: dict[str, Tensor] = {}
        self._short_rows_said: list[str] = []
        self._checks = DeferredChecks()  # where nobody else collects them

    def forward(self, query: Tensor, key: Tensor, queue: Tensor, draws: MixingDraws | None = None) -> Tensor:
        """Compute the loss of a batch, in float32 (float64 stays), also under autocast.

        Args:
            query: Projections of one view, un-normalised, shape ``(B, D)``.
            key: Projections of the other view of the same images by the key encoder, shape ``(B, D)``.
            queue: Keys of other images, rows of unit length, shape ``(K, D)`` with K >= 1. It must not be
                overwritten before the backward pass.
            draws: Random numbers of the synthetic negatives; ``None`` draws from torch's global generator.

        Returns:
            The mean over the queries, a scalar.

        Raises:
            ShapeError: If the shapes do not fit together.
            NumericalError: If a query or a key is not finite.
            ConfigError: If the queue has fewer rows than ``mixing`` needs.
        """
        _check_shapes(query, key, queue)
        with (
            self._checks.unless_waiting(query),
            torch.autocast(device_type=query.device.type, enabled=False),
        ):
            check_finite(query, key)
            single = query.to(working_dtype(query.dtype))
            q = unit_length(single, shortest_row(query.dtype))
            k = unit_rows(key.detach()).to(q.dtype)
            cosine = (q * k).sum(1)  # (B,)
            positive = cosine / self.temperature
            rows = queue.detach().to(q.dtype)
            similarity = q @ rows.T  # (B, K)
            nearest = similarity.detach().amax(1)
            if self.mixing is not None:
                draws = self.mixing.draw(len(q)) if draws is None else draws
                similarity = torch.cat([similarity, self.mixing.similarities(q, rows, similarity, draws)], 1)
            negatives = similarity / self.temperature
            # As a logistic function of the positive's lead: without an array (B, 1 + K) of both.
            loss = -F.logsigmoid(positive - negatives.logsumexp(1)).mean()
            if query.dtype == torch.float16:
                watch_gradients(loss, [single])
            check_loss(loss, self)
            warn_of_short_rows((query, key), self._short_rows_said)
        self._stats = {
            "positive_similarity": cosine.detach().mean(),
            "contrast_top1": (nearest <= cosine.detach()).float().mean(),
            "negatives": torch.tensor(float(negatives.shape[1])),
        }
        return loss

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """Mean cosine of the positives, share of queries nearer to their key than to the queue, negatives."""
        return self._stats

    def extra_repr(self) -> str:
        """Options as ``print(module)`` shows them."""
        mixing = "" if self.mixing is None else f", mixing={self.mixing}"
        return f"temperature={self.temperature}{mixing}"


def unit_rows(z: Tensor) -> Tensor:
    """Scale projections ``(n, D)`` to the rows of unit length that a queue holds, in float32 or float64."""
    return unit_length(z.to(working_dtype(z.dtype)), shortest_row(z.dtype))


def check_finite(query: Tensor, key: Tensor) -> None:
    """Raise :class:`NumericalError` if a row of queries or keys, each ``(n, D)``, is not finite."""
    rows = torch.cat([query.detach(), key.detach()])
    check_rows(rows, [("queries", len(query)), ("keys", len(key))])


def _check_shapes(query: Tensor, key: Tensor, queue: Tensor) -> None:
    if query.ndim != 2 or query.shape != key.shape:
        raise ShapeError(
            f"query and key must both have shape (B, D), got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if queue.ndim != 2 or queue.shape[1] != query.shape[1] or len(queue) < 1:
        raise ShapeError(
            f"the queue must have shape (K, {query.shape[1]}) with K >= 1, got {tuple(queue.shape)}"
        )
    for name, z in (("query", query), ("key", key), ("queue", queue)):
        if not z.is_floating_point():
            raise ShapeError(f"{name} must have a floating dtype, got {z.dtype}")
