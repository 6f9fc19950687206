"""The command ``check-data``: what of a folder of pictures a run would stumble over.

``mmcl check-data photos --out problems.csv``
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tqdm.auto import tqdm

from mmcl_lightning._cores import available_cores
from mmcl_lightning._files import free_path, write_csv
from mmcl_lightning._next import say_next
from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning._parser import folder_options
from mmcl_lightning._text import plain, say
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.checking import Finding, check_pictures
from mmcl_lightning.datamodules.tree import scan_tree

__all__ = ["check_data", "check_folder"]

#: Options of the data that decide which files are read, and how.
_READING = {
    "background", "bands", "channels", "label_columns", "labels", "layout", "max_pixels",
    "value_range",
}  # fmt: skip
_SHOWN = 10  # files of a problem on the terminal
_PROBLEMS = {
    "damaged": "cannot be read",
    "empty": "have no bytes",
    "duplicate": "have the content of another",
    "odd": "are read, perhaps not as meant",
}


def check_folder(
    data: ImageFolderDataModule, out: str | None = None, workers: int | None = None, patience: float = 60.0
) -> bool:
    """Read every picture of a folder as a run would, and list those damaged, empty, twice there or odd.

    Args:
        data: The folder.
        out: CSV file to write, which must not exist: path, problem and detail of each; by default none.
        workers: Processes that read; by default as many as there are cores for them, at most 8.
        patience: Seconds for one picture, after which it counts as damaged.

    Returns:
        Whether every picture can be read.

    Raises:
        ConfigError: If an option is out of range, or ``out`` exists.
        DataError: If the folder has no picture, or is not what its layout or labels say.
    """
    workers = min(available_cores(), 8) if workers is None else workers
    check_whole(1, workers=workers)
    check_number("patience", patience, "> 0")
    table = None if out is None else free_path(out, "")
    tree = scan_tree(data.root, data.layout, data.labels, data.label_columns)
    paths = [*tree.train[0], *([] if tree.test is None else tree.test[0])]
    say(f"{data.root}: {tree.read_as}, {len(paths)} pictures")
    if left := [f"{why}: {count}" for why, count in tree.ignored.most_common() if count]:
        say(f"not read: {', '.join(left)}")
    looked = check_pictures(paths, data.reader, min(workers, len(paths)), patience)
    place = {path: index for index, path in enumerate(paths)}
    bar = tqdm(looked, total=len(paths), disable=None, unit=" pictures")
    found = [finding for each in bar for finding in each]
    found.sort(key=lambda finding: place[finding.path])
    _say(found, len(paths), str(Path(data.root).expanduser().absolute()))
    if table is not None:
        rows = ((finding.path, finding.problem, finding.detail) for finding in found)
        write_csv(table, ("path", "problem", "detail"), rows)
        say(f"Wrote {table}")
    broken = any(finding.problem in ("damaged", "empty") for finding in found)
    say_next("check-data, problems" if broken else "check-data", root=data.root)
    return not broken


def check_data(arguments: list[str]) -> None:
    """Run ``mmcl check-data``.

    Args:
        arguments: What stands after ``check-data`` on the command line.

    Raises:
        SystemExit: With code 1 if a picture is damaged or empty.
    """
    description = (
        "Read every picture of a folder as a run would, and list those that are damaged, empty, "
        "duplicates or odd. The code is 1 if one is damaged or empty."
    )
    options = folder_options("mmcl check-data", description, check_folder, _READING, arguments)
    if not check_folder(**options):
        raise SystemExit(1)


def _say(found: list[Finding], count: int, root: str) -> None:
    """Print how many pictures have which problem, and the first of each."""
    numbers = Counter(finding.problem for finding in found)
    say(f"{count - len({finding.path for finding in found})} of {count} pictures are as they should be")
    for problem, meaning in _PROBLEMS.items():
        if numbers[problem]:
            say(f"{numbers[problem]} {problem}: {meaning}")
            some = [finding for finding in found if finding.problem == problem][:_SHOWN]
            for finding in some:
                say(plain(f"  {finding.path} {finding.detail}".replace(root + os.sep, "")))
            if numbers[problem] > len(some):
                say(f"  ... and {numbers[problem] - len(some)} more")
