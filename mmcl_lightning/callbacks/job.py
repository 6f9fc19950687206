"""Which run a SLURM job was at, so that the job goes on with it when it is started again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from mmcl_lightning._checkpoints import has_good
from mmcl_lightning._files import whole_file

__all__ = ["JobMark", "requeued_runs"]

_NAME = "slurm_job.json"


class JobMark(Callback):
    """Write into a run's folder which SLURM job trains it, by which command line; nothing without SLURM.

    Args:
        arguments: The arguments of the command line.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write it, now that the run has a folder."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process has to ask
        if trainer.is_global_zero and "SLURM_JOB_ID" in os.environ:
            with whole_file(folder / _NAME) as file:
                file.write(json.dumps(_job(self.arguments)).encode())


def requeued_runs(folder: Path, arguments: list[str]) -> list[Path]:
    """Return the runs with a checkpoint that an earlier start of this SLURM job left, by the same arguments.

    Args:
        folder: Folder of runs.
        arguments: The arguments of the command line.
    """
    mine = _job(arguments)
    found = []
    for path in [*folder.glob(_NAME), *folder.glob(f"*/{_NAME}")]:
        try:
            mark = json.loads(path.read_text())
            earlier = mark.pop("start") < mine["start"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # somebody else's file
            continue
        if earlier and mark == {name: mine[name] for name in ("job", "arguments")} and has_good(path.parent):
            found.append(path.parent)
    return found


def _job(arguments: list[str]) -> dict[str, Any]:
    """Return what tells this command of this job from others, and how often the job was started before."""
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    job = os.environ.get("SLURM_JOB_ID")
    return {"job": job, "arguments": arguments, "start": int(start) if start.isdigit() else 0}
