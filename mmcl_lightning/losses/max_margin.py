"""The max-margin contrastive loss: one support vector machine per image."""

from __future__ import annotations

import logging
from typing import Any, Literal

from torch import Tensor

from mmcl_lightning._options import check_choice
from mmcl_lightning.kernels import Kernel
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.losses.weighted import WeightedContrastiveLoss
from mmcl_lightning.losses.weights import SupportVectors
from mmcl_lightning.svm import Solver

__all__ = ["MMCLLoss"]

log = logging.getLogger(__name__)


class MMCLLoss(WeightedContrastiveLoss):
    r"""Max-margin contrastive loss (MMCL), in the paper's form and in two that sum within a logarithm.

    For every anchor :math:`z`, one view of an image, a support vector machine separates its positive
    :math:`x^+`, the other view, from the negatives :math:`y_j`, other images. Its dual variables
    :math:`\alpha_j` say how much each negative counts; see :mod:`mmcl_lightning.svm.problem`.

    .. math::
        \text{paper:}\quad L &= \operatorname{mean}_z \sum_j \alpha_j \left( k(y_j, z) - k(x^+, z) \right) \\
        \text{log:}\quad L &= \operatorname{mean}_z \Big( -\frac{s(x^+, z)}{T}
            + \log \sum_j w_j e^{s(y_j, z) / T} \Big), \qquad
            w_j = \frac{\alpha_j}{\operatorname{mean}_k \alpha_k} \\
        \text{nce:}\quad L &= \operatorname{mean}_z \Big( -\frac{s(x^+, z)}{T}
            + \log \big( e^{s(x^+, z) / T} + \sum_j w_j e^{s(y_j, z) / T} \big) \Big)

    with the kernel k in the machines and in the paper's form, and the cosine s in the others. As ``reg``
    grows, all weights become 1, and with ``symmetric=True`` the form ``log`` becomes
    :class:`~mmcl_lightning.losses.DecoupledLoss` and ``nce`` :class:`~mmcl_lightning.losses.NTXentLoss`. No
    gradient flows through alpha.

    In the paper's form the loss is minus the mean decision value: normally negative, and *falling* as the
    classes move apart. Its size depends on alpha, so compare k-NN readouts, not losses, between settings.

    Source: Shah et al., "Max-Margin Contrastive Learning", AAAI 2022, arXiv:2112.11450, equation 8 and
    Algorithm 1. Differs from the paper in one point: mean over anchors instead of sum, as in the
    published code. The forms ``log`` and ``nce`` are ours; ``docs/results`` compares them.

    Args:
        kernel: Similarity in the machines; ``RBF(gamma=1.0)`` by default.
        solver: How the duals are solved; ``Inverse()`` by default.
        C: Upper bound of the dual variables, > 0; ``math.inf`` for none. Where Delta has no negative
            entry, no alpha exceeds ``2 / reg``, and a larger C does nothing; see ``docs/choosing.md``.
        reg: Ridge on every dual, >= 0.
        form: ``"paper"``, ``"log"`` or ``"nce"``.
        temperature: T > 0 of the forms ``"log"`` and ``"nce"``, 0.2 by default. The paper's form has none,
            and says so where one is given.
        negatives: ``"both"`` views of every other image, 2 (B - 1) as in the paper's Algorithm 1, or
            only the view of the positive (``"one"``), B - 1 as in the published code.
        symmetric: Let each view be the positive once and average. The paper and the published code do not.
        drop_at_bound: Set alpha to 0 where it is at C: the paper's correction for false negatives.
        assume_unit_diag: Take k(x+, x+) as 1, as printed and published, for kernels where it is not.
        normalize: Scale every projection to unit length first.
        gather: Use the images of all processes as candidates.

    Attributes:
        weights: The rule that solves the machines, with kernel, solver, C and reg.
        last_duals: The support vector machines of the last call with their solutions, alpha of shape
            ``(R, n)``: one entry, or two where ``symmetric`` with one view of negatives. Freed when the next
            call begins.

    Raises:
        ConfigError: If ``C <= 0``, ``reg < 0`` or an option is unknown.

    Example:
        >>> import torch
        >>> from mmcl_lightning.kernels import RBF
        >>> z0, z1 = torch.randn(8, 16), torch.randn(8, 16)
        >>> MMCLLoss(RBF(gamma=1.0), C=100.0)(z0, z1).shape
        torch.Size([])
    """

    weights: SupportVectors
    temperature: float | None  # type: ignore[assignment]  # the paper's form has none
    form: Literal["paper", "log", "nce"]  # type: ignore[assignment]

    def __init__(
        self,
        kernel: Kernel | None = None,
        solver: Solver | None = None,
        C: float = 100.0,
        reg: float = 0.1,
        *,
        form: Literal["paper", "log", "nce"] = "paper",
        temperature: float | None = None,
        negatives: Literal["both", "one"] = "both",
        symmetric: bool = False,
        drop_at_bound: bool = False,
        assume_unit_diag: bool = False,
        normalize: bool = True,
        gather: bool = True,
    ):
        check_choice("form", form, ("paper", "log", "nce"))
        if form == "paper" and temperature is not None:  # as where one loss of a recipe replaces another
            log.warning(
                "MMCLLoss: temperature=%r is not used, since the paper's form has none: the width of the "
                "kernel takes its place",
                temperature,
            )
        super().__init__(
            SupportVectors(kernel, solver, C, reg, drop_at_bound, assume_unit_diag),  # type: ignore[arg-type]
            form="log" if form == "paper" else form,
            temperature=0.2 if temperature is None else temperature,
            negatives=negatives,
            symmetric=symmetric,
            normalize=normalize,
            gather=gather,
        )
        self.form = form
        if form == "paper":
            self.temperature = None

    @classmethod
    def reference(cls, **changes: Any) -> MMCLLoss:
        """Return the loss of the published code: one view of negatives, k(x+, x+) = 1."""
        options: dict[str, Any] = {"negatives": "one", "assume_unit_diag": True}
        return cls(**(options | changes))

    @property
    def method(self) -> str:
        """What a table of results calls the loss: form, where it is not the paper's, and solver."""
        form = "" if self.form == "paper" else f" {self.form}"
        return f"{super().method}{form}, {type(self.solver).__name__}"

    @property
    def kernel(self) -> Kernel:
        """Similarity in the machines."""
        return self.weights.kernel

    @property
    def solver(self) -> Solver:
        """How the duals are solved."""
        return self.weights.solver

    @property
    def C(self) -> float:  # noqa: N802 - the paper's letter
        """Upper bound of the dual variables."""
        return self.weights.C

    @property
    def reg(self) -> float:
        """Ridge on every dual."""
        return self.weights.reg

    @property
    def drop_at_bound(self) -> bool:
        """Whether alpha at C counts as 0."""
        return self.weights.drop_at_bound

    @property
    def assume_unit_diag(self) -> bool:
        """Whether k(x+, x+) is taken as 1."""
        return self.weights.assume_unit_diag

    def _terms(self, contrast: Contrast) -> Tensor:
        if self.form != "paper":
            return super()._terms(contrast)
        dual = self.weights.solve(contrast)
        self.last_duals += (dual,)
        signed = dual.problem.signed_weights(self.weights.counted(dual))
        return (signed * dual.kernel(contrast.anchors, contrast.candidates)).sum(1)
