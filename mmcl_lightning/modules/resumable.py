"""What a module needs so that a run that broke off within an epoch continues with the next batch."""

from __future__ import annotations

import math
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch.nn.modules.batchnorm import _BatchNorm

from mmcl_lightning._lightning import (
    has_tried_out,
    is_resumed,
    leave_finders_out,
    leave_finished_epoch,
    load_loader_states,
)
from mmcl_lightning._loading import PlainlyLoaded
from mmcl_lightning._options import check_number
from mmcl_lightning._specs import to_spec
from mmcl_lightning._structure import kind_of
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.modules.preprocessing import compare_with_checkpoint

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ResumableModule", "restoring"]

#: Whether load_from_checkpoint is at work: all weights come with the module's own file, and no other is read.
restoring: ContextVar[bool] = ContextVar("restoring", default=False)


class ResumableModule(PlainlyLoaded, LightningModule):
    """Hands the loaders their state from the checkpoint, and never saves what is not finite.

    For modules whose ``configure_optimizers`` asks the trainer for the number of steps, and loaders that
    count their batches, as :class:`~mmcl_lightning.datamodules.loading.ResumableDataLoader` does. A resumed
    optimizer has the options that it had, so a configuration with others is refused.

    Lightning's finders of learning rate and batch size work on it: optimizer, ``lr_scaling`` and schedule are
    made for what they found. A resumed run goes on with what it had, without them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._optimizers_before: list[dict[str, Any]] | None = None  # of the run that is resumed
        self._optimizers: list[dict[str, Any]] = []
        self.preprocessing: dict[str, Any] | None = None  # how images reach the backbone, in plain data
        self.own_preprocessing = False  # whether a checkpoint of the module itself has told that
        self._lr: float | None = None
        self._found_lr: float | None = None  # of a finder, in this run or the one that is resumed

    @property
    def lr(self) -> float | None:
        """Learning rate in place of the optimizer's own, not scaled by the batch; None for its own.

        ``LearningRateFinder`` and ``Tuner.lr_find`` set it. It is the rate after a warm-up, before a decay.
        """
        return self._lr

    @lr.setter
    def lr(self, value: float | None) -> None:
        if value is not None:
            check_number("lr", value, ">= 0")
            value = float(value)  # plain: a checkpoint cannot hold one of NumPy
        self._lr = self._found_lr = value

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Self:
        """Rebuild the module; see :class:`~mmcl_lightning._loading.PlainlyLoaded`."""
        token = restoring.set(True)
        try:
            return super().load_from_checkpoint(*args, **kwargs)
        finally:
            restoring.reset(token)

    def on_fit_start(self) -> None:
        """Compare the optimizers with those of the checkpoint, which is about to overwrite their options.

        Raises:
            ConfigError: If they differ: what is recorded as run would not be what runs.
        """
        if has_tried_out(
            self.trainer
        ):  # the learning rate or, by the batch size, rate and schedule are others
            self.trainer.strategy.setup_optimizers(self.trainer)
        self._optimizers = [
            {**_described(optimizer), **self._schedule()} for optimizer in self.trainer.optimizers
        ]
        before = self._optimizers_before if is_resumed(self.trainer) else None
        difference = _difference(before, self._optimizers) if before else None
        if difference is not None:
            raise ConfigError(
                f"a run is resumed with the optimizer that it had, and these differ: {difference}. Give the "
                "options and batch size of the checkpoint, or start a new run"
            )

    def _schedule(self) -> dict[str, Any]:
        """Options of the schedule, which goes on as it was too."""
        return {
            name: getattr(self, name) for name in ("lr_schedule", "lr_steps", "warmup") if hasattr(self, name)
        }

    def on_train_start(self) -> None:
        """Let an interrupted epoch continue with the next batch, and a finished one with the next epoch."""
        leave_finished_epoch(self.trainer)
        load_loader_states(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse what is not finite; let a run that broke off within a batch resume with it.

        Of buffers those of batch norm count: others may hold an infinity on purpose, such as a mask.
        """
        norms = [m for m in self.modules() if isinstance(m, _BatchNorm)]
        state = [*self.parameters(), *(buffer for norm in norms for buffer in norm.buffers())]
        if not all(tensor.isfinite().all() for tensor in state):
            cause = sys.exc_info()[1]  # set where the checkpoint is one that is saved after an error
            said = f"{cause}. " if isinstance(cause, NumericalError) else ""
            raise NumericalError(
                f"{said}Weights or batch statistics are not finite at step {self.global_step}: no checkpoint "
                "is written, and the ones before stay as they are"
            )
        checkpoint["optimizers"] = self._optimizers
        if self.preprocessing is not None:
            checkpoint["preprocessing"] = self.preprocessing
        checkpoint["found_lr"] = self._found_lr
        fit = checkpoint.get("loops", {}).get("fit_loop", {})
        current = fit.get("epoch_loop.batch_progress", {}).get("current", {})
        unfinished = current.get("ready", 0) - current.get("processed", 0)
        for loader in fit.get("state_dict", {}).get("combined_loader", []):
            if unfinished and "batches" in loader:  # a loader of ours counts what it handed out
                loader["batches"] -= unfinished

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up which optimizers the run had; a checkpoint of an earlier version does not say.

        A part that is compiled in one of checkpoint and module, and not in the other, has the same weights.
        """
        self._optimizers_before = checkpoint.get("optimizers")
        if self._trainer is None:
            self.preprocessing = checkpoint.get("preprocessing", self.preprocessing)
            self.own_preprocessing = "preprocessing" in checkpoint
        else:  # what is done is known already
            compare_with_checkpoint(self, checkpoint)
        if self._trainer is not None and is_resumed(self.trainer):
            if checkpoint.get("found_lr") is not None:
                self.lr = checkpoint["found_lr"]
            for name in leave_finders_out(self.trainer):
                rank_zero_info(f"{name} is left out: a run is resumed with what it had")
        own = {_uncompiled(key): key for key in self.state_dict()}
        for part in checkpoint.keys() & {
            "state_dict",
            "current_model_state",
        }:  # of WeightAveraging the second
            weights = checkpoint[part].items()
            checkpoint[part] = {own.get(_uncompiled(key), key): value for key, value in weights}
            _compare_types(checkpoint[part], self.state_dict())

    def _validate_the_last_epoch(self) -> None:
        """Let what is validated include the last epoch, or step, whose accuracy is the result."""
        trainer = self.trainer
        epochs, every, steps = trainer.max_epochs or 0, trainer.check_val_every_n_epoch, trainer.max_steps
        if every is not None and epochs > 0:
            trainer.check_val_every_n_epoch = _divisor(epochs, every)
        elif every is None and steps > 0 and trainer.enable_validation:  # batches, over all epochs
            batches = steps * trainer.accumulate_grad_batches
            asked = int(min(trainer.val_check_batch or math.inf, batches))
            divisor = _divisor(batches, asked)
            # Of a prime number of steps there is none but 1: then the last step alone.
            trainer.val_check_batch = divisor if 4 * divisor >= asked else batches

    def planned_steps(self, schedule: str | None) -> float:
        """Return the optimizer steps of the run; infinity where nobody knows them, and nothing depends on it.

        Args:
            schedule: What needs them, in words; None if nothing does.

        Raises:
            ConfigError: If they are needed and not known.
        """
        steps = self.trainer.estimated_stepping_batches  # -1 of a loader without a length
        known = 0 <= steps < math.inf
        if schedule is not None and not known:
            if (self.trainer.max_epochs or -1) > 0:
                raise ConfigError(
                    f"{schedule} needs the number of steps, and the training loader has no length: set "
                    "trainer.max_steps or limit_train_batches"
                )
            raise ConfigError(f"{schedule} needs an end: set trainer.max_epochs or max_steps")
        return steps if known else math.inf

    def global_batch_size(self) -> int | None:
        """Images per optimizer step, over all devices and accumulated batches; None if no loader tells."""
        if self.trainer.train_dataloader is None:  # a run that counts steps alone has not looked at it yet
            self.trainer.fit_loop.setup_data()
        size = getattr(self.trainer.train_dataloader, "batch_size", None)
        if size is None:
            return None
        return int(size) * self.trainer.world_size * self.trainer.accumulate_grad_batches


def _divisor(length: int, most: int) -> int:
    """Largest divisor of ``length`` up to ``most``."""
    return next(n for n in range(min(most, length), 0, -1) if length % n == 0)


def _compare_types(weights: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise :class:`ConfigError` for weights of another kind of numbers, which torch would make fit."""
    for key in weights.keys() & own.keys():
        types = [value.dtype for value in (weights[key], own[key]) if isinstance(value, torch.Tensor)]
        if len(types) == 2 and kind_of(types[0]) != kind_of(types[1]):
            raise ConfigError(
                f"the weight {key} of the checkpoint is of the type {types[0]}, and the module's of "
                f"{types[1]}: the file is damaged, or of another module"
            )


