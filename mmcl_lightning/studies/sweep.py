"""Run a study: one process per run, nothing twice, and on after a stop."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mmcl_lightning._checkpoints import has_good
from mmcl_lightning._cores import available_cores
from mmcl_lightning._files import whole_text
from mmcl_lightning._options import check_whole
from mmcl_lightning._text import counted, say
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Record
from mmcl_lightning.studies.study import Run, Study, Variant

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Sweep"]


class Sweep:
    """Runs of a study below one folder.

    A run is finished once its record says so and was made by the same arguments; it is then never run again,
    also where only the record is left, as on another machine. A run that was stopped goes on from its last
    checkpoint, where the recipe writes one.

    Args:
        study: What to run.
        folder: Folder for this study's runs; each gets ``output.txt``, checkpoints and ``ledger.json``.
        parallel: Runs at a time. Each gets its share of the processor's cores.
        extra: Further arguments for every run, such as ``["--data.root", "data"]``.
        records: Folder for the records of finished runs; ``None`` for ``ledger`` in ``folder``.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        parallel: int = 1,
        extra: list[str] | None = None,
        records: Path | None = None,
    ) -> None:
        check_whole(1, parallel=parallel)
        if any("seed_everything" in argument for argument in extra or ()):
            raise ConfigError("--seed_everything would be the seed of every run: the study's seeds say it")
        self.study, self.folder, self.parallel = study, folder, parallel
        self.extra = tuple(extra or ())
        self.record_folder = folder / "ledger" if records is None else records
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._left = 0
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        self._inherited: tuple[int, ...] = ()

    def run(self) -> bool:
        """Run what is not finished; return whether all is finished now.

        The reported runs start once all tuning runs are done, seed by seed, so that what a stopped study
        leaves can be compared. Ctrl-C interrupts the runs, which write a checkpoint, and starts no other.

        Raises:
            ConfigError: If another sweep, or a run that one left behind, is at work in the folder.
        """
        with _hold(self.folder) as self._inherited:
            return self._run()

    def _run(self) -> bool:
        variants = self.study.variants
        self._left = sum(len(self.study.tuning_runs(v)) + len(self.study.seeds) for v in variants)
        say(f"{self.study.name}: {counted(self._left, 'run')}, {self.parallel} at a time")
        with ThreadPoolExecutor(self.parallel) as pool, self._interruptible(pool):
            tuning = {v.name: [pool.submit(self._do, r) for r in self.study.tuning_runs(v)] for v in variants}
            chosen = []
            for variant in variants:
                if all([job.result() for job in tuning[variant.name]]):  # wait for all of them
                    chosen.append(self.study.runs(variant, self.choose(variant)))
                else:
                    self.failures.append(f"{variant.name}: not run, since its tuning failed")
            reported = [pool.submit(self._do, run) for runs in zip(*chosen, strict=True) for run in runs]
            finished = all([job.result() for job in reported])
        for failure in self.failures:
            say(failure, file=sys.stderr)
        return finished and not self.failures

    @contextlib.contextmanager
    def _interruptible(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Pass Ctrl-C on to the runs, once, and start no other."""
        try:
            yield
        except BaseException:
            self._stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                for child in self._children:
                    child.send_signal(signal.SIGINT)
            raise

    def choose(self, variant: Variant) -> dict[str, Any]:
        """Return the tried values with the largest last value of the tuning metric, or mean of several.

        Raises:
            DataError: If a tuning run has no such metric, or was judged on the test images.
        """
        runs = self.study.tuning_runs(variant)
        if not runs:
            return variant.tries()[0]
        scores = []
        for run in runs:
            record = Record.read(self._ledger(run))
            if "fingerprint" in record.data and record.data.get("held_out") == "test":
                raise DataError(
                    f"{run.name} was judged on the test images, and a choice would be made on them: let the "
                    "study's `tuning` hold out others, by data.validation_subset: 1000 or, of transfer sets, "
                    "by data.part: search"
                )
            for name in self.study.tuning_metrics:
                if name not in record.metrics:
                    raise DataError(
                        f"{run.name} logged no {name}, which the tuning is to choose by; "
                        f"it has {', '.join(sorted(record.metrics))}"
                    )
            values = [record.metrics[name].last for name in self.study.tuning_metrics]
            score = math.fsum(values) / len(values)
            scores.append(-math.inf if math.isnan(score) else score)
        return runs[scores.index(max(scores))].choice

    @property
    def records(self) -> set[Path]:
        """Files of the records of this study as it is now: an edited one may have left others."""
        runs = [run for variant in self.study.variants for run in self.study.tuning_runs(variant)]
        runs += [
            run for variant in self.study.variants for run in self.study.runs(variant, variant.tries()[0])
        ]
        return {self._ledger(run) for run in runs}

    def _do(self, run: Run) -> bool:
        """Run one run unless it is finished; return whether it is."""
        if self._stopped.is_set():
            return False
        if not self._finished(run):
            started = time.monotonic()
            code = self._call(run)
            with self._lock:
                self._left -= 1
                minutes = (time.monotonic() - started) / 60
                if self._stopped.is_set():
                    say(f"[{self._left} left] {run.name}: interrupted after {minutes:.1f} min")
                    return False
                if code or not self._finished(run):
                    output = self.folder / run.name / "output.txt"
                    self.failures.append(f"{run.name}: failed: {_last_line(output)} (see {output})")
                    say(f"[{self._left} left] {run.name}: FAILED after {minutes:.1f} min")
                    return False
                say(f"[{self._left} left] {run.name}: {self._score(run)}, {minutes:.1f} min")
        else:
            with self._lock:
                self._left -= 1
                say(f"[{self._left} left] {run.name}: {self._score(run)}, finished before")
        return True

    def _call(self, run: Run) -> int:
        folder = self.folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        with whole_text(folder / "arguments.json") as file:
            file.write(json.dumps(self._arguments(run)) + "\n")
        threads = max(1, available_cores() // self.parallel)
        environment = dict(os.environ)
        if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & environment.keys():
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with open(folder / "output.txt", "a") as output:
            with self._lock:
                if self._stopped.is_set():
                    return 1
                child = subprocess.Popen(
                    self._command(run),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # a terminal's Ctrl-C reaches the sweep alone, which passes it on
                    pass_fds=self._inherited,
                )
                self._children.add(child)
            try:
                return child.wait()
            finally:
                with self._lock:
                    self._children.discard(child)

    def _command(self, run: Run) -> list[str]:
        folder = self.folder / run.name
        command = [sys.executable, "-m", "mmcl_lightning", *self._arguments(run)]
        command += ["--trainer.logger.save_dir", str(folder), "--trainer.logger.name", "run"]
        command += ["--trainer.enable_progress_bar", "false"]
        return command + (["--ckpt_path", "last"] if has_good(folder / "run") else [])

    def _arguments(self, run: Run) -> list[str]:
        return [*run.arguments, *self.extra]

    def _finished(self, run: Run) -> bool:
        """Whether the run has a record that says so, by these arguments; files it with its label."""
        folder = self.folder / run.name
        target = self._ledger(run)
        made_by = _without_root(self._arguments(run))
        if target.exists():
            filed = Record.read(target)
            if filed.status == "finished" and filed.arguments == made_by:
                return True
        try:
            same = json.loads((folder / "arguments.json").read_text()) == self._arguments(run)
        except (OSError, ValueError):
            same = False
        if not same:
            _set_aside(folder)
            _set_aside(target)  # not removed: it may be all that is left of another study's run
            return False
        for found in folder.glob("run/*/ledger.json"):
            record = Record.read(found)
            if record.status == "finished":
                record.label, record.arguments = run.label, made_by
                record.write(target)
                return True
        return False

    def _ledger(self, run: Run) -> Path:
        return self.record_folder / f"{run.name.replace('/', ', ')}.json"

    def _score(self, run: Run) -> str:
        metrics = Record.read(self._ledger(run)).metrics
        return ", ".join(
            f"{metrics[name].last:.3f}" if name in metrics else f"no {name}"
            for name in self.study.tuning_metrics
        )


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[tuple[int, ...]]:
    """Lock a folder until the sweep and the runs that inherit the given descriptors have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        if fcntl is None:
            yield ()
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another sweep, or a run that it left behind, is at work in {folder}: wait or stop it"
            ) from None
        yield (file.fileno(),)


def _without_root(arguments: list[str]) -> list[str]:
    """Return arguments without ``--data.root``: the same images may lie elsewhere on another machine."""
    kept, values = [], iter(arguments)
    for argument in values:
        if argument == "--data.root":
            next(values, None)
        elif not argument.startswith("--data.root="):
            kept.append(argument)
    return kept


def _last_line(output: Path) -> str:
    """Return what a run said last, which is its error."""
    try:
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"


def _set_aside(folder: Path) -> None:
    """Move what other arguments left behind out of the way."""
    if not folder.exists():
        return
    number = 1
    while (old := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    folder.rename(old)
