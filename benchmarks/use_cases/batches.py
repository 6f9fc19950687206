"""Batches of every structure, in training, validation, prediction and k-NN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from mmcl_lightning.callbacks import OnlineKNN
from mmcl_lightning.modules import LinearEvaluation, SimCLR
from use_cases.cases import case, error_of, fit, quiet_trainer

GROUP = "Batches"


def loader(items: list[Any]) -> DataLoader[Any]:
    """Return a loader of batches of four."""
    return DataLoader(items, batch_size=4)  # type: ignore[arg-type]


def images(count: int = 8, size: int = 16, channels: int = 3) -> torch.Tensor:
    """Return images of noise."""
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def simclr() -> SimCLR:
    """Return a small module."""
    return SimCLR(backbone="conv4", projection_head="cifar")


def pretrain(items: list[Any], **options: Any) -> str:
    """Train on batches of the items, and say how far it came."""
    return f"{fit(simclr(), loader(items), **options).global_step} steps"


def predicted(items: list[Any]) -> str:
    """Predict batches of the items, and say what comes."""
    found: Any = quiet_trainer().predict(simclr(), loader(items))
    said = {name: tuple(v.shape) if isinstance(v, torch.Tensor) else v[:2] for name, v in found[0].items()}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def judged(items: list[Any]) -> str:
    """Read the k-NN accuracy of batches of the items."""
    trainer = fit(
        simclr(), loader([([x, x], 0) for x in images()]),
        callbacks=[OnlineKNN(k=3, bank_loader=loader(items), query_loader=loader(items))],
    )  # fmt: skip
    return f"knn/top1 {float(trainer.callback_metrics['knn/top1']):.2f}"


X, Y = images(), [index % 2 for index in range(8)]
VIEWS = [[x, x.flip(1)] for x in X]

for what, items in (
    ("(views, target)", list(zip(VIEWS, Y, strict=True))),
    ("views alone", [(views,) for views in VIEWS]),
    ("{'views': ..., 'label': ...}", [{"views": v, "label": y} for v, y in zip(VIEWS, Y, strict=True)]),
    ("{'image': [view, view]}", [{"image": views} for views in VIEWS]),
    ("(views, target, file name), as lightly's", [(v, y, f"{y}.png") for v, y in zip(VIEWS, Y, strict=True)]),
):
    case(GROUP, f"pretraining on {what}", "2 steps")(lambda _, items=items: pretrain(items))

for what, items, expected in (
    ("three views", [([x, x, x], 0) for x in X], "list of two views, each (B, 3, H, W); got 3 views"),
    ("one view", [(x, 0) for x in X], "the transform must give both views of an image"),
    (
        "uint8 views",
        [([(x * 255).byte()] * 2, 0) for x in X],
        "views must be floating-point, got torch.uint8",
    ),
    (
        "float64 views",
        [([x.double()] * 2, 0) for x in X],
        "of type torch.float64, and the backbone takes float32",
    ),
    ("views of two sizes", [([x, x[:, :8]], 0) for x in X], "all views must have one shape"),
    ("four channels", [([x, x], 0) for x in images(channels=4)], "the backbone's first layer takes 3"),
    ("views of 8 pixels, conv4", [([x, x], 0) for x in images(size=8)], "16 pixels or more along each side"),
):
    case(GROUP, f"pretraining on {what}", expected)(lambda _, items=items: error_of(pretrain, items))

for what, items in (
    ("(image, label)", list(zip(X, Y, strict=True))),
    ("int32 labels", [(x, torch.tensor(y, dtype=torch.int32)) for x, y in zip(X, Y, strict=True)]),
    ("labels (B, 1)", [(x, torch.tensor([y])) for x, y in zip(X, Y, strict=True)]),
    ("{'x': ..., 'y': ...}", [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]),
):
    case(GROUP, f"k-NN on {what}", "knn/top1")(lambda _, items=items: judged(items))


@case(GROUP, "k-NN on labels that are floats", "labels must be integers, got torch.float")
def _(_: Path) -> str:
    return error_of(judged, [(x, float(y)) for x, y in zip(X, Y, strict=True)])


@case(GROUP, "k-NN on uint8 images", "of type torch.uint8, and the backbone takes float32")
def _(_: Path) -> str:
    return error_of(judged, [((x * 255).byte(), y) for x, y in zip(X, Y, strict=True)])


@case(GROUP, "predict on images alone", "h (4, 256), z (4, 128), target (4,)")
def _(_: Path) -> str:
    return predicted([(x,) for x in X])


@case(GROUP, "predict on (image, label, file name)", "name ['0.png', '1.png']")
def _(_: Path) -> str:
    return predicted([(x, y, f"{y}.png") for x, y in zip(X, Y, strict=True)])


@case(GROUP, "linear evaluation on {'image': ..., 'label': ...}", "2 steps")
def _(_: Path) -> str:
    items = [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)]
    module = LinearEvaluation("random", backbone="conv4", num_classes=2)
    return f"{fit(module, loader(items), loader(items)).global_step} steps"


@case(GROUP, "a label that is no class", "a label is 5, and there are 2 classes")
def _(_: Path) -> str:
    items = [(x, 5) for x in X]
    module = LinearEvaluation("random", backbone="conv4", num_classes=2)
    return error_of(fit, module, loader(items), loader(items))
