"""The callback that writes the record of a run when it ends."""

from __future__ import annotations

import os
import statistics
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from mmcl_lightning import ledger
from mmcl_lightning._lightning import has_trained
from mmcl_lightning._specs import to_spec
from mmcl_lightning.callbacks.recorder import Recorder, smaller_is_better
from mmcl_lightning.errors import DataError
from mmcl_lightning.ledger import Metric, Record
from mmcl_lightning.losses import ContrastiveLoss

__all__ = ["Ledger"]

_PLACES = ("logger", "default_root_dir", "enable_progress_bar")  # say where and how it shows


class Ledger(Callback):
    """Write ``ledger.json`` when a fit ends: what ran, on what, and every logged number.

    Of a module that is ``measured_by`` a test, as a few-shot evaluation is, it is the record of that.

    The command line adds one to every run; ``mmcl report`` turns a folder of them into a table and a plot.
    A resumed run continues its record.

    Args:
        folder: Where to write; ``None`` for the logger's folder.

    Reads:
        Everything that is logged; ``protocol_texts`` of module and callbacks that have them; the datamodule's
        ``fingerprint()``, ``prepared()`` and ``folder``.

    Writes:
        ``ledger.json``, on the first process: status ``finished``, ``interrupted``, or ``failed`` and why.
        Nothing of a ``fast_dev_run``.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._recorder = Recorder()
        self._forget()

    def _forget(self) -> None:
        self._recorder.metrics = {}
        self._before = 0.0  # seconds of the sessions before this one
        self._start: float | None = None
        self._stepped = False  # whether this session began a step
        self._started = ""
        self._commit = ""
        self._path: Path | None = None
        self._protocols: dict[str, str] = {}  # of the sessions before this one

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Listen to what is logged; forget another run."""
        if stage != _measured_by(pl_module):
            return
        if stage != "fit" or not has_trained(trainer):
            self._forget()
        if self._recorder not in trainer.loggers:
            self._recorder.owner, self._recorder.trainer = self, trainer
            trainer.loggers = [*trainer.loggers, self._recorder]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask where to write: every process has to, since the first one tells the others."""
        self._path = Path(self.folder or trainer.log_dir or trainer.default_root_dir) / "ledger.json"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._stepped = False
        if trainer.is_global_zero:  # now: it may change while this runs, and asking may fail in the end
            self._commit = ledger.commit()
        self._start = time.monotonic()
        self._started = self._started or datetime.now(timezone.utc).isoformat(timespec="seconds")

    def on_train_batch_start(self, *args: Any) -> None:
        """Note that there is something to record."""
        self._stepped = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record of a run that came to its end."""
        self._write(trainer, pl_module, "finished")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of a test that is recorded."""
        if _measured_by(pl_module) == "test":
            self.on_fit_start(trainer, pl_module)
            self.on_train_start(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record of such a test."""
        if _measured_by(pl_module) == "test":
            self._write(trainer, pl_module, "finished")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the record of a run that broke off, once it had started to train."""
        if self._stepped:
            broken = isinstance(exception, (KeyboardInterrupt, SIGTERMException))
            reason = str(exception).strip().split("\n")[0] or type(exception).__name__
            try:
                self._write(trainer, pl_module, "interrupted" if broken else f"failed: {reason}")
            except OSError as error:  # what broke the run off is to be read, and may be the same full disk
                rank_zero_warn(f"no record of the run is written: {error.strerror}: {error.filename}")

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers and the seconds so far."""
        curves = {name: list(metric.curve) for name, metric in self._recorder.metrics.items()}
        for name, point in self._recorder.pending().items():
            curves.setdefault(name, []).append(point)
        trainer = self._recorder.trainer
        protocols = self._protocols | ({} if trainer is None else _protocols(trainer))
        return {"seconds": self.seconds, "started": self._started, "curves": curves, "protocols": protocols}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up."""
        self._before, self._started = state_dict["seconds"], state_dict["started"]
        self._protocols = dict(state_dict.get("protocols", {}))  # a checkpoint of an earlier version has none
        self._recorder.metrics = {
            name: Metric([list(point) for point in curve], smaller_is_better(name))
            for name, curve in state_dict["curves"].items()
        }

    @property
    def seconds(self) -> float:
        """Seconds of training so far, over all sessions."""
        return self._before + (0.0 if self._start is None else time.monotonic() - self._start)

    def _write(self, trainer: Trainer, module: LightningModule, status: str) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run or self._path is None:  # type: ignore[attr-defined]
            return
        metrics = {name: metric for name, metric in self._recorder.metrics.items() if metric.curve}
        speed = metrics.get("time/images_per_second")
        config = _config(trainer, module)
        seed = os.environ.get("PL_GLOBAL_SEED")
        Record(
            status=status,
            method=_method(module),
            config=config,
            config_hash=ledger.config_hash(config),
            seed=None if seed is None else int(seed),
            commit=self._commit or ledger.commit(),
            data=_data(trainer),
            protocols=self._protocols | _protocols(trainer),
            hardware={**ledger.hardware(), "processes": trainer.world_size},
            epochs=trainer.current_epoch,
            steps=trainer.global_step,
            seconds=round(self.seconds, 2),
            images_per_second=None if speed is None else statistics.median(p[3] for p in speed.curve),
            peak_memory=ledger.peak_memory(),
            started=self._started,
            metrics=metrics,
            pretraining=_pretraining(module),
            loss=_loss(module),
        ).write(self._path)


def _measured_by(module: LightningModule) -> str:
    """Return the command whose numbers a record is of: ``"fit"`` unless the module says otherwise."""
    command: str = getattr(module, "measured_by", "fit")
    return command


def _config(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Return the configuration of the command line, or the options of the module in other programs."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SaveConfigCallback):
            config: dict[str, Any] = yaml.safe_load(callback.parser.dump(callback.config))
            config["trainer"] = {k: v for k, v in config["trainer"].items() if k not in _PLACES}
            data = config.get("data")
            if isinstance(data, dict) and isinstance(data.get("init_args"), dict):
                data["init_args"].pop("root", None)  # where the images lie is not what they are
            options = (config.get("model") or {}).get("init_args") or {}
            if "checkpoint" in options and isinstance(origin := getattr(module, "checkpoint", None), str):
                options["checkpoint"] = origin  # where an evaluation is resumed, it has its own file there
            # Nor the files that it was read from and went on from.
            return {name: value for name, value in config.items() if name not in ("config", "ckpt_path")}
    kind = type(module)
    path = f"{kind.__module__}.{kind.__qualname__}"
    return {"model": {"class_path": path, "init_args": dict(module.hparams)}}


def _method(module: LightningModule) -> str:
    criterion = getattr(module, "criterion", None)  # not of MoCo, an evaluation, somebody else's module
    return criterion.method if isinstance(criterion, ContrastiveLoss) else type(module).__name__


def _loss(module: LightningModule) -> dict[str, Any] | None:
    criterion = getattr(module, "criterion", None)
    return to_spec(criterion) if isinstance(criterion, ContrastiveLoss) else None


def _data(trainer: Trainer) -> dict[str, Any]:
    datamodule: Any = getattr(trainer, "datamodule", None)
    found: dict[str, Any] = {"class": type(datamodule).__name__ if datamodule is not None else None}
    found["held_out"] = getattr(datamodule, "held_out", "test")
    if hasattr(datamodule, "fingerprint"):
        found["fingerprint"] = datamodule.fingerprint()
    if hasattr(datamodule, "description"):
        found["read_as"] = datamodule.description()
    # Without them numbers of other folders or crops would stand below each other in a report.
    if hasattr(datamodule, "folder"):
        found["folder"] = datamodule.folder
    if hasattr(datamodule, "prepared"):  # names a user's own transform too, which no checkpoint can hold
        found["prepared"] = datamodule.prepared()
    return found


def _pretraining(module: LightningModule) -> dict[str, Any] | None:
    """Return where the weights come from that an evaluation reads from ``checkpoint``, if it is known."""
    checkpoint = getattr(module, "checkpoint", None)
    if not isinstance(checkpoint, str):
        return None
    path = Path(checkpoint).parent.parent / "ledger.json"
    if not path.is_file():
        return None
    try:
        record = Record.read(path)
    except DataError as error:
        rank_zero_warn(f"the ledger will not say what is evaluated: {error}")
        return None
    return {
        name: getattr(record, name)
        for name in ("name", "method", "config", "seed", "epochs", "commit", "loss")
    }


def _protocols(trainer: Trainer) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (*trainer.callbacks, trainer.lightning_module):  # type: ignore[attr-defined]
        found |= getattr(part, "protocol_texts", {})
    return found
