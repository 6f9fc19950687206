"""How many steps the SGD of a linear evaluation needs, beside a logistic regression on the same features.

    python cli.py fit --config quickstart.yaml --seed_everything 1 --data.seed 1 --trainer.max_epochs 4
    python benchmarks/linear_steps.py CHECKPOINT [--steps 42 100 400 1000 4000] [--out docs/results]

Prints a table and writes ``linear_steps.md``. h of clean rendered shapes is read once; the classifier of each
protocol is trained on it with that protocol's optimizer, learning rate and schedule, without augmentation.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import common  # noqa: F401  # first: it puts a clone's root on the path
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.metrics import fit_logistic
from mmcl_lightning.modules import EVALUATION_PROTOCOLS, LinearEvaluation

SEEDS, CLASSES, BATCH = (0, 1, 2), 10, 512


def features(checkpoint: str, images: int) -> list[Tensor]:
    """Return h and labels of training and of test images."""
    module = LinearEvaluation(checkpoint).eval()
    found = []
    data = ShapesDataModule(train_size=images, test_size=1000, num_workers=0)
    for loader in data.knn_dataloaders() or ():
        with torch.no_grad():
            parts = [(module(pictures), labels) for pictures, labels in loader]
        found += [torch.cat(part) for part in zip(*parts, strict=True)]
    return found


def accuracy(parts: list[Tensor], protocol: str, steps: int, seed: int) -> float:
    """Train a classifier for some steps and return its test accuracy."""
    x, y, queries, labels = parts
    torch.manual_seed(seed)
    rules, layer = EVALUATION_PROTOCOLS[protocol], nn.Linear(x.shape[1], CLASSES)
    if rules.init_std == 0:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    built = rules.optimize(layer.parameters(), None, rules.weight_decay, rules.batch_size, steps)
    optimizer = built["optimizer"] if isinstance(built, dict) else built
    for _ in range(steps):
        rows = torch.randperm(len(x))[: min(BATCH, len(x))]
        optimizer.zero_grad()
        F.cross_entropy(layer(x[rows]), y[rows]).backward()
        optimizer.step()
        if isinstance(built, dict):
            built["lr_scheduler"]["scheduler"].step()
    return float((layer(queries).argmax(1) == labels).double().mean())


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--images", type=int, nargs="+", default=[400, 2000])
    parser.add_argument("--steps", type=int, nargs="+", default=[42, 100, 400, 1000])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args(arguments)
    head = [
        "training images",
        "protocol",
        *(f"{steps} steps" for steps in options.steps),
        "logistic regression",
    ]
    lines = [head, ["---"] * len(head)]
    for images in options.images:
        parts = features(options.checkpoint, images)
        model = fit_logistic(parts[0], parts[1], CLASSES, 0.1, standardise=True)
        optimum = float((model.scores(parts[2]).argmax(1) == parts[3]).double().mean())
        for protocol in ("imagenet", "mmcl_small"):
            values = [
                statistics.mean(accuracy(parts, protocol, steps, seed) for seed in SEEDS)
                for steps in options.steps
            ]
            lines.append([str(images), protocol, *(f"{value:.3f}" for value in values), f"{optimum:.3f}"])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    text = (
        "# How many steps a linear evaluation needs\n\n"
        "`python benchmarks/linear_steps.py CHECKPOINT` makes this page, of a checkpoint of 4 epochs of "
        "`quickstart.yaml`, both seeds 1. Top-1 on 1,000 rendered shapes (synthetic) of ten classes, h of "
        "clean images; means over three seeds of the order of the images, in steps of "
        f"{BATCH} images or all there are, at the learning rate and schedule of the protocol. The logistic "
        "regression has C = 0.1 and no steps to choose. SGD of few steps says how short it was: judge small "
        f"sets by `folder_logistic.yaml`.\n\n{table}\n"
    )
    print(text)
    (options.out / "linear_steps.md").write_text(text)


if __name__ == "__main__":
    main()
