"""What a prediction costs beyond its loader and its network, and whether every row has the right name.

    python benchmarks/bench_predict.py [--images 10000] [--size 32] [--workers 2]

Rendered shapes are written as JPEG files of one folder. One side is ``Trainer.predict`` with the file that it
writes, from a new data module on; the other is a bare loop over the same loader through the same network,
which only keeps the representations. The names are checked against files that are opened one by one. Prints
a table and writes ``predict_cpu.json`` and ``predict.md``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import common  # first: it puts a clone's root on the path
import numpy as np
import torch
from common import Target, number, ratio
from lightning.pytorch import Trainer
from PIL import Image
from torch import Tensor

from mmcl_lightning.callbacks import RepresentationWriter
from mmcl_lightning.callbacks.tables import read_table
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.rendering import render_shapes
from mmcl_lightning.modules import PretrainedBackbone

CEILING = 1.2  # times the bare loop


def write_pictures(root: Path, images: int, size: int) -> None:
    """Render shapes into JPEG files, two folders deep."""
    pixels, targets = render_shapes(images, size)
    for index, (image, target) in enumerate(zip(pixels, targets.tolist(), strict=True)):
        path = root / f"shape{target}" / f"{index // 100:03d}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=95)


def data(root: Path, size: int, workers: int) -> ImageFolderDataModule:
    """The folder, of which nothing is held out."""
    return ImageFolderDataModule(str(root), image_size=size, num_workers=workers, holdout=0.0)


def predict(module: PretrainedBackbone, root: Path, size: int, workers: int, out: Path) -> None:
    """Predict, and write the file, which must not be there."""
    out.unlink(missing_ok=True)
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=out.parent, callbacks=[RepresentationWriter(str(out))],
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # what it says of the file
        trainer.predict(module, data(root, size, workers), return_predictions=False)


@torch.inference_mode()
def bare(module: PretrainedBackbone, root: Path, size: int, workers: int) -> Tensor:
    """A loop over the same loader through the same network."""
    loader = data(root, size, workers).predict_dataloader()
    return torch.cat([module(batch[0]) for batch in loader])


@torch.inference_mode()
def wrong_names(module: PretrainedBackbone, root: Path, out: Path) -> int:
    """Count the rows that are not what the file of their name gives."""
    table, wrong = read_table(out), 0
    files = {str(path.relative_to(root)) for path in root.rglob("*.jpg")}
    assert files == set(table["path"].tolist())
    for rows in np.array_split(np.arange(len(files)), max(1, len(files) // 256)):
        pixels = [np.asarray(Image.open(root / path)) for path in table["path"][rows]]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255
        same = np.isclose(module(images).numpy(), table["h"][rows], rtol=1e-3, atol=1e-4).all(axis=1)
        classes = [path.partition("/")[0] for path in table["path"][rows]]
        wrong += int((~same | (table["class"][rows] != classes)).sum())
    return wrong


def processor_time() -> float:
    """Seconds of this process and its ended workers, which others on the machine disturb less."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=10_000)
    options.add_argument("--size", type=int, default=32, help="pixels")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args(arguments)
    images, workers, repeats = (30, 0, 2) if chosen.quick else (chosen.images, chosen.workers, chosen.repeats)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    device, size = torch.device("cpu"), chosen.size
    torch.manual_seed(0)
    module = PretrainedBackbone("random", "conv4").eval()
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder) / "photos", Path(folder) / "out.npz"
        write_pictures(root, images, size)
        sides = {
            "predict": partial(predict, module, root, size, workers, out),
            "bare": partial(bare, module, root, size, workers),
        }
        work: dict[str, list[float]] = {side: [] for side in sides}

        def counted(side: str) -> None:
            start = processor_time()
            sides[side]()
            work[side].append(processor_time() - start)

        for side in sides.values():
            side()  # the files are in the memory of the system from then on
        timed = {side: partial(counted, side) for side in sides}
        taken = common.interleave(timed, dict.fromkeys(sides, repeats), device)
        wrong = wrong_names(module, root, out)
    cost, spread = ratio(taken["predict"], taken["bare"])
    share, share_spread = ratio(work["predict"], work["bare"])
    seconds = {side: number(sorted(values)[len(values) // 2]) for side, values in taken.items()}
    row = [
        f"{images} JPEG files of {size} pixels, conv4, {workers} workers",
        seconds["predict"],
        seconds["bare"],
        f"{number(cost)} ({spread})",
        f"{number(share)} ({share_spread})",
        str(wrong),
    ]
    head = [
        "images",
        "predict and write, s",
        "bare loop, s",
        "predict over bare",
        "in processor time",
        "rows under a wrong name",
    ]
    record = {"machine": common.machine(device), "images": images, "size": size, "workers": workers,
              "seconds": taken, "processor_seconds": work, "wrong": wrong}  # fmt: skip
    targets = [
        Target("predict over a bare loop", CEILING, cost, spread),
        Target("the same in processor time", CEILING, share, share_spread),
        Target("wrong names", 0, wrong),
    ]
    text = f"Medians.\n\n{common.table(head, [row])}"
    print(common.write(chosen.out, "predict", device, record, targets, text))


if __name__ == "__main__":
    main()
