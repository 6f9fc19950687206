"""Files that ``torch.save`` wrote: write and read one whole, find the newest good one of some runs."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

from mmcl_lightning._files import whole_file
from mmcl_lightning._structure import check_parts
from mmcl_lightning._text import say
from mmcl_lightning.errors import ConfigError

__all__ = [
    "beginning",
    "check_file",
    "checkpoints_in",
    "damage",
    "has_good",
    "newest_good",
    "read_checkpoint",
    "read_file",
    "runs_folder",
    "write_file",
]


#: How files of torch.save begin: a zip archive, and the pickle of its older format.
_BEGINNINGS = (b"PK", b"\x80")


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder or below a folder of runs, the newest first.

    Of files written at the same moment ``last.ckpt`` comes first.

    Args:
        folder: ``RUNS`` or ``RUNS/RUN``, where a logger makes ``RUNS/RUN/checkpoints``.
    """
    found = [*folder.glob("checkpoints/*.ckpt"), *folder.glob("*/checkpoints/*.ckpt")]
    return sorted(found, key=_written, reverse=True)


def _written(path: Path) -> tuple[float, bool]:
    try:
        written = path.stat().st_mtime
    except OSError:  # a link that leads nowhere, which reading it will say
        written = path.lstat().st_mtime
    return written, path.stem.startswith("last")


def damage(path: str | Path) -> str | None:
    """Return what is wrong with a file by the checksums that ``torch.save`` put into it; None if nothing is.

    ``torch.load`` does not look at them, and takes a changed byte of a tensor for a number.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except Exception as error:  # a changed byte may be taken for a length, a kind of compression, a name
        return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
    return None if part is None else f"the checksum of {part} is another one"


def has_good(folder: Path) -> bool:
    """Whether a run, or one of a folder of runs, has a checkpoint whose checksums are right."""
    return any(damage(path) is None for path in checkpoints_in(folder))


def write_file(content: Any, path: str | Path) -> None:
    """Write tensors and plain data as ``torch.save`` does; the file appears when it is whole.

    Raises:
        OSError: If it cannot be written, as on a full disk; it names the file.
    """
    import torch

    memory = io.BytesIO()  # torch.save turns an error of the disk into one that does not say so
    torch.save(content, memory)
    with whole_file(path) as file:
        file.write(memory.getbuffer())


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
    check_file(path, what)
    try:
        with open(path, "rb") as file:  # of a name, torch would go by its ending
            return torch.load(file, weights_only=True, map_location="cpu")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of zip, pickle or torch, whose messages name what nobody wrote
        raise ConfigError(
            f"{path} cannot be read as {what}: it is damaged, or holds more than tensors and plain data"
        ) from error


def check_file(path: str | Path, what: str) -> None:
    """Refuse a file that ``torch.save`` did not write, or whose checksums are wrong.

    Its older format has none.

    Raises:
        ConfigError: If it is one, or cannot be opened.
    """
    begin = beginning(path, 8)
    if not begin.startswith(_BEGINNINGS):
        reason = "it is empty" if not begin else "it is no file that torch.save wrote, or is damaged"
        raise ConfigError(f"{path} cannot be read as {what}: {reason}")
    found = damage(path) if zipfile.is_zipfile(path) else None
    if found is not None:
        raise ConfigError(f"{path} cannot be read as {what}: it is damaged ({found}); use another one")


def beginning(path: str | Path, count: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        ConfigError: If it cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def newest_good(*folders: Path) -> tuple[str, dict[str, Any]]:
    """Find the newest checkpoint of a run, or of a folder of runs, that can be read; name those that cannot.

    Args:
        *folders: As for :func:`checkpoints_in`.

    Returns:
        Its path and content.

    Raises:
        ConfigError: If there is none.
    """
    found = sorted(
        (path for folder in folders for path in checkpoints_in(folder)), key=_written, reverse=True
    )
    for path in found:
        try:
            saved = read_checkpoint(str(path))
        except ConfigError as error:
            say(f"warning: {error}. It is left as it is, and an older checkpoint is taken", file=sys.stderr)
            continue
        say(f"--ckpt_path is {path}", file=sys.stderr)
        return str(path), saved
    which = f" that can be read ({len(found)} cannot)" if found else ""
    where = ", ".join(map(str, folders))
    raise ConfigError(f"--ckpt_path: there is no run with a checkpoint{which} in {where}")


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
    return {"hyper_parameters": {}, **check_parts(read_file(path, "a checkpoint"), path)}
