"""What this package asks of Lightning beyond its public interface, all in one place.

:data:`PRIVATE_NAMES` lists every private name of Lightning that is read, called or overridden. A test
compares it with the Lightning that is installed, so that a release without one of them is noticed by name.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, EarlyStopping, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.core import saving
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities.imports import _RICH_AVAILABLE
from lightning.pytorch.utilities.migration import pl_legacy_patch  # type: ignore[attr-defined]
from lightning.pytorch.utilities.migration.utils import _pl_migrate_checkpoint

__all__ = [
    "PRIVATE_NAMES",
    "callbacks_of",
    "datamodule_of",
    "fits_processes",
    "has_saved",
    "has_trained",
    "has_tried_out",
    "is_last_epoch",
    "is_resumed",
    "is_spawned",
    "is_step_whole",
    "is_training_done",
    "learning_rate_trial",
    "leave_finders_out",
    "leave_finished_epoch",
    "load_loader_states",
    "load_plainly",
    "looks_after_validation",
    "option_of_every_epoch",
    "pending_metrics",
    "read_options",
    "read_saved",
    "replace_hyperparameters",
    "request_stop",
    "requeue",
    "requeue_in_run_folder",
    "requeue_signal",
    "rich_is_installed",
    "takes_steps",
    "validates_now",
]

#: Private names by the class whose instances have them, or the module that has.
PRIVATE_NAMES: dict[Any, tuple[str, ...]] = {
    saving: ("_default_map_location", "_load_state"),
    LightningCLI: ("_parse_ckpt_path",),
    LightningModule: ("_trainer", "_hparams", "_hparams_initial"),
    EarlyStopping: ("_check_on_train_epoch_end",),
    ModelCheckpoint: (
        "_should_save_on_train_epoch_end",
        "_last_checkpoint_saved",
        "_last_global_step_saved",
        "_monitor_candidates",
        "_save_checkpoint",
        "_save_last_checkpoint",
        "_save_topk_checkpoint",
        "_should_skip_saving_checkpoint",
    ),
    Trainer: ("_accelerator_connector", "_checkpoint_connector", "_results", "_signal_connector"),
    _CheckpointConnector: ("_user_managed", "hpc_save_path"),
    _SignalConnector: ("_slurm_sigusr_handler_fn",),
    _LRCallback: ("early_stop_threshold",),
    _FitLoop: ("_data_fetcher", "_iteration_based_training", "_load_combined_loader_states"),
    _Loop: ("restarting",),
    _TrainingEpochLoop: ("_is_training_done", "_should_accumulate", "_should_check_val_fx"),
}


def callbacks_of(module: LightningModule) -> list[Any]:
    """Return the callbacks of the trainer that a module is attached to; none without a trainer."""
    trainer = module._trainer
    return [] if trainer is None else list(trainer.callbacks)  # type: ignore[attr-defined]


def datamodule_of(trainer: Trainer) -> Any:
    """Return the datamodule of a trainer, or None."""
    return getattr(trainer, "datamodule", None)


def read_saved(path: Any, map_location: Any, weights_only: bool | None) -> Any:
    """Read a checkpoint, a path, URL or open file, as Lightning's ``load_from_checkpoint`` does."""
    where = map_location or saving._default_map_location
    with pl_legacy_patch():
        return _load(path, map_location=where, weights_only=weights_only)


def read_options(path: str | Path) -> dict[str, Any]:
    """Read a file of options, .yaml or .csv, as Lightning's ``load_from_checkpoint`` does."""
    is_table = str(path).lower().endswith(".csv")
    read: Any = saving.load_hparams_from_tags_csv if is_table else saving.load_hparams_from_yaml
    return dict(read(path))


