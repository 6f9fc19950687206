"""The callback that logs, schedules and guards the SVM solver of a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from mmcl_lightning._lightning import has_trained
from mmcl_lightning._log_number import log_number
from mmcl_lightning.batches import labels_of
from mmcl_lightning.deferred import DeferredChecks, check, checks_of
from mmcl_lightning.distributed import Layout, gather_with_gradient, layout
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import ContrastiveLoss, SupportVectors
from mmcl_lightning.losses.statistics import svm_stats
from mmcl_lightning.losses.weights import SolvedDual
from mmcl_lightning.negatives import mmcl_criterion
from mmcl_lightning.svm import MaxMarginDual, Solution, Status
from mmcl_lightning.svm.negatives import false_negative_shares, false_negative_sums

__all__ = ["SVMSolverCallback", "solves_duals"]


class SVMSolverCallback(Callback):
    """Log what the SVMs found, change their options by epoch, and say when a solve goes wrong.

    A :class:`~mmcl_lightning.modules.ContrastiveModule` brings one by itself where its loss solves SVMs or
    has a schedule; add it by hand to any LightningModule whose ``criterion`` is such a loss.

    Args:
        schedule: Options of the loss by epoch, counted from 1, each in force from that epoch on, e.g.
            ``{"C": {1: inf, 26: 10.0}}``; names as in :meth:`ContrastiveLoss.set_option`.
        log_histogram: Write the histogram of alpha to TensorBoard at the end of every epoch.

    Reads:
        ``pl_module.criterion``. Labels ``batch[1]`` ``(B,)``, -1 = unlabelled, where a batch has them: to
        look at, training does not see them.

    Writes:
        Every ``log_every_n_steps``, over the anchors of all processes: ``svm/sv_fraction`` and the shares
        of alpha ``svm/zero_fraction``, ``svm/free_fraction``, ``svm/bound_fraction``; ``svm/margin``,
        ``svm/kkt_residual``, ``svm/duality_gap``, ``svm/steps``, ``svm/negatives`` per anchor; with
        ``RBF("median")`` its ``svm/gamma``; and ``svm/retries`` so far, of the first process.
        With labels: ``svm/false_negative_share``, the share of support vectors that are of the anchor's
        class, ``svm/false_negative_share_by_alpha``, ``svm/bound_false_negative_share``, and
        ``svm/false_negative_base_rate`` among all negatives to compare with; see
        :func:`~mmcl_lightning.svm.negatives.false_negative_shares`.
        Every epoch: ``svm/alpha`` (histogram) and the scheduled options as ``svm/NAME``, or ``loss/NAME``
        where the loss solves no SVM.

    Raises:
        ConfigError: If the schedule names an option that does not exist, or an epoch < 1.
    """

    _LOGGED = (
        "sv_fraction",
        "zero_fraction",
        "free_fraction",
        "bound_fraction",
        "margin",
        "kkt_residual",
        "duality_gap",
        "alpha_max",
        "steps",
        "negatives",
        "gamma",
    )

    def __init__(
        self, schedule: dict[str, dict[int, bool | int | float]] | None = None, log_histogram: bool = True
    ) -> None:
        self.schedule = {
            name: {int(k): v for k, v in changes.items()} for name, changes in (schedule or {}).items()
        }
        self.log_histogram = log_histogram
        self.retries = 0
        self._announced = False
        self._warned: set[str] = set()
        self._checks = self._own_checks = DeferredChecks()  # of solves whose outcome the device alone knows
        for name, changes in self.schedule.items():
            if not changes or min(changes) < 1:
                raise ConfigError(f"schedule of {name!r}: epochs count from 1, got {sorted(changes)}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget another run."""
        self._checks = checks_of(pl_module, self._own_checks)
        if stage == "fit" and not has_trained(trainer):
            self.retries, self._announced, self._warned = 0, False, set()

    def check(self, criterion: ContrastiveLoss) -> None:
        """Raise :class:`ConfigError` now if the schedule would fail in some later epoch.

        Args:
            criterion: The loss whose options it changes.
        """
        for name, changes in self.schedule.items():
            for value in changes.values():
                criterion.check_option(name, value)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the schedule, and put it in force: a run resumed within an epoch skips the next hook."""
        self.check(self._criterion(pl_module))
        self._apply(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the options of this epoch in force."""
        place = "svm" if solves_duals(self._criterion(pl_module)) else "loss"
        for name, value in self._apply(trainer, pl_module).items():
            for logger in trainer.loggers:
                logger.log_metrics({f"{place}/{name.rpartition('.')[2]}": value}, step=trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the statistics of the step, and warn about a solve that went wrong."""
        criterion = self._criterion(pl_module)
        duals = getattr(criterion, "last_duals", ())
        if not duals:
            return
        problem = duals[0].problem
        if trainer.global_step == 1 and not self._announced:
            self._announced = True
            anchors = sum(dual.problem.B for dual in duals)
            rank_zero_info(
                f"MMCL: {anchors} SVMs a step on each process, each of {problem.negatives} negatives"
            )
        with self._checks.unless_waiting(problem.gram):
            self._guard_curvature(problem)
            for dual in duals:
                self._guard(dual.solution, trainer.global_step)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:  # the steps that Lightning writes
            self._log(pl_module, duals, batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the histogram of the last step's alpha."""
        self._checks.look()
        duals = getattr(self._criterion(pl_module), "last_duals", ())
        if self.log_histogram and duals and trainer.is_global_zero:
            support = torch.cat([dual.solution.alpha[dual.solution.alpha > 0] for dual in duals])
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and len(support):
                    logger.experiment.add_histogram("svm/alpha", support, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of retries, which goes on after a resume."""
        self._checks.look()
        return {"retries": self.retries}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the count of retries."""
        self.retries = state_dict["retries"]

    def _log(self, pl_module: LightningModule, duals: Sequence[SolvedDual], batch: Any) -> None:
        """Log what the last solves found, in the one wait that the checks of the steps need anyway."""
        criterion, problem = self._criterion(pl_module), duals[0].problem
        stats = svm_stats(duals)
        means = _over_processes(logged := {name: stats[name] for name in self._LOGGED if name in stats})
        labels = _gathered_labels(criterion, problem, batch)
        sums = torch.stack([false_negative_sums(d.problem, d.solution.alpha, labels) for d in duals]).sum(0)
        sums = gather_with_gradient(sums[None]).sum(0)

        def write(values: list[float]) -> None:
            named = dict(zip(logged, values, strict=False))
            named |= false_negative_shares(torch.tensor(values[len(named) :]).view_as(sums))
            named["retries"] = float(self.retries)  # the checks before counted on
            for name, value in named.items():
                log_number(pl_module, f"svm/{name}", value, on_step=True)

        self._checks.add(torch.cat([means, sums.flatten()]), write)
        self._checks.look()

    def _guard(self, solution: Solution, step: int) -> None:
        """Count what had to be repeated, and say what went wrong, once it is known."""

        def judge(values: list[float]) -> None:
            place, retries, extra = values
            if retries:
                self.retries += int(retries)
                self._warn_once(
                    "retries",
                    f"a kernel matrix could not be factorised at step {step} and was retried "
                    f"({retries:.0f} times, ridge + {extra:g}); svm/retries counts on",
                )
            status = list(Status)[int(place)]
            if status in (Status.MAX_STEPS, Status.ROUNDED):
                self._warn_once(status.name, f"SVM solver, step {step}: {status.value}")

        check(solution.findings, judge)

    def _guard_curvature(self, problem: MaxMarginDual) -> None:
        """Say that there may be no optimum to find."""

        def judge(values: list[float]) -> None:
            if values[0]:
                self._warn_once(
                    "convex",
                    f"the SVMs of {problem.name} need not be convex: iterative solvers find a stationary "
                    "point, often with all alpha at C; Inverse is no minimum. Raise reg, or use the RBF "
                    "kernel",
                )

        if not problem.positive_semidefinite:
            judge([1.0])
        elif problem.assume_unit_diag:
            check(problem.may_be_concave, judge)

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            rank_zero_warn(message)

    def _apply(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Set the options that the schedule has for the current epoch, and return them."""
        options = {}
        for name, changes in self.schedule.items():
            reached = [start for start in changes if start <= trainer.current_epoch + 1]
            if reached:
                options[name] = changes[max(reached)]
                self._criterion(pl_module).set_option(name, options[name])
        return options

    def _criterion(self, pl_module: LightningModule) -> ContrastiveLoss:
        criterion = getattr(pl_module, "criterion", None)
        if isinstance(criterion, ContrastiveLoss) and (self.schedule or solves_duals(criterion)):
            return criterion
        return mmcl_criterion(pl_module, type(self).__name__)


def solves_duals(criterion: object) -> bool:
    """Whether a loss weighs its negatives by support vector machines.

    Args:
        criterion: Any object.
    """
    rule = getattr(criterion, "weights", None)
    return isinstance(getattr(rule, "rule", rule), SupportVectors)


def _over_processes(stats: dict[str, Tensor]) -> Tensor:
    """Mean of each statistic over the processes, which have equally many anchors, or the largest."""
    rows = gather_with_gradient(torch.stack(list(stats.values()))[None])
    largest = ("kkt_residual", "alpha_max")
    return torch.stack(
        [rows[:, i].amax() if name in largest else rows[:, i].mean() for i, name in enumerate(stats)]
    )


def _gathered_labels(criterion: ContrastiveLoss, problem: MaxMarginDual, batch: Any) -> Tensor:
    """Labels of the images among the candidates, ``(G,)``, in the order in which projections are gathered.

    A batch without fitting labels counts as unlabelled, so that no process waits for another one here.
    """
    where = layout() if criterion.gather else Layout()
    images = problem.n // (2 if criterion.negatives == "both" else 1) // where.world_size
    labels = labels_of(batch)
    if not isinstance(labels, Tensor) or labels.shape != (images,) or labels.is_floating_point():
        labels = torch.full((images,), -1, device=problem.gram.device)
    labels = labels.to(problem.gram.device, torch.int64)
    return gather_with_gradient(labels) if criterion.gather else labels
