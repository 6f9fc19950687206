"""How a trainer writes and reads its checkpoints: whole files, whose checksums are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from mmcl_lightning._checkpoints import check_file, write_file
from mmcl_lightning._structure import check_parts

__all__ = ["WholeCheckpointIO", "keep_files_whole"]


class WholeCheckpointIO(TorchCheckpointIO):
    """Lightning's way to write a checkpoint, but for two things.

    Lightning writes into the folder for temporary files and moves: to another file system that is a copy, of
    which a kill or a full disk leaves a part under the final name. And it takes a damaged tensor for numbers.
    Files that do not lie on this machine are left to it.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write beside the target, and rename."""
        if _is_remote(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_file(checkpoint, path)

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read what is not damaged.

        Raises:
            ConfigError: If the checksums say that it is, or a part is not what it should be.
        """
        if not _is_remote(path) and Path(path).is_file():
            check_file(path, "a checkpoint")
        return check_parts(super().load_checkpoint(path, *args, **kwargs), path)


def keep_files_whole(trainer: Trainer) -> None:
    """Let a trainer write and read so, unless it was given a way of its own."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = WholeCheckpointIO()


def _is_remote(path: str | Path) -> bool:
    return "://" in str(path)