def _uncompiled(key: str) -> str:
    """Return the name of a weight without what torch.compile adds."""
    return key.replace("_orig_mod.", "")


def _described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Options of an optimizer as it was built, in plain data."""
    groups = []
    for group in optimizer.param_groups:
        options = {
            name: value.tolist() if isinstance(value, torch.Tensor) else to_spec(value)
            for name, value in group.items() if name != "params"
        }  # fmt: skip
        options["lr"] = options.pop("initial_lr", options["lr"])  # lr is where a schedule has it
        groups.append(options)
    return {"class": type(optimizer).__name__, "groups": groups}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):  # one of them may have been in single precision
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _difference(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str | None:
    """First difference of options that both have, in words; checkpoints of older versions have fewer."""
    for old, new in zip(before, now, strict=False):
        groups = zip(old["groups"], new["groups"], strict=False)
        for theirs, ours in [(old, new), *groups]:
            for name in sorted((theirs.keys() & ours.keys()) - {"groups"}):
                if not _equal(theirs[name], ours[name]):
                    return f"checkpoint: {name}={theirs[name]}; configuration: {name}={ours[name]}"
        if len(old["groups"]) != len(new["groups"]):
            counts = len(old["groups"]), len(new["groups"])
            return f"checkpoint: {counts[0]} parameter groups; configuration: {counts[1]}"
    return None
