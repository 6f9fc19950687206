"""The command ``negatives``: which negatives count for a checkpoint, as a picture and as files.

``python cli.py negatives --config quickstart.yaml --ckpt_path last --out negatives.png``
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from mmcl_lightning._checkpoints import check_file
from mmcl_lightning._files import free_path, whole_file
from mmcl_lightning._next import say_next
from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning._text import say
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.negatives.files import write_files
from mmcl_lightning.negatives.findings import Selection, SupportVectors
from mmcl_lightning.negatives.held_out import choose_images
from mmcl_lightning.negatives.look import find_support_vectors

__all__ = ["draw_negatives"]


def draw_negatives(
    trainer: Trainer,
    model: LightningModule,
    datamodule: LightningDataModule | None = None,
    ckpt_path: str | None = None,
    out: str | None = None,
    images: int = 128,
    queries: int = 8,
    support_vectors: int = 6,
    others: int = 2,
    views: Literal["augmented", "clean"] = "augmented",
    weights_only: bool | None = None,
) -> SupportVectors:
    """Draw which negatives count on held-out images, and write them down.

    Runs in one process on the first device. The choice of images is a function of the datamodule's seed.

    Args:
        trainer: Says precision and device.
        model: A module whose ``criterion`` is an MMCLLoss.
        datamodule: Where the held-out images come from; see :func:`held_out_loader`.
        ckpt_path: Checkpoint of the weights; "last" for that of the newest run. Without one they are random.
        out: Picture to write, ending in .png; None for ``negatives.png``, or the first of
            ``negatives_2.png`` and so on that is free. Beside it come a .json with the shown rows and the
            shares, and a .csv with every support vector of every image. None of them may exist.
        images: Number of held-out images; each is an anchor, and a negative of the others.
        queries: Number of rows of the picture.
        support_vectors: Support vectors in a row.
        others: Negatives with alpha = 0 in a row, as many nearest ones as random ones.
        views: "augmented": two views of each image as in training; "clean": each image once.
        weights_only: As in ``fit``, whose saved configuration has it: False lets a checkpoint hold more
            than tensors and plain data, which can run code.

    Returns:
        What was found.

    Raises:
        ConfigError: If the module has another criterion, an option is out of range, a file exists, or
            there are no held-out images.
    """
    if out is not None and Path(out).suffix.lower() != ".png":
        raise ConfigError(f"--out is a picture whose name ends in .png, got {out}")
    path = free_path(out, "negatives.png", ".json", ".csv")
    selection = Selection(queries, support_vectors, others, getattr(datamodule, "seed", 0))
    check_whole(2, images=images)
    check_choice("views", views, ("augmented", "clean"))
    if datamodule is not None:
        datamodule.prepare_data()
        datamodule.setup("validate")
    if ckpt_path is not None:
        check_file(ckpt_path, "a checkpoint")
        saved = torch.load(ckpt_path, map_location="cpu", weights_only=weights_only is not False)
        model.load_state_dict(saved["state_dict"])
    trainer.precision_plugin.convert_module(model).to(trainer.strategy.root_device)
    chosen = choose_images(model, datamodule, images, views, selection.seed)
    found = find_support_vectors(trainer, model, chosen)
    weights = "random weights" if ckpt_path is None else str(Path(*Path(ckpt_path).parts[-4:]))
    note = f"{weights}, {views} views"
    drawn = found.draw(selection, note)
    with whole_file(path) as file:
        drawn.save(file, "PNG")
    shown = write_files(found, selection, path, ckpt_path)
    say("\n".join(found.describe()))
    say(f"Wrote {path}, {', '.join(str(file) for file in shown)}")
    say_next("negatives", picture=path)
    return found
