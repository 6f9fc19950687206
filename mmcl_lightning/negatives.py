"""The command ``negatives``: which negatives count for a checkpoint, as a picture and as files.

``python cli.py negatives --config quickstart.yaml --ckpt_path last --out negatives.png``
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from mmcl_lightning.callbacks.findings import SupportVectors
from mmcl_lightning.callbacks.support_vectors import SupportVectorGrid
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.svm.negatives import at_bound, is_support

__all__ = ["InspectingTrainer"]

_FIELDS = ("position", "view", "target", "class", "alpha", "at_bound", "false_negative")


class InspectingTrainer(Trainer):
    """Lightning's Trainer that can also look at negatives, so that LightningCLI has a command for it."""

    def negatives(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
        out: str = "negatives.png",
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
            model: A module whose ``criterion`` is an MMCLLoss.
            datamodule: Where the held-out images come from; see :class:`SupportVectorGrid`.
            ckpt_path: Checkpoint of the weights. Without one they are random.
            out: Picture to write, ending in .png. Beside it come a .json with the shown rows and the shares,
                and a .csv with every support vector of every image.
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
            ConfigError: If the module has another criterion, an option is out of range, or there are no
                held-out images.
        """
        path = Path(out)
        if path.suffix.lower() != ".png":
            raise ConfigError(f"--out is a picture whose name ends in .png, got {out}")
        grid = SupportVectorGrid(
            images=images,
            queries=queries,
            support_vectors=support_vectors,
            others=others,
            views=views,
            seed=getattr(datamodule, "seed", 0),
        )
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("validate")
        if ckpt_path is not None:
            saved = torch.load(ckpt_path, map_location="cpu", weights_only=weights_only is not False)
            model.load_state_dict(saved["state_dict"])
        self.precision_plugin.convert_module(model).to(self.strategy.root_device)
        found = grid.look(self, model, datamodule)
        weights = "random weights" if ckpt_path is None else str(Path(*Path(ckpt_path).parts[-4:]))
        note = f"{weights}, {views} views"
        path.parent.mkdir(parents=True, exist_ok=True)
        grid.draw(found, note).save(path)
        shown = _write_report(found, grid, path, ckpt_path)
        print("\n".join(found.describe()))
        print(f"Wrote {path}, {', '.join(str(file) for file in shown)}")
        return found


def _write_report(
    found: SupportVectors, grid: SupportVectorGrid, path: Path, checkpoint: str | None
) -> list[Path]:
    """Write what was found beside the picture.

    Positions are those of the images in the held-out data set, counted from 0.

    Args:
        found: What was found.
        grid: Which candidates of it were drawn.
        path: The picture.
        checkpoint: Where the weights came from; None if they are random.

    Returns:
        The JSON file, with the shares and the drawn rows, and the CSV file, with every support vector.
    """
    loss = found.criterion
    summary = {
        "checkpoint": checkpoint,
        "kernel": repr(loss.kernel),
        "solver": repr(loss.solver),
        "C": loss.C if math.isfinite(loss.C) else None,
        "reg": loss.reg,
        "images": len(found.images),
        "views": len(found.images.views),
        "stats": {name: value if math.isfinite(value) else None for name, value in found.stats().items()},
        "queries": [_row(found, grid, query) for query in found.choose_queries(grid.queries)],
    }
    files = [path.with_suffix(".json"), path.with_suffix(".csv")]
    files[0].write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    with files[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("query", "query_target", *_FIELDS))
        for query in range(len(found.images)):
            support = is_support(found.alpha[query]).nonzero().squeeze(1).tolist()
            entries = [_entry(found, query, j) for j in support]
            own = [int(found.images.positions[query]), int(found.images.targets[query])]
            writer.writerows([*own, *entry.values()] for entry in entries)
    return files


def _row(found: SupportVectors, grid: SupportVectorGrid, query: int) -> dict[str, Any]:
    """Describe one row of the picture."""
    groups = found.columns(query, grid.support_vectors, grid.others, grid.seed)
    names = ("strongest", "nearest_others", "random_others")
    return {
        "position": int(found.images.positions[query]),
        "target": int(found.images.targets[query]),
        "class": found.images.class_name(query),
        "support_vectors": int(is_support(found.alpha[query]).sum()),
        **{name: [_entry(found, query, j) for j in group] for name, group in zip(names, groups, strict=True)},
    }


def _entry(found: SupportVectors, query: int, candidate: int) -> dict[str, Any]:
    """Describe one negative of a query."""
    view, image = found.place(candidate)
    alpha = found.alpha[query, candidate]
    values = (
        int(found.images.positions[image]),
        view,
        int(found.images.targets[image]),
        found.images.class_name(image),
        float(alpha),
        bool(at_bound(alpha, found.problem.C)),
        found.is_false_negative(query, candidate),
    )
    return dict(zip(_FIELDS, values, strict=True))
