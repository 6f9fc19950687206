"""Run forms_gpu.yaml for as many epochs as a given time allows.

    python benchmarks/forms_gpu.py --root PATH [--minutes 8] [--out docs/results/forms_gpu.md]

PATH holds CIFAR-10 as a tree of images, train/CLASS/* and test/CLASS/*. One epoch of NT-Xent is timed first,
readouts and start included; the rest of the time is shared by the methods, with a tenth kept back. Needs the
extras ``evaluate`` and ``report``, and runs from the root of a clone.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from mmcl_lightning.ledger import Record
from mmcl_lightning.studies import Study, Sweep, write_report


def run(study: Study, folder: Path, extra: Sequence[str]) -> Sweep:
    """Run a study; raise if a run failed, with what it said last."""
    sweep = Sweep(study, folder, extra=list(extra))
    if not sweep.run():
        raise SystemExit("\n".join(sweep.failures))
    return sweep


def with_epochs(study: Study, name: str, epochs: int, methods: int | None = None) -> Study:
    """Return the study, or its first methods, with a number of epochs."""
    options = {**study.options, "trainer.max_epochs": epochs}
    variants = study.variants[:methods]
    reference = study.reference if methods is None else ""
    return dataclasses.replace(study, name=name, options=options, variants=variants, reference=reference)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time an epoch, then run all methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True, help="folder of the images")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything (8)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/forms_gpu.md"), help="report to write")
    options, extra = parser.parse_known_args(arguments)
    begun = time.monotonic()
    extra = ["--data.root", options.root, *extra]
    study = Study.load(Path(__file__).with_suffix(".yaml"))
    timed = run(with_epochs(study, "forms_gpu_timed", 1, methods=1), options.runs / "forms_gpu_timed", extra)
    (path,) = timed.records
    epoch = Record.read(path).seconds  # readouts included, of which a longer run has no more
    start = time.monotonic() - begun - epoch  # of a process and its data
    left = 0.9 * (60 * options.minutes - (time.monotonic() - begun)) / len(study.variants) - start
    epochs = max(1, int(left / epoch))
    print(
        f"an epoch takes {epoch:.0f} s and a start {start:.0f} s: {epochs} epochs for each method", flush=True
    )
    sweep = run(with_epochs(study, study.name, epochs), options.runs / study.name, extra)
    folder = options.runs / study.name / "ledger"
    title = f"{study.name}, {epochs} epochs"
    print(
        write_report(folder, options.out, title, study.metrics, only=sweep.records, reference=study.reference)
    )


if __name__ == "__main__":
    main()
