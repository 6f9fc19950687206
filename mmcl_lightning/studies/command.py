"""``mmcl sweep`` and ``mmcl report``."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

from mmcl_lightning._next import say_next
from mmcl_lightning._text import say
from mmcl_lightning.recipes import find_recipe
from mmcl_lightning.studies.report import check_name, write_report
from mmcl_lightning.studies.study import Study
from mmcl_lightning.studies.sweep import Sweep

__all__ = ["report", "run_stoppable", "sweep"]


def sweep(arguments: list[str]) -> None:
    """Run a study and write its report.

    Raises:
        SystemExit: With code 1 if a run failed.
    """
    parser = argparse.ArgumentParser(
        prog="mmcl sweep",
        description="Run every variant of a study with every seed, tuning first where the study says so. "
        "What is finished is never run again; what was stopped goes on.",
        epilog="Further options go to every run, e.g. --data.root data",
    )
    parser.add_argument("study", help="YAML file of the study, or the name of a shipped one")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all studies (runs)")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at a time (1)")
    parser.add_argument(
        "--out", type=Path, help="report to write, .md or .html (REPORT.md in the study's folder)"
    )
    parser.add_argument(
        "--records", type=Path, help="folder for the records of finished runs (ledger in the study's folder)"
    )
    options, extra = parser.parse_known_args(arguments)
    study = Study.load(Path(find_recipe(options.study)))
    folder = options.runs / study.name
    out = options.out or folder / "REPORT.md"
    check_name(out)
    work = Sweep(study, folder, options.parallel, extra, options.records)
    finished = run_stoppable(work)
    if work.record_folder.is_dir():
        text = write_report(
            work.record_folder, out, study.name, study.metrics,
            only=work.records, missing=work.failures, reference=study.reference if finished else "",
            tuned_by=study.tuning_metrics,
        )  # fmt: skip
        say("\n" + text)
        say(f"Report: {out}")
    say_next("sweep" if finished else "sweep, unfinished", folder=folder)
    if not finished:
        raise SystemExit(1)


def run_stoppable(work: Sweep) -> bool:
    """Run a study; return whether all is finished now.

    Args:
        work: The study.

    Raises:
        SystemExit: With code 130 after Ctrl-C or SIGTERM.
    """
    # Runs must not outlive a sweep. SIGINT too: a script's background job, and what it starts, ignores it.
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        return work.run()
    except KeyboardInterrupt:
        say("stopped: the same command goes on where it was", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report(arguments: list[str]) -> None:
    """Write the report of a folder of records."""
    parser = argparse.ArgumentParser(
        prog="mmcl report",
        description="Turn a folder of ledger files into tables and plots: Markdown, or one page of HTML.",
    )
    parser.add_argument("folder", type=Path, help="folder with ledger.json files, at any depth")
    parser.add_argument(
        "--out", type=Path, default=Path("REPORT.md"), help="file to write, .md or .html (REPORT.md)"
    )
    parser.add_argument("--title", default="Results", help="heading of the report")
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help="logged metrics to show")
    parser.add_argument("--reference", default="", metavar="METHOD", help="compare with it, seed by seed")
    options = parser.parse_args(arguments)
    text = write_report(
        options.folder, options.out, options.title, options.metrics,
        reference=options.reference, tuned_by=options.metrics,
    )  # fmt: skip
    page = options.out.suffix == ".html"  # which has the pictures inside
    say(re.sub(r"^!\[.*\n\n", "", text, flags=re.MULTILINE) if page else text)
    say(f"Report: {options.out}")
    if page:
        say_next("report, page", page=options.out)
    else:
        say_next("report", folder=options.folder)
