"""The softmax losses as one: a form, a temperature, and a rule that weighs the negatives."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._options import check_choice, check_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses.base import ContrastiveLoss
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.statistics import svm_stats
from mmcl_lightning.losses.weights import NegativeWeights, SolvedDual, Uniform, Weights

__all__ = ["WeightedContrastiveLoss", "check_temperature", "similarity_stats"]


class WeightedContrastiveLoss(ContrastiveLoss):
    r"""Contrast against negatives that a rule weighs.

    With :math:`s` the cosine, :math:`z` an anchor, :math:`x^+` its positive and :math:`y_j` its negatives,

    .. math::
        \text{log:}\quad L &= \operatorname{mean}_z \Big( -\frac{s(x^+, z)}{T}
            + \log \sum_j w_j e^{s(y_j, z) / T} \Big) \\
        \text{nce:}\quad L &= \operatorname{mean}_z \Big( -\frac{s(x^+, z)}{T}
            + \log \big( e^{s(x^+, z) / T} + \sum_j w_j e^{s(y_j, z) / T} \big) \Big)

    where the weights :math:`w_j` of an anchor have the mean 1. With equal weights the form ``log`` is the
    decoupled loss and ``nce`` is NT-Xent. An anchor all of whose weights are zero adds nothing.

    Source: the forms are those of :class:`NTXentLoss` (Chen et al., 2020) and :class:`DecoupledLoss` (Yeh et
    al., 2022); the weights within them are ours, after HCL (Robinson et al., 2021), which weighs so too.

    Args:
        weights: The rule, one of :mod:`mmcl_lightning.losses.weights`; ``None`` for ``Uniform()``.
        form: ``"log"``: the sum runs over the negatives alone; ``"nce"``: over the positive too.
        temperature: T > 0.
        negatives: ``"both"`` views of every other image, or only the view of the positive (``"one"``).
        symmetric: Score each view once. Otherwise view 1 is scored and view 0 is the positive.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Attributes:
        last_duals: The support vector machines of the last call with their solutions, one entry per set of
            candidates; empty where the weights come from none. Freed when the next call begins.

    Raises:
        ConfigError: If the temperature is not positive or an option is unknown.

    Example:
        >>> import torch
        >>> from mmcl_lightning.losses.weights import Near
        >>> z0, z1 = torch.randn(8, 16), torch.randn(8, 16)
        >>> WeightedContrastiveLoss(Near(beta=5.0), temperature=0.2)(z0, z1).shape
        torch.Size([])
    """

    def __init__(
        self,
        weights: NegativeWeights | None = None,
        form: Literal["log", "nce"] = "log",
        temperature: float = 0.2,
        *,
        negatives: Literal["both", "one"] = "both",
        symmetric: bool = True,
        normalize: bool = True,
        gather: bool = True,
    ):
        super().__init__(negatives=negatives, symmetric=symmetric, normalize=normalize, gather=gather)
        check_choice("form", form, ("log", "nce"))
        check_temperature(temperature)
        self.weights: NegativeWeights = Uniform() if weights is None else weights
        if not isinstance(self.weights, NegativeWeights):
            raise ConfigError(
                f"expected a rule for the weights, such as weights=Near(beta=5.0), got {weights!r}"
            )
        self.form = form
        self.temperature = temperature
        self.last_duals: tuple[SolvedDual, ...] = ()

    @property
    def method(self) -> str:
        """What a table of results calls the loss: form and rule, or the name of a preset."""
        if type(self) is not WeightedContrastiveLoss:
            return super().method
        return f"{super().method} {self.form}, {type(self.weights).__name__}"

    @property
    def last_stats(self) -> dict[str, Tensor]:
        """Scalars that describe the last call, by name, computed when asked for; empty before the first.

        Where the weights come from support vector machines, those of
        :func:`~mmcl_lightning.losses.statistics.svm_stats` too.
        """
        return super().last_stats | (svm_stats(self.last_duals) if self.last_duals else {})

    def _loss(self, contrasts: list[Contrast]) -> Tensor:
        self.last_duals = ()  # free before the next ones are built
        return super()._loss(contrasts)

    def _terms(self, contrast: Contrast) -> Tensor:
        similarity = self._similarity(contrast)
        self._stats.append(similarity_stats(contrast, similarity))
        logits = similarity / self.temperature
        positive, negatives = contrast.of_positive(logits), contrast.of_negatives(logits)
        weights = self.weights(contrast)
        if not isinstance(weights, Weights) or (
            weights.log is not None and weights.log.shape != similarity.shape
        ):
            shape = tuple(similarity.shape)
            raise ConfigError(
                f"{self.weights!r} must return Weights with log of shape {shape}, got {weights!r}"
            )
        if weights.dual is not None:
            self.last_duals += (weights.dual,)
        if weights.log is None:
            return self._combine(positive, negatives.logsumexp(1), contrast)
        negatives = negatives + weights.log
        empty = negatives.detach().amax(1) == -torch.inf  # every weight is 0
        log_sum = torch.where(empty[:, None], 0.0, negatives).logsumexp(1)
        return torch.where(empty, 0.0, self._combine(positive, log_sum, contrast))

    def _similarity(self, contrast: Contrast) -> Tensor:
        """Similarity of the anchors to all candidates, shape ``(R, n)``."""
        return contrast.similarity

    def _combine(self, positive: Tensor, log_sum: Tensor, contrast: Contrast) -> Tensor:
        """Loss of every anchor, all shapes ``(R,)``.

        Args:
            positive: Similarity to the positive, divided by T.
            log_sum: Logarithm of the weighted sum over the negatives.
            contrast: The batch.
        """
        lead = positive - log_sum
        return -lead if self.form == "log" else -F.logsigmoid(lead)


@torch.no_grad()
def similarity_stats(contrast: Contrast, similarity: Tensor) -> dict[str, Tensor]:
    """Return scalars that describe the similarities ``(R, n)`` of a batch.

    Returns:
        ``positive_similarity``: mean similarity of anchors and positives. ``contrast_top1``: share of anchors
        that are nearest to their positive. ``negatives``: number per anchor.
    """
    positive = contrast.of_positive(similarity)
    nearest = contrast.of_negatives(similarity).amax(1)
    return {
        "positive_similarity": positive.mean(),
        "contrast_top1": (nearest <= positive).to(positive.dtype).mean(),
        "negatives": torch.tensor(float(contrast.negatives)),
    }


def check_temperature(temperature: float) -> None:
    """Raise :class:`ConfigError` unless similarities can be divided by it."""
    check_number("temperature", temperature, "> 0", "use 0.1 to 0.5")
