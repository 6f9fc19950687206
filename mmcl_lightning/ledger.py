"""The record that a run leaves behind: what was run, on what, and what came out, as one JSON file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmcl_lightning._files import whole_file
from mmcl_lightning.errors import DataError

__all__ = [
    "Metric",
    "Record",
    "commit",
    "config_hash",
    "hardware",
    "peak_memory",
    "read_records",
]

_FORMAT = 1
NOT_HASHED = {"seed_everything", "ckpt_path"}  # nor the logger: where a run writes does not change it
#: Options of the data that change how fast images come, or what is predicted, and not one number of a run.
#: Not ``eval_batch_size``: networks round differently in batches of another size.
SERVING = {"cache", "num_workers", "predict_split"}


@dataclass
class Metric:
    """One logged number over a run.

    Args:
        curve: Points ``[epochs trained, optimizer steps, seconds since the start, value]``.
        smaller_is_better: Whether the best value is the smallest.
    """

    curve: list[list[float]] = field(default_factory=list)
    smaller_is_better: bool = False

    @property
    def last(self) -> float:
        """Value at the end."""
        return self.curve[-1][3]

    @property
    def best(self) -> float:
        """Best value of the run: chosen in hindsight, so not a result."""
        values = [point[3] for point in self.curve if not math.isnan(point[3])] or [math.nan]
        return min(values) if self.smaller_is_better else max(values)


@dataclass
class Record:
    """What one run leaves behind.

    Args:
        status: ``"finished"``, ``"interrupted"`` or ``"failed: REASON"``.
        label: Name of the variant in a study; empty outside of one.
        pretraining: Of an evaluation, the method, configuration, seed and epochs of the run that it
            evaluates, where that run's record lies beside its checkpoint.
        method: Loss and what it was solved by, in words.
        config: Resolved configuration, without where it writes and where its data lies.
        config_hash: Hash of it without the seed: equal for the seeds of one variant.
        seed: Seed of the run.
        commit: Commit of the package's checkout, with ``+`` where files were changed; empty without git.
        data: Class and fingerprint of the data, see ``SSLDataModule.fingerprint``; how images that are
            judged were prepared, and of an image folder its name.
        protocols: How the readouts were taken, by name.
        hardware: CPU, GPU and versions.
        epochs: Epochs trained.
        steps: Optimizer steps.
        seconds: From the first step to the end, readouts included, over all sessions of a resumed run.
        images_per_second: Median over the run, readouts excluded; ``None`` without the Throughput callback.
        peak_memory: Bytes of GPU memory, or of the process where there is no GPU.
        started: Date and time in UTC, ISO 8601.
        metrics: Everything logged, by name.
        loss: Class and options of the loss as it was at the end, as ``class_path`` and ``init_args``;
            ``None`` where there is none, or the record is of an earlier version.
        arguments: Of a run of a study, the arguments of ``mmcl`` that made it, but for where its data lies.
    """

    status: str
    method: str
    config: dict[str, Any]
    config_hash: str
    seed: int | None
    commit: str
    data: dict[str, Any]
    protocols: dict[str, str]
    hardware: dict[str, Any]
    epochs: int
    steps: int
    seconds: float
    images_per_second: float | None
    peak_memory: int | None
    started: str
    metrics: dict[str, Metric]
    label: str = ""
    pretraining: dict[str, Any] | None = None
    loss: dict[str, Any] | None = None
    arguments: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What a table calls the run: its label, or else its method."""
        return self.label or self.method

    def write(self, path: Path) -> None:
        """Write the record, replacing the file only once the new one is whole."""
        content = {"ledger": _FORMAT, **asdict(self)}
        for name, metric in self.metrics.items():
            content["metrics"][name] |= {"last": metric.last, "best": metric.best}
        with whole_file(path) as file:
            file.write(_compact(content).encode())

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record.

        Raises:
            DataError: If the file is no record of this package.
        """
        try:
            content = json.loads(path.read_text())
            if content.pop("ledger") != _FORMAT:
                raise DataError(f"{path} has another format: written by a newer version?")
            metrics = {
                name: Metric(metric["curve"], metric["smaller_is_better"])
                for name, metric in content.pop("metrics").items()
            }
            record = cls(**content, metrics=metrics)
            record._check()
            return record
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is no record of a run ({type(error).__name__}: {error})") from error

    def _check(self) -> None:
        """Raise TypeError or ValueError where a part is not of its kind, as in a file that was edited."""
        kinds: dict[str, Any] = {
            "status": str, "method": str, "config": dict, "config_hash": str, "seed": int | None,
            "commit": str, "data": dict, "protocols": dict, "hardware": dict, "epochs": int, "steps": int,
            "seconds": int | float, "images_per_second": int | float | None, "peak_memory": int | None,
            "started": str, "label": str, "pretraining": dict | None,
            "loss": dict | None, "arguments": list,
        }  # fmt: skip
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} is {getattr(self, name)!r}")
        for config in (self.config, self.pretraining["config"] if self.pretraining else {}):
            for part in ("model", "data"):
                if not isinstance((config.get(part, {}).get("init_args") or {}), dict):
                    raise TypeError(f"config.{part}.init_args is no mapping")
        if self.pretraining is not None and not isinstance(self.pretraining["name"], str):
            raise TypeError(f"pretraining.name is {self.pretraining['name']!r}")
        texts = (self.data.get("held_out", ""), *self.protocols.values())
        if not isinstance(self.data.get("fingerprint") or {}, dict) or not all(
            isinstance(t, str) for t in texts
        ):
            raise TypeError("data or protocols are not what a run writes")
        sizes = (self.seconds, self.images_per_second or 0, self.peak_memory or 0)
        if not all(map(_is_size, sizes)):
            raise ValueError(f"seconds, images_per_second or peak_memory is out of range: {sizes}")
        for name, metric in self.metrics.items():
            if not metric.curve or not all(len(p) == 4 and all(map(_is_size, p)) for p in metric.curve):
                raise ValueError(f"the curve of {name} must be points of 4 numbers")
            metric.curve = [[_within_reason(number) for number in point] for point in metric.curve]


def _is_size(value: Any) -> bool:
    """Whether a value is a number that a run can have measured: an integer of any length is none."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _within_reason(value: float) -> float:
    """Return a number of a curve; one whose square is beyond floats is as good as infinite."""
    return math.copysign(math.inf, value) if abs(value) > 1e100 else value


