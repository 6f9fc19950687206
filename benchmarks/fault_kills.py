"""Kill, stop and fill runs, go on with them, and count which end as one that nothing happened to.

Each run is a process of its own, of a second or two: the quickstart with 64 images of 16 pixels, four epochs
of eight steps, a checkpoint after every step. It is right if weights, optimizer and steps at its end equal,
bit by bit, those of a run that was let alone. As root it mounts a small file system in memory; else /dev/shm
is one.

Writes its sections of ``docs/results/faults.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import ROOT, table
from fault_runs import SAVING, TWO, Process, ends_alike, places, state, write
from lightning.pytorch import Callback, LightningModule, Trainer


def kill(run: Process, in_write: bool, length: float, draw: random.Random) -> bool:
    """Kill a run, at a random moment or while it writes; return whether it left a part of a file."""
    begun = time.monotonic()
    after = draw.uniform(0.3, 1.0) * length
    while time.monotonic() - begun < after and not (in_write and run.saved()):
        time.sleep(0.005)
    skipped, limit = draw.randrange(20), time.monotonic() + length
    while in_write and time.monotonic() < limit:
        if run.drafts():
            if skipped == 0:
                break
            skipped -= 1
            while run.drafts():
                pass
    run.send(signal.SIGKILL)
    run.wait()
    return bool(run.drafts())


def kills(where: dict[str, Path], count: int) -> str:
    """Random kills, half of them within a write."""
    draw, rows = random.Random(0), []
    whole = Process(where["disk"] / "whole")
    begun = time.monotonic()
    whole.wait()
    length, reference = time.monotonic() - begun, state(whole)
    for name, place in where.items():
        other = next(path for key, path in where.items() if key != name)
        for in_write in (True, False):
            results, parts = [], 0
            for number in range(count):
                run = Process(place / f"{number}", temporary=other)
                parts += kill(run, in_write, length, draw)
                results.append(ends_alike(run, reference))
                shutil.rmtree(run.folder)
            rows.append([name, "within a write" if in_write else "at any moment", f"{parts}"])
            rows[-1].append(f"{sum(results)} of {count}")
            print(*rows[-1], flush=True)
    return table(["file system", "killed", "left a part of a file", "goes on, equal in all bits"], rows)


def signals(where: dict[str, Path]) -> str:
    """Signals once and twice, without and with workers, and to two processes."""
    kinds = {
        "no worker": [],
        "2 workers": ["--data.num_workers=2"],
        "2 processes": TWO,
    }
    rows, references = [], {}
    for kind, options in kinds.items():
        whole = Process(where["disk"] / f"whole {kind}", *options)
        assert whole.wait() == 0, whole.output.read_text()
        references[kind] = state(whole)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
        for times in (1, 2):
            row = [f"{name}{' twice' * (times == 2)}"]
            for kind, options in kinds.items():
                run = Process(where["disk"] / f"{name} {times} {kind}", *options)
                while not run.saved():
                    time.sleep(0.005)
                for _ in range(times):
                    run.send(getattr(signal, name))
                    time.sleep(0.02)
                code = run.wait()
                row.append(
                    f"{'equal' if ends_alike(run, references[kind], *options) else 'differs'} ({code})"
                )
            rows.append(row)
            print(*row, flush=True)
    return table(["signal", *kinds], rows)


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "random bytes": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "one bit changed": flip,
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: torch.save({"weight": torch.ones(3)}, path),
}


def damages(where: dict[str, Path]) -> str:
    """A damaged last.ckpt beside a good checkpoint."""
    rows = []
    whole = Process(where["disk"] / "whole")
    whole.wait()
    reference = state(whole)
    for name, damage in DAMAGES.items():
        run = Process(where["disk"] / name)
        run.wait()
        newest = run.saved()[0]
        damage(newest)
        same = ends_alike(run, reference)
        said = f"warning: {newest.relative_to(run.folder)}" in run.output.read_text()
        rows.append([name, "yes" if said else "no", "yes" if same else "no"])
        print(*rows[-1], flush=True)
    return table(["the newest file is", "it is named", "the run goes on from the one before"], rows)


class Soak(Callback):
    """Writes down memory, open files and seconds of every epoch of a process."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch's time."""
        self.begun = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write a line; readouts have been made, as this callback is a later one."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        numbers = pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))
        with open("soak.txt", "a") as file:
            print(*numbers, time.monotonic() - self.begun, file=file)


def soak(where: dict[str, Path], epochs: int) -> str:
    """Many epochs with all readouts."""
    saving = [*SAVING, {"class_path": "fault_kills.Soak"}]
    run = Process(
        where["disk"] / "soak", f"--trainer.max_epochs={epochs}", "--trainer.callbacks=" + json.dumps(saving),
        "--data.train_size=16", "--readouts.support_vectors={images: 8, queries: 2}",
        "--readouts.logistic={}",
        "--readouts.embedding={images: 8}", "--readouts.every_n_epochs=1",
    )  # fmt: skip
    assert run.wait() == 0, run.output.read_text()
    lines = [list(map(float, line.split())) for line in (run.folder / "soak.txt").read_text().splitlines()]
    rows = []
    for end in range(40, epochs + 1, 20):
        part = lines[max(0, end - 20) : end]
        memory, files, seconds = (statistics.median(values) for values in zip(*part, strict=True))
        rows.append([f"{end - 19} to {end}", f"{memory:.0f}", f"{files:.0f}", f"{1000 * seconds:.0f}"])
        print(*rows[-1], flush=True)
    return table(["epochs", "memory, MB", "open files", "ms per epoch"], rows)


TITLES = {
    "kills": "Kills",
    "signals": "Signals",
    "damages": "Damaged checkpoints",
    "soak": "Many epochs",
}
NOTES = {
    "kills": "SIGKILL, with `TMPDIR` on the other file system, then `--ckpt_path last`: weights, optimizer "
    "and steps at the end are compared with those of a run that was let alone.",
    "signals": "Sent to all processes of a run, twice within 20 ms, then `--ckpt_path last`. In parentheses "
    "the status with which the run ended. A second SIGINT within a step, which is rare in steps of a few "
    "milliseconds, lets batch norm see the step's images twice.",
    "damages": "The newest checkpoint of a run is damaged, beside a good one; then `--ckpt_path last`.",
    "soak": "All readouts, a checkpoint after every step; medians of 20 epochs. Other work on the machine "
    "changes the time.",
}


def command() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of faults.md")
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--quick", action="store_true", help="few of each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    few = options.quick
    tasks = {
        "kills": lambda where: kills(where, 1 if few else 10),
        "signals": signals,
        "damages": damages,
        "soak": lambda where: soak(where, 60 if few else 300),
    }
    for name in options.only:
        with places() as where:
            found = tasks[name](where)
        done = f"`python benchmarks/fault_kills.py --only {name}`. {NOTES[name]}"
        write(options.out / "faults.md", {TITLES[name]: f"{done}\n\n{found}"})


if __name__ == "__main__":
    command()
