"""What the order in which edges are added up does to a training on graphs: rounding alone, as on a GPU.

    python benchmarks/graph_order.py --root tu [--names MUTAG IMDB-BINARY] [--epochs 8]

Trains twice from the same weights, on the same views, on a CPU: with the edges in their order, and in a
random one in every pass. Prints the largest relative difference of the loss in each epoch, and that of h at
the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from unittest import mock

import common  # noqa: F401  first: it puts a clone's root on the path
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from mmcl_lightning import MMCL
from mmcl_lightning.datamodules import TUDataModule
from mmcl_lightning.models import graphs
from mmcl_lightning.svm import Exact


class Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep it."""
        self.values.append(float(outputs["loss"]))


def train(root: str, name: str, form: dict[str, Any], epochs: int, shuffled: bool) -> tuple[Tensor, Tensor]:
    """Return the loss by epoch and step, and h of the first graphs."""
    parts, generator = graphs._parts, torch.Generator().manual_seed(5)

    def in_any_order(batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, edges, owner = parts(batch)
        order = torch.randperm(edges.shape[1], generator=generator) if shuffled else slice(None)
        return x, edges[:, order], owner

    seed_everything(0, verbose=False)
    data, losses = TUDataModule(root=root, name=name, batch_size=128, num_workers=0), Losses()
    data.setup()
    features = next(iter(data.predict_dataloader()))[0].x.shape[1]
    module = MMCL(
        backbone=f"gin:{features}", projection_head="moco", output_dim=96, solver=Exact(),
        lr_schedule="constant",
        optimizer={"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}}, **form,
    )  # fmt: skip
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[losses],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with mock.patch.object(graphs, "_parts", in_any_order):
        trainer.fit(module, data)
    with torch.no_grad():
        h = module.eval()(next(iter(data.predict_dataloader()))[0])
    return torch.tensor(losses.values).view(epochs, -1), h


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, then print a line for each set and form."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", required=True, help="folder of the TU sets")
    parser.add_argument("--names", nargs="+", default=["MUTAG", "IMDB-BINARY"], help="sets")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args(arguments)
    for name in options.names:
        for form in ({"form": "paper"}, {"form": "log", "temperature": 0.2}):
            runs = [train(options.root, name, form, options.epochs, shuffled) for shuffled in (False, True)]
            (loss, h), (other, other_h) = runs
            apart = ((other - loss) / loss).abs().amax(1).tolist()
            of_h = ((other_h - h).norm() / h.norm()).item()
            print(f"{name}, {form['form']}: loss {' '.join(f'{part:.1e}' for part in apart)}; h {of_h:.1e}")


if __name__ == "__main__":
    main()
