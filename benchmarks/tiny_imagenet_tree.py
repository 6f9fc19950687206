"""Give Tiny-ImageNet's validation images a folder per class, as an image folder needs.

    python benchmarks/tiny_imagenet_tree.py PATH

PATH is the unpacked official archive, with ``train/WNID/images`` and ``val/val_annotations.txt``. Makes
``PATH/test/WNID/`` with links to the validation images of the classes that ``train`` has.
"""

from __future__ import annotations

import sys
from pathlib import Path


def make_tree(root: Path) -> int:
    """Link every validation image below the folder of its class, and return how many there are.

    Args:
        root: The unpacked archive.
    """
    classes = {folder.name for folder in (root / "train").iterdir() if folder.is_dir()}
    count = 0
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        if wnid in classes:
            link = root / "test" / wnid / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..") / ".." / "val" / "images" / name)
            count += 1
    return count


if __name__ == "__main__":
    print(f"{make_tree(Path(sys.argv[1]))} test images")
