"""Files that ``torch.save`` wrote: find the newest one of some runs, read one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mmcl_lightning.errors import ConfigError

__all__ = ["newest_checkpoint", "newest_in", "read_checkpoint", "read_file", "runs_folder"]


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that was written last in a run's folder or below a folder of runs, or ``None``.

    Of files written at the same moment it is ``last.ckpt``.

    Args:
        folder: ``RUNS`` or ``RUNS/RUN``, where a logger makes ``RUNS/RUN/checkpoints``.
    """
    found = [*folder.glob("checkpoints/*.ckpt"), *folder.glob("*/checkpoints/*.ckpt")]
    return max(found, key=lambda path: (path.stat().st_mtime, path.stem.startswith("last")), default=None)


def read_file(path: str | Path, what: str) -> Any:
    """Load a file of tensors and plain data on the CPU.

    Args:
        path: The file.
        what: What it should be, for the message.

    Raises:
        ConfigError: If it is missing, or damaged, or holds other objects.
    """
    import torch  # seconds, of which a command that only looks for a file has no need

    if not Path(path).is_file():
        raise ConfigError(f"there is no checkpoint {path}: give the path of an existing file")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a zip, pickle or operating-system error, each with a message of its own
        reason = (str(error).strip() or "it is empty").splitlines()[0][:120]
        raise ConfigError(
            f"{path} cannot be read as {what} ({type(error).__name__}: {reason}): it is damaged, "
            "or holds more than tensors and plain data"
        ) from error


def newest_in(folder: Path) -> str:
    """Return the path of the newest checkpoint of a run, or of a folder of runs.

    Raises:
        ConfigError: If there is none.
    """
    found = newest_checkpoint(folder)
    if found is None:
        raise ConfigError(f"--ckpt_path: there is no run with a checkpoint in {folder}")
    print(f"--ckpt_path is {found}", file=sys.stderr)
    return str(found)


def runs_folder(trainer: Any) -> Path:
    """Return the folder in which the first logger of a trainer's configuration makes one for each run."""
    logger = trainer.logger[0] if isinstance(trainer.logger, list) else trainer.logger
    root = trainer.default_root_dir or "."
    if not logger and logger is not None:  # none at all: the trainer's folder itself has the checkpoints
        return Path(root)
    options = getattr(logger, "init_args", None) or {}
    name = options.get("name")
    return Path(options.get("save_dir") or root) / ("lightning_logs" if name is None else name)


def read_checkpoint(path: str) -> dict[str, Any]:
    """Read what Lightning saved.

    Raises:
        ConfigError: If it is nothing of that kind.
    """
    saved = read_file(path, "a checkpoint")
    if not (isinstance(saved, dict) and {"state_dict", "pytorch-lightning_version"} <= saved.keys()):
        raise ConfigError(f"{path} is no checkpoint of this package: it has no state_dict of Lightning")
    return {"hyper_parameters": {}, **saved}
