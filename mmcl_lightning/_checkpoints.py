"""Files that ``torch.save`` wrote: find the newest one of some runs, read one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmcl_lightning.errors import ConfigError

__all__ = ["newest_checkpoint", "read_file"]


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
