"""The commands that have a module, data and a trainer: LightningCLI around ours."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import (
    Checkpoint,
    ModelCheckpoint,
    ProgressBar,
    RichProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden

from mmcl_lightning._checkpoints import newest_good, read_checkpoint, runs_folder
from mmcl_lightning._cores import available_cores
from mmcl_lightning._files import short_path
from mmcl_lightning._lightning import fits_processes, has_saved, requeue_in_run_folder
from mmcl_lightning._next import say_next
from mmcl_lightning._parser import RecipeParser
from mmcl_lightning._parser_messages import class_names
from mmcl_lightning._resuming import check_weights, differing_model, differing_run
from mmcl_lightning._text import counted, say
from mmcl_lightning.callbacks import Ledger, Readouts, RepresentationWriter, ResumableCheckpoint
from mmcl_lightning.callbacks.checkpoint_io import keep_files_whole
from mmcl_lightning.callbacks.config import SaveConfigAtStart
from mmcl_lightning.callbacks.job import JobMark, requeued_runs
from mmcl_lightning.callbacks.memory import MemoryCheck
from mmcl_lightning.callbacks.monitors import MonitorCheck
from mmcl_lightning.callbacks.progress import EpochLines, progress_bar
from mmcl_lightning.callbacks.skipped import SkippedImages
from mmcl_lightning.callbacks.stopping import StopAtOnce
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.negatives.command import draw_negatives

__all__ = ["MMCLCLI", "negatives", "train"]


#: Modules that have all their weights from their option ``checkpoint``.
_WHOLE = ("FewShotEvaluation", "PretrainedBackbone")


class MMCLCLI(LightningCLI):
    """LightningCLI with recipes by name, plain error messages and a closing summary."""

    _saved: dict[str, Any] | None = None  # the checkpoint to resume from, for comparing
    _arguments: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arguments = list(kwargs.get("args") or [])  # a job that is started again finds its run by them
        try:
            super().__init__(*args, **kwargs)
        except BaseException as error:
            # TensorBoard's does not say where. What has no number is Lightning's own, and none of the system.
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = getattr(getattr(self, "trainer", None), "log_dir", None)
            for callback in self._config_callbacks():
                callback.remove_unused()
            raise

    def _config_callbacks(self) -> list[SaveConfigAtStart]:
        callbacks = getattr(getattr(self, "trainer", None), "callbacks", [])
        return [callback for callback in callbacks if isinstance(callback, SaveConfigAtStart)]

    @property
    def options(self) -> Any:
        """What a configuration and the command line say, of the command if there are several."""
        name = self.config.get("subcommand")
        return self.config[name] if name else self.config

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the command that was asked for: the options of each take a while to collect."""
        every = LightningCLI.subcommands()
        asked = self._arguments[0] if self._arguments else None
        return {asked: every[asked]} if asked in every else every

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the readouts, so that a configuration and the command line reach each by its name."""
        parser.add_lightning_class_args(Readouts, "readouts")

    def _parse_ckpt_path(self) -> None:
        # Lightning would silently let the checkpoint's model options win over the configuration and the
        # command line. Here the configuration wins, and differences are said once the model is there.
        if self.options.get("weights_only") is None:  # Lightning lets remote files, and SLURM's, run code
            self.options["weights_only"] = True
        path = self._ckpt_path()
        before = requeued_runs(runs_folder(self.options.trainer), self._arguments)
        if before and self.config.get("subcommand") == "fit":
            say("This SLURM job was started again, and goes on with its run", file=sys.stderr)
            path, self._saved = newest_good(*before)
            self.options["ckpt_path"] = path
        elif path is not None and (path == "last" or Path(path).is_dir()):
            # Of "last" Lightning would look in the new run's own, empty folder.
            path, self._saved = newest_good(self._run_folder() if path == "last" else Path(path))
            self.options["ckpt_path"] = path
        options = self.options.model.get("init_args") or {}
        kind = str(self.options.model.get("class_path")).rpartition(".")[2]
        if path is not None and kind in _WHOLE:
            raise ConfigError(
                f"this module has its weights from model.checkpoint: give --model.checkpoint {path}, and "
                "leave ckpt_path out"
            )
        fits = kind == "LogisticEvaluation" and self.config.get("subcommand") == "test"
        whole = kind in _WHOLE or fits  # needs no checkpoint
        if path is None and self.config.get("subcommand") != "fit" and not whole:
            what = "the classifier has" if options.get("checkpoint") else "these are"
            say(f"warning: no --ckpt_path, so {what} random weights", file=sys.stderr)
        if path is None or path in ("best", "hpc") or path.startswith("registry") or "://" in path:
            return
        self._saved = self._saved or read_checkpoint(path)
        if "checkpoint" in options:  # an evaluation, whose own checkpoint has the backbone that it judges
            if "checkpoint" not in self._saved["hyper_parameters"]:
                raise ConfigError(
                    f"{path} is no checkpoint of {kind} but of a network that it can judge: give it as "
                    f"--model.checkpoint {path} to `fit`, and leave ckpt_path out"
                )
            origin = self._saved["hyper_parameters"]["checkpoint"]
            if options["checkpoint"] not in (None, origin, path):
                raise ConfigError(
                    f"{path} judges {origin}, not {options['checkpoint']}: leave model.checkpoint out"
                )
            options["checkpoint"] = path

    def _run_folder(self) -> Path:
        """Folder in which "last" is looked for: of the run whose config.yaml is given, else of all runs."""
        options = self.options
        own = [Path(str(path)).parent for path in options.get("config") or []]
        return next((run for run in own if (run / "checkpoints").is_dir()), runs_folder(options.trainer))

    def _ckpt_path(self) -> str | None:
        path = self.options.get("ckpt_path")
        return None if path is None else str(path)

    def before_instantiate_classes(self) -> None:
        """Refuse what Lightning would divide by."""
        batches = self.options.trainer.accumulate_grad_batches
        if batches < 1:
            raise ConfigError(f"trainer.accumulate_grad_batches must be an integer >= 1, got {batches}")

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Build the trainer, with our progress bar in place of Lightning's, or lines without a terminal."""
        own = self.config_init[self.subcommand] if self.subcommand else self.config_init
        if isinstance(given := own["trainer"].get("callbacks"), list):
            kwargs["callbacks"] = _last_of_its_kind(given)
        trainer: Any = super().instantiate_trainer(**kwargs)
        self._refuse_processes(trainer)
        keep_files_whole(trainer)
        requeue_in_run_folder(trainer, resumed=self._ckpt_path() is not None)
        callbacks: list[Any] = trainer.callbacks
        for index, callback in reversed(list(enumerate(callbacks))):
            if type(callback) in (RichProgressBar, TQDMProgressBar):  # a subclass is the user's own
                # Where there is no terminal, lines take the place of that of `fit`.
                callbacks[index : index + 1] = [progress_bar()] if sys.stderr.isatty() else []
        saving = [index for index, callback in enumerate(callbacks) if isinstance(callback, Checkpoint)]
        callbacks.insert(min(saving, default=len(callbacks)), SkippedImages())  # checkpoints have its count
        bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if self.subcommand == "fit" and not (bar and sys.stderr.isatty()):
            callbacks.append(EpochLines())
        callbacks.append(StopAtOnce())
        return trainer

    def _refuse_processes(self, trainer: Any) -> None:
        """Refuse what several processes cannot do, before they wait for each other."""
        if not fits_processes(trainer):
            raise ConfigError(
                f"{trainer.num_devices} devices on each of {trainer.num_nodes} machines are not the "
                "processes that were started: set --trainer.devices to torchrun's --nproc-per-node or "
                "SLURM's --ntasks-per-node, --trainer.num_nodes to --nnodes or --nodes, and "
                "--trainer.strategy ddp"
            )
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if self.options.trainer.get("sync_batchnorm") and on_cpu and trainer.world_size > 1:
            raise ConfigError(
                f"trainer.sync_batchnorm works on GPUs alone, and there are {trainer.world_size} processes "
                "on the CPU: set --trainer.sync_batchnorm false, or --trainer.devices 1"
            )

    def after_instantiate_classes(self) -> None:
        """Say where a checkpoint that is about to be resumed differs from the configuration."""
        path = self._ckpt_path()
        if self._saved is None:
            return
        self.model.on_load_checkpoint(self._saved)  # may make parts of the sizes that the checkpoint has
        check_weights(str(path), self._saved["state_dict"], self.model.state_dict())
        lines = [*differing_model(str(path), self._saved["hyper_parameters"], self.model.hparams)]
        if self.subcommand == "fit":
            lines += differing_run(str(path), self.options.as_dict())
        for line in lines:
            say(line, file=sys.stderr)

    def before_fit(self) -> None:
        """Share out the cores, and replace Lightning's own checkpoint where the recipe's is gone.

        A list of callbacks takes the recipe's away. Lightning's would save at the end of validations alone,
        perhaps never, and nothing on Ctrl-C.
        """
        self._refuse_untrained()
        on_cpu = self.trainer.strategy.root_device.type == "cpu"
        _share_cores(getattr(self.datamodule, "num_workers", 0), self.trainer.num_devices, on_cpu)
        large = self.model.hparams.get("backbone") == "resnet50"
        if on_cpu and large and isinstance(self.datamodule, ImageFolderDataModule):
            say(
                "A ResNet-50 is slow on a CPU: --config overlays/cpu, after the recipe, trains a small "
                "network at 32 pixels",
                file=sys.stderr,
            )
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        callbacks += [MemoryCheck(), MonitorCheck(), JobMark(self._arguments)]
        for callback in self._config_callbacks():
            callback.watch(self.trainer)
        if "ModelCheckpoint" not in str(self.config.fit.trainer.callbacks):
            for index, callback in enumerate(callbacks):
                if type(callback) is ModelCheckpoint:  # a subclass is ours, or the user's own
                    callbacks[index] = ResumableCheckpoint()

    def before_validate(self) -> None:
        """Say what to use instead where a module has no validation."""
        self._refuse_untrained()

    def _refuse_untrained(self) -> None:
        if getattr(self.model, "measured_by", "fit") == "test":
            raise ConfigError(f"{type(self.model).__name__} trains nothing: `test` gives its number")

    def after_fit(self) -> None:
        """Print where things lie and how to look at them."""
        if not self.trainer.is_global_zero:
            return
        epochs, steps = self.trainer.current_epoch, self.trainer.global_step
        in_steps = bool(steps or not epochs)  # and not by a fit of its own, as LogisticEvaluation
        say(f"\nTrained {counted(epochs, 'epoch')}, {counted(steps, 'step')}." if in_steps else "")
        if self._saved is not None and self._saved["global_step"] == steps:
            say(
                "The checkpoint had as many: nothing was left to train. --trainer.max_epochs sets the "
                "length; a learning rate whose schedule has ended stays where it is"
            )
        for part in (*self.trainer.callbacks, self.model):  # type: ignore[attr-defined]
            for line in getattr(part, "summary", list)():
                say(line)
        saved: Any = self.trainer.checkpoint_callback
        checkpoint = getattr(saved, "last_model_path", "") or getattr(saved, "best_model_path", "")
        if not has_saved(saved):  # nothing was left to train
            checkpoint = self._ckpt_path() or checkpoint
        say(f"Checkpoint:   {short_path(checkpoint) if checkpoint else 'none was saved'}")
        boards = [logger for logger in self.trainer.loggers if isinstance(logger, TensorBoardLogger)]
        for board in boards:
            say(f"TensorBoard:  {short_path(board.log_dir)}")
        if boards and in_steps:
            say_next("fit", runs=boards[-1].root_dir)
        else:
            say_next("fit, no TensorBoard", runs=self.trainer.default_root_dir)

    def before_test(self) -> None:
        """Say what to use instead where a module has no test, as pretraining has none."""
        if not is_overridden("test_step", self.model, LightningModule):
            raise ConfigError(
                f"{type(self.model).__name__} has no test: `validate` gives val/loss and the k-NN readout on "
                "the test images, `predict` writes their representations"
            )

    def after_test(self) -> None:
        """Print the result of a module that is measured by its test."""
        if not self.trainer.is_global_zero:
            return
        if getattr(self.model, "measured_by", "fit") == "test":
            say("\n" + "\n".join(self.model.summary()))
        say_next("test", runs=self.trainer.default_root_dir)

    def after_validate(self) -> None:
        """Say what to do next."""
        if self.trainer.is_global_zero:
            say_next("validate")

    def before_predict(self) -> None:
        """Add the writer of representations, unless the configuration brings one."""
        self.trainer.loggers = []  # there is nothing to log, and each would make a folder
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, RepresentationWriter) for callback in callbacks):
            callbacks.append(RepresentationWriter())

    def after_predict(self) -> None:
        """Say what to do with the file next."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RepresentationWriter) and self.trainer.is_global_zero:
                say_next("predict", file=callback.target)


class NegativesCLI(MMCLCLI):
    """The command ``negatives``: module and data of a configuration as every command has them, and no run."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the picture."""
        super().add_arguments_to_parser(parser)
        parser.add_function_arguments(draw_negatives, skip={"trainer", "model", "datamodule"})