def load_plainly(kind: Any, saved: dict[str, Any], strict: bool | None, options: dict[str, Any]) -> Any:
    """Call a class with the options of a checkpoint as they are, and give it the state.

    For a file of the command line, Lightning would let jsonargparse build the options first, which imports
    and calls whatever they name.

    Args:
        kind: A module or data module.
        saved: The checkpoint.
        strict: As of ``load_from_checkpoint``.
        options: In place of the checkpoint's.
    """
    saved = _pl_migrate_checkpoint(saved)
    return saving._load_state(kind, saved, strict=strict, **{**options, "_instantiator": None})


def has_saved(callback: Any) -> bool:
    """Whether a ModelCheckpoint wrote a checkpoint; True of other callbacks, which do not say."""
    return bool(getattr(callback, "_last_checkpoint_saved", True))


def takes_steps(trainer: Trainer) -> bool:
    """Whether the module that is fitted has an optimizer: without one Lightning puts a mock in its place."""
    return not all(isinstance(part, _MockOptimizer) for part in trainer.optimizers)


def has_trained(trainer: Trainer) -> bool:
    """Whether a trainer goes on with a fit, rather than beginning one."""
    return trainer.fit_loop.epoch_progress.total.ready > 0


def has_tried_out(trainer: Trainer) -> bool:
    """Whether a finder of learning rate or batch size ran before this fit, and put back what was there."""
    path = trainer.ckpt_path
    return path is not None and Path(path).name.startswith((".lr_find_", ".scale_batch_size_"))


def is_resumed(trainer: Trainer) -> bool:
    """Whether a fit goes on from a checkpoint, other than the one with which a finder puts things back."""
    return trainer.ckpt_path is not None and not has_tried_out(trainer)


def learning_rate_trial(trainer: Trainer) -> Any:
    """Return what listens to the steps of a learning-rate finder while it tries, or None."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((callback for callback in callbacks if isinstance(callback, _LRCallback)), None)


def leave_finders_out(trainer: Any) -> list[str]:
    """Take the finders of learning rate and batch size out of a fit; return their names."""
    finders = [part for part in trainer.callbacks if isinstance(part, (LearningRateFinder, BatchSizeFinder))]
    trainer.callbacks = [part for part in trainer.callbacks if part not in finders]
    return [type(part).__name__ for part in finders]


def is_last_epoch(trainer: Trainer) -> bool:
    """Whether the training ends with the current epoch, as far as it is known yet."""
    epoch, step = trainer.current_epoch + 1, trainer.global_step
    enough = epoch >= (trainer.min_epochs or 0) and step >= (trainer.min_steps or 0)
    return (trainer.should_stop and enough) or epoch == trainer.max_epochs or step == trainer.max_steps


def is_training_done(trainer: Trainer) -> bool:
    """Whether the batches of the current epoch are all done."""
    return bool(trainer.fit_loop.epoch_loop._is_training_done)


def is_step_whole(trainer: Trainer) -> bool:
    """Whether the batch just done ended an optimizer step within an epoch."""
    loop = trainer.fit_loop.epoch_loop
    return not (loop._is_training_done or loop._should_accumulate())


def validates_now(trainer: Trainer) -> bool:
    """Whether a validation follows the batch just done."""
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None
    return bool(trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher))


def is_spawned(trainer: Trainer) -> bool:
    """Whether the processes were started by ``ddp_spawn`` or ``ddp_fork``."""
    return isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)


def request_stop(trainer: Trainer) -> None:
    """Let the trainer end its loops as after SIGTERM."""
    trainer._signal_connector.received_sigterm = True


def fits_processes(trainer: Trainer) -> bool:
    """Whether devices and machines are those for which torchrun or SLURM started processes."""
    environment = trainer._accelerator_connector.cluster_environment
    if trainer.world_size == 1 and not isinstance(environment, TorchElasticEnvironment):
        return True  # a job of SLURM may well have more tasks than a command in it needs
    try:
        environment.validate_settings(num_devices=trainer.num_devices, num_nodes=trainer.num_nodes)
    except ValueError:
        return False
    return True


def requeue_signal(trainer: Trainer) -> int | None:
    """Return the signal with which SLURM asks for a requeue; None without SLURM or without requeues."""
    environment: Any = trainer._accelerator_connector.cluster_environment
    wanted = isinstance(environment, SLURMEnvironment) and environment.auto_requeue
    return int(environment.requeue_signal) if wanted else None


def requeue(trainer: Trainer) -> None:
    """Write a checkpoint for SLURM and let it run the job again, as Lightning does within its handler."""
    trainer._signal_connector._slurm_sigusr_handler_fn(requeue_signal(trainer), None)  # type: ignore[arg-type]


def requeue_in_run_folder(trainer: Trainer, resumed: bool) -> None:
    """Let the checkpoint for SLURM lie in the run's own folder, and none that lies elsewhere be taken up.

    Lightning writes and seeks it in the trainer's folder, which all runs share.

    Args:
        trainer: A trainer that has run nothing yet.
        resumed: Whether a checkpoint will be given to it, which comes first anyway.
    """
    if not SLURMEnvironment.detect():
        return
    connector: Any = trainer._checkpoint_connector
    path_in = _CheckpointConnector.hpc_save_path

    def own_path(folder: Any) -> str:
        return path_in(Path(trainer.log_dir or folder) / "checkpoints")

    connector.hpc_save_path = own_path
    connector._user_managed = not resumed  # that is: no other place is looked at


def pending_metrics(trainer: Trainer | None) -> dict[str, Any]:
    """Return the values of this epoch that Lightning hands to the loggers after checkpoints are written."""
    # Within a validation the loggers have its numbers already.
    results = None if trainer is None or trainer.validating else trainer._results
    return {} if results is None else dict(results.metrics(on_step=False)["log"])


def replace_hyperparameters(module: LightningModule, options: dict[str, Any]) -> None:
    """Let a module's ``hparams``, and what loggers write of them, be ``options``."""
    module.hparams.clear()
    module.hparams.update(options)
    module._hparams_initial = copy.deepcopy(module._hparams)  # type: ignore[assignment]


