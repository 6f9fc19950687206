"""How long a folder of many files takes to be understood and split.

    python benchmarks/bench_scan.py [--files 100000] [--classes 20000]

Files are empty but for their names, in a temporary folder, so that only the scan counts; listing the same
folder by os.walk stands beside it. Prints a table and writes ``scan_cpu.json`` and ``scan.md``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import common  # first: it puts a clone's root on the path
import torch
from common import number, ratio

from mmcl_lightning.datamodules.image_files import FileSource, hold_out
from mmcl_lightning.datamodules.tree import scan_tree


def make_tree(root: Path, files: int, classes: int) -> None:
    """Make empty files, dealt out to the classes."""
    for index in range(classes):
        (root / f"class{index:05d}").mkdir()
    for index in range(files):
        (root / f"class{index % classes:05d}" / f"{index}.jpg").touch()


def scan(root: str) -> int:
    """Understand the folder, and hold out a tenth of each class."""
    tree = scan_tree(root)
    train, test = hold_out(FileSource(*tree.train), 0.1, 0)
    return len(train) + (0 if test is None else len(test))


def walk(root: str) -> int:
    """List the files alone."""
    return sum(len(files) for _, _, files in os.walk(root))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--files", type=int, default=100_000)
    options.add_argument("--classes", type=int, default=20_000)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args(arguments)
    device = torch.device("cpu")
    files, classes, repeats = (60, 20, 2) if chosen.quick else (chosen.files, chosen.classes, chosen.repeats)
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), files, classes)
        assert scan(folder) == walk(folder) == files
        sides = {"scan": partial(scan, folder), "walk": partial(walk, folder)}
        taken = common.interleave(sides, dict.fromkeys(sides, repeats), device)
    cost, spread = ratio(taken["scan"], taken["walk"])
    seconds = {side: number(sorted(values)[len(values) // 2]) for side, values in taken.items()}
    rows = [
        [
            f"{files} files in {classes} classes",
            seconds["scan"],
            seconds["walk"],
            f"{number(cost)} ({spread})",
        ]
    ]
    head = ["folder", "scan and split, s", "os.walk, s", "scan over os.walk"]
    record = {"machine": common.machine(device), "files": files, "classes": classes, "seconds": taken}
    print(common.write(chosen.out, "scan", device, record, [], f"Medians.\n\n{common.table(head, rows)}"))


if __name__ == "__main__":
    main()
