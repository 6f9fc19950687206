"""Run the cases and write the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from use_cases import batches, folders, kinds, pictures, trainers, weights  # noqa: F401  # they fill the list
from use_cases.cases import CASES, Case, captured, within

GROUPS = (
    "Pictures",
    "Kinds of picture files",
    "Folders",
    "Which row is which picture",
    "Batches",
    "Weights",
    "How images were made",
    "Trainers",
    "Mistakes on the command line",
)
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
INTRODUCTION = """# What is done with what people have

`python -m use_cases`, in the folder `benchmarks`, does every row in an empty folder and writes down what
came of it; it fails where that is not what it should be.
"""


def outcome(case: Case) -> str:
    """Run a case in a folder of its own; paths of the folder are left out of what it says."""
    with tempfile.TemporaryDirectory() as place, within(Path(place)), captured():
        torch.manual_seed(0)
        try:
            found = case.run(Path(place))
        except Exception as error:  # to go on with the others
            found = f"a traceback, {type(error).__name__}: {error}"
        for name in (f"{Path(place).resolve()}/", f"{place}/", str(Path(place).resolve()), place):
            found = found.replace(name, "")
    return " ".join(found.split())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases; write the table, unless a part is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=GROUPS, help="run this group alone, and print the table")
    parser.add_argument("--out", default=RESULTS, type=Path, help="folder of use_cases.md")
    options = parser.parse_args(arguments)
    lines, wrong, group = [INTRODUCTION], [], ""
    chosen = [
        case for name in GROUPS for case in CASES if case.group == name and options.group in (None, name)
    ]
    for case in chosen:
        start = time.monotonic()
        found = outcome(case)
        right = case.expected in found
        print(
            f"{'ok  ' if right else 'BAD '} {time.monotonic() - start:5.1f} s  {case.what}: {found}",
            file=sys.stderr,
        )
        if not right:
            wrong.append(f"{case.what}: expected {case.expected!r}, got {found!r}")
        if case.group != group:
            group = case.group
            lines.append(f"\n## {group}\n\n| given | outcome |\n|---|---|")
        cells = (text.replace("|", "\\|") for text in (case.what, found))
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    if options.group is None and not wrong:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "use_cases.md").write_text(text)
    print(
        text if options.group else f"{len(chosen) - len(wrong)} of {len(chosen)} cases are as they should be"
    )
    if wrong:
        raise SystemExit("\n".join(["not as it should be:", *wrong]))


if __name__ == "__main__":
    main()