def rich_is_installed() -> bool:
    """Whether Lightning's rich progress bar works."""
    return bool(_RICH_AVAILABLE)


def load_loader_states(trainer: Trainer) -> None:
    """Hand the training loaders their states from the checkpoint.

    Lightning does it when it sets the loaders up. A ``configure_optimizers`` that asks for the number of
    steps sets them up before the checkpoint's loop state is read, and then nobody does.
    """
    trainer.fit_loop._load_combined_loader_states()


def leave_finished_epoch(trainer: Trainer) -> None:
    """Let a run with ``max_steps`` that is resumed from the end of an epoch begin the next one.

    Lightning takes every such run for one that stopped within an epoch, and runs an epoch without a batch.
    """
    loop = trainer.fit_loop
    epochs: Any = loop.epoch_progress
    finished = epochs.current.ready == epochs.current.started == epochs.current.processed > 0
    if loop.restarting and finished and loop._iteration_based_training():
        epochs.total.completed, epochs.current.completed = epochs.total.processed, epochs.current.processed
        loop.reset_restart_stage()
        loop.epoch_loop.reset_restart_stage()
        _Loop.restarting.fset(loop, False)  # type: ignore[attr-defined]  # that of _FitLoop says True again


def looks_after_validation(trainer: Any, callback: Any) -> bool:
    """Whether a callback looks at its metric after validations alone, which do not come every epoch."""
    if (trainer.check_val_every_n_epoch or 1) == 1:
        return False
    if isinstance(callback, EarlyStopping):
        return not callback._check_on_train_epoch_end
    return isinstance(callback, ModelCheckpoint) and not callback._should_save_on_train_epoch_end(trainer)


def option_of_every_epoch(callback: Any) -> str:
    """Return the option that lets such a callback look after every epoch."""
    return f"{'check' if isinstance(callback, EarlyStopping) else 'save'}_on_train_epoch_end"