def train(arguments: list[str]) -> None:
    """Run a command that is a method of the trainer.

    Args:
        arguments: All arguments, the command's name among them.

    Raises:
        SystemExit: With Lightning's code of a signal.
    """
    try:
        _command_line(MMCLCLI, arguments, "mmcl")
    except SIGTERMException as stop:
        raise SystemExit(stop.code or 143) from None  # Lightning's own has no code, which means success


def negatives(arguments: list[str]) -> None:
    """Draw which negatives count, and write them down.

    Args:
        arguments: Arguments after the command's name.
    """
    cli = _command_line(NegativesCLI, arguments, "mmcl negatives", run=False)
    names = [name for name in inspect.signature(draw_negatives).parameters if name in cli.options]
    given = {name: cli.options[name] for name in names if name not in ("trainer", "model")}
    draw_negatives(cli.trainer, cli.model, cli.datamodule, **given)


def _command_line(kind: type[MMCLCLI], args: list[str] | None, prog: str, run: bool = True) -> MMCLCLI:
    """Read a configuration and the command line, and run what they ask for."""
    class_names()  # imports our classes, which are found by their bare names from then on
    return kind(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        save_config_callback=SaveConfigAtStart,
        save_config_kwargs={"overwrite": True},
        trainer_defaults={"default_root_dir": "runs", "callbacks": [Ledger()]},
        parser_class=RecipeParser,
        parser_kwargs={"prog": prog},
        args=args,
        run=run,
    )


