r"""Rules that weigh the negatives of an anchor: all alike, by nearness, or by a support vector machine.

A rule gives every negative :math:`y_j` of an anchor a weight :math:`w_j \ge 0` with mean 1, for the losses
that sum :math:`w_j \exp(s(y_j, z) / T)` over the negatives; see
:class:`~mmcl_lightning.losses.WeightedContrastiveLoss`. A new rule is a frozen dataclass with one method.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcl_lightning._options import check_flags, check_number
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF, Kernel
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.svm import Inverse, MaxMarginDual, Solution, Solver, max_margin_dual
from mmcl_lightning.svm.negatives import at_bound
from mmcl_lightning.svm.problem import check_box

__all__ = [
    "Hard",
    "Near",
    "NegativeWeights",
    "Shuffled",
    "SolvedDual",
    "SupportVectors",
    "Uniform",
    "Weights",
]


@dataclass(frozen=True, eq=False)
class SolvedDual:
    """The support vector machines of a batch and their solution.

    Args:
        problem: The duals, one per anchor.
        solution: Their solution.
        kernel: The kernel, with the width that it had for this batch.
    """

    problem: MaxMarginDual
    solution: Solution
    kernel: Kernel


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of all negatives of a batch.

    Args:
        log: Logarithm of w, shape ``(R, n)``; over an anchor's negatives the mean of w is 1. ``-inf`` where w
            is 0; the entries of candidates that are no negatives do not count. ``None`` where every w is 1.
        dual: The support vector machines that they come from, if any.
    """

    log: Tensor | None
    dual: SolvedDual | None = None

    @classmethod
    def proportional(cls, logits: Tensor, contrast: Contrast) -> Weights:
        """Return weights proportional to ``exp(logits)``, scaled to the mean 1 over each anchor's negatives.

        Args:
            logits: Shape ``(R, n)``; ``-inf`` for the weight 0. Entries that are no negatives do not count.
            contrast: The batch.
        """
        total = contrast.of_negatives(logits).logsumexp(1, keepdim=True)
        return cls(logits - (total - math.log(contrast.negatives)))