def read_records(folder: Path) -> Iterator[tuple[Path, Record]]:
    """Read every record below a folder, in the order of their paths.

    Other JSON files are passed over, and what a sweep set aside, in folders that end in ``.old1`` and so on.

    Args:
        folder: Where to look, at any depth.

    Yields:
        Path and record.

    Raises:
        DataError: If a record cannot be read.
    """
    for path in sorted(folder.rglob("*.json")):
        if any(re.search(r"\.old\d+$", part) for part in path.relative_to(folder).parts):
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            if path.name == "ledger.json":
                raise DataError(f"{path} is no record of a run ({error}): remove or repair it") from error
            continue
        if isinstance(content, dict) and "ledger" in content:
            yield path, Record.read(path)


def config_hash(config: dict[str, Any]) -> str:
    """Return 12 hex digits that change with anything in a configuration but its seed and :data:`SERVING`.

    Args:
        config: Resolved configuration, as a run's YAML has it.
    """
    kept = {name: value for name, value in config.items() if name not in NOT_HASHED}
    if isinstance(kept.get("data"), dict) and isinstance(kept["data"].get("init_args"), dict):
        given = kept["data"]["init_args"].items()
        options = {name: value for name, value in given if name not in {*SERVING, "seed"}}
        kept["data"] = {**kept["data"], "init_args": options}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:12]


def commit() -> str:
    """Return the commit of the checkout that the package lies in, ``+`` for changed files; empty if none."""
    package = Path(__file__).resolve().parent
    if not (package.parent / ".git").exists():
        return ""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:  # files that git does not know count within the package only: elsewhere are data and runs
        changed = git("status", "--porcelain", "-uno") or git("status", "--porcelain", "--", package.name)
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def hardware() -> dict[str, Any]:
    """Return what the run was on: processor, cores, GPU and versions."""
    import torch

    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):  # not Linux, or a processor without a model name
        cpu = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
    found = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
    return found | {"python": platform.python_version(), "torch": torch.__version__}


def peak_memory() -> int | None:
    """Return the most bytes held so far: on the GPU if one was used, else by the process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _compact(content: dict[str, Any]) -> str:
    """JSON with one line per entry, and one per point of a curve: readable, and short in a diff."""
    text = json.dumps(content, indent=1, allow_nan=True, default=str)
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        stripped = line.strip()
        if inside:
            lines[-1] += stripped + (" " if stripped.endswith(",") else "")
            inside = not stripped.startswith("]")
        else:
            lines.append(line)
            inside = stripped == "["
    return "\n".join(lines) + "\n"