def _share_cores(workers: int, processes: int, on_cpu: bool) -> None:
    """Leave up to half of the cores to loading: threads of torch and workers on one core wait for each other.

    More workers than cores are said, and left: images on a slow disk may want them.

    Args:
        workers: Loading workers of each process.
        processes: Processes of this machine that train.
        on_cpu: Whether they train on its cores.
    """
    cores = max(1, available_cores() // processes)
    if workers > cores:
        rank_zero_info(
            f"{workers} workers load on {counted(cores, 'core')}; --data.num_workers sets how many"
        )
    threads = cores - min(workers, cores // 2)
    if on_cpu and "OMP_NUM_THREADS" not in os.environ and threads < torch.get_num_threads():
        torch.set_num_threads(threads)
        rank_zero_info(
            f"torch computes on {threads} of {cores} cores, the rest load; OMP_NUM_THREADS=N sets it"
        )


def _last_of_its_kind(callbacks: list[Any]) -> list[Any]:
    """Leave out a recipe's ResumableCheckpoint where another one is given after it for the same files."""
    kept: dict[Any, Any] = {}
    for callback in callbacks:
        saves = type(callback) is ResumableCheckpoint
        kept[("saves", callback.dirpath, callback.monitor) if saves else id(callback)] = callback
    return list(kept.values())