class NegativeWeights(abc.ABC):
    """A rule that says how much each negative of an anchor counts. Leaves are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""


@dataclass(frozen=True)
class Uniform(NegativeWeights):
    """All negatives count alike: w = 1."""

    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""
        return Weights(None)


@dataclass(frozen=True)
class Near(NegativeWeights):
    r"""Negatives near the positive count for more: :math:`w_j \propto \exp(\beta\, s(x^+, y_j))`.

    No gradient flows through w. The plainest rule that prefers the negatives that a support vector machine
    prefers: what a study compares :class:`SupportVectors` with.

    Args:
        beta: Concentration on near negatives, >= 0; 0 weighs all alike.

    Raises:
        ConfigError: If ``beta`` is no finite number >= 0.
    """

    beta: float = 5.0

    def __post_init__(self) -> None:
        _check_beta(self.beta)

    @torch.no_grad()
    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""
        nearness = contrast.candidates[contrast.positive] @ contrast.candidates.T
        return Weights.proportional(self.beta * nearness, contrast)


@dataclass(frozen=True)
class Hard(NegativeWeights):
    r"""Negatives near the anchor count for more: :math:`w_j \propto \exp(\beta\, s(z, y_j))`.

    The gradient flows through w, as in the published code of HCL.

    Source: Robinson et al., "Contrastive Learning with Hard Negative Samples", ICLR 2021, arXiv:2010.04592.

    Args:
        beta: Concentration on near negatives, >= 0; 0 weighs all alike. The paper's beta divided by T.

    Raises:
        ConfigError: If ``beta`` is no finite number >= 0.
    """

    beta: float = 2.0

    def __post_init__(self) -> None:
        _check_beta(self.beta)

    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""
        return Weights.proportional(self.beta * contrast.similarity, contrast)


@dataclass(frozen=True)
class SupportVectors(NegativeWeights):
    r"""The dual variables of one support vector machine per anchor: :math:`w_j \propto \alpha_j`.

    The machine of an anchor separates its positive from its negatives; see
    :mod:`mmcl_lightning.svm.problem`. Negatives that are no support vectors have the weight 0. As ``reg``
    grows, all weights become 1. No gradient flows through w.

    Source: Shah et al., "Max-Margin Contrastive Learning", AAAI 2022, arXiv:2112.11450, Proposition 1. That w
    is scaled to the mean 1 is ours.

    Args:
        kernel: Similarity; ``None`` for ``RBF(gamma=1.0)``.
        solver: How the duals are solved; ``None`` for ``Inverse()``.
        C: Upper bound of the dual variables, > 0; ``math.inf`` for none.
        reg: Ridge on every dual, >= 0.
        drop_at_bound: Set alpha to 0 where it is at C. An anchor without any negative left adds nothing to
            the loss.
        assume_unit_diag: Take k(x+, x+) as 1, for kernels where it is not.

    Raises:
        ConfigError: If ``C <= 0``, ``reg < 0``, or a part is of the wrong kind.
    """

    kernel: Kernel = None  # type: ignore[assignment]  # the signature that a command line reads says None too
    solver: Solver = None  # type: ignore[assignment]
    C: float = 100.0
    reg: float = 0.1
    drop_at_bound: bool = False
    assume_unit_diag: bool = False

    def __post_init__(self) -> None:
        for name, kind, default, example in (
            ("kernel", Kernel, RBF(), "RBF(gamma=1.0)"),
            ("solver", Solver, Inverse(), "Inverse()"),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            part = getattr(self, name)
            if not isinstance(part, kind):
                raise ConfigError(
                    f"expected a {kind.__name__} object, such as {name}={example}, got {part!r}"
                )
        check_box(self.C, self.reg)
        check_flags(drop_at_bound=self.drop_at_bound, assume_unit_diag=self.assume_unit_diag)

    @torch.no_grad()
    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""
        dual = self.solve(contrast)
        alpha = self.counted(dual)
        total = alpha.sum(1, keepdim=True)
        mean = torch.where(total > 0, total, 1.0) / contrast.negatives
        return Weights((alpha / mean).log(), dual)

    @torch.no_grad()
    def solve(self, contrast: Contrast) -> SolvedDual:
        """Solve the support vector machine of every anchor."""
        candidates = contrast.candidates.detach()
        kernel = self.kernel.fit_on_device(candidates)
        problem = max_margin_dual(
            kernel(candidates, candidates),
            contrast.positive,
            contrast.excluded[:, 1:],
            C=self.C,
            reg=self.reg,
            positive_semidefinite=kernel.positive_semidefinite,
            assume_unit_diag=self.assume_unit_diag,
            kernel_name=kernel,
            rows=contrast.rows,
            total_rows=contrast.total_rows,
        )
        return SolvedDual(problem, self.solver(problem), kernel)

    def counted(self, dual: SolvedDual) -> Tensor:
        """Return alpha as it counts in a loss, shape ``(R, n)``."""
        alpha = dual.solution.alpha
        return torch.where(at_bound(alpha, self.C), 0.0, alpha) if self.drop_at_bound else alpha


@dataclass(frozen=True)
class Shuffled(NegativeWeights):
    """The weights of another rule, dealt out to the negatives of an anchor at random, anew in every call.

    For studies: how unevenly the weights are spread stays, which negatives they fall on does not. Draws from
    torch's global generator, one permutation for each anchor of all processes: processes with generators in
    the same state agree.

    Args:
        rule: Where the weights come from; ``None`` for ``SupportVectors()``.

    Raises:
        ConfigError: If ``rule`` is no rule.
    """

    rule: NegativeWeights = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.rule is None:
            object.__setattr__(self, "rule", SupportVectors())
        if not isinstance(self.rule, NegativeWeights):
            raise ConfigError(f"expected a rule, such as rule=SupportVectors(), got {self.rule!r}")

    def __call__(self, contrast: Contrast) -> Weights:
        """Weigh the negatives of every anchor of a batch."""
        weights = self.rule(contrast)
        if weights.log is None:
            return weights
        n, N = len(contrast.candidates), contrast.negatives
        draws = torch.rand(contrast.total_rows, n).to(contrast.rows.device, non_blocking=True)[contrast.rows]
        targets = draws.scatter(1, contrast.excluded, 2.0).argsort(1)[:, :N]  # negatives in random order
        left_out = torch.zeros_like(draws).scatter(1, contrast.excluded, 1.0)
        values = weights.log.gather(1, left_out.argsort(dim=1, stable=True)[:, :N])
        return dataclasses.replace(weights, log=weights.log.scatter(1, targets, values))


def _check_beta(beta: float) -> None:
    check_number("beta", beta, ">= 0", "0 weighs all negatives alike")
