"""Max-margin contrastive learning as a LightningModule."""

from __future__ import annotations

from typing import Any, Literal

from mmcl_lightning._specs import from_spec
from mmcl_lightning.kernels import Kernel
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.modules.contrastive import ContrastiveModule
from mmcl_lightning.svm import Solver

__all__ = ["MMCL"]


class MMCL(ContrastiveModule):
    """Pretraining by max-margin contrast (Shah et al., AAAI 2022).

    One SVM per image decides which negatives count. The solver is pluggable; the module brings a
    :class:`~mmcl_lightning.callbacks.SVMSolverCallback` that logs, schedules and guards it.

    Args:
        kernel: Similarity; ``None`` for ``RBF(gamma=1.0)``.
        solver: How the SVMs are solved; ``None`` for ``Inverse()``.
        C: Upper bound of the dual variables, > 0; ``.inf`` in YAML for none.
        reg: Ridge on every SVM, >= 0.
        form: ``"paper"``: the paper's loss. ``"log"`` or ``"nce"``: the weights that the SVMs give stand in a
            sum within a logarithm; see :class:`~mmcl_lightning.losses.MMCLLoss`.
        temperature: T > 0 of the forms ``"log"`` and ``"nce"``; ``None`` for 0.2. The paper's form has none.
        negatives: ``"both"`` views of every other image, as in the paper, or ``"one"``, as published.
        symmetric: Let each view train the SVM once and average.
        drop_at_bound: Ignore negatives whose alpha is at C: the paper's correction for false negatives.
        assume_unit_diag: Take k(x, x) as 1, as printed, for kernels where it is not.
        schedule: Options of the loss by epoch, counted from 1 as in the paper, e.g.
            ``{"kernel.gamma": {1: 0.02, 75: 0.2, 125: 2.0}}``; see :meth:`ContrastiveLoss.set_option`.
        log_histogram: Write the histogram of alpha at the end of every epoch.
        **kwargs: Backbone, head and optimisation: see :class:`PretrainingModule`.

    Logs:
        As :class:`ContrastiveModule`, and what :class:`SVMSolverCallback` writes.
    """

    criterion: MMCLLoss

    def __init__(
        self,
        kernel: Kernel | None = None,
        solver: Solver | None = None,
        C: float = 100.0,
        reg: float = 0.1,
        form: Literal["paper", "log", "nce"] = "paper",
        temperature: float | None = None,
        negatives: Literal["both", "one"] = "both",
        symmetric: bool = False,
        drop_at_bound: bool = False,
        assume_unit_diag: bool = False,
        schedule: dict[str, dict[int, bool | int | float]] | None = None,
        log_histogram: bool = True,
        **kwargs: Any,
    ):
        criterion = MMCLLoss(
            from_spec(kernel, Kernel, "kernel"),
            from_spec(solver, Solver, "solver"),
            C,
            reg,
            form=form,
            temperature=temperature,
            negatives=negatives,
            symmetric=symmetric,
            drop_at_bound=drop_at_bound,
            assume_unit_diag=assume_unit_diag,
        )
        super().__init__(criterion=criterion, schedule=schedule, log_histogram=log_histogram, **kwargs)
