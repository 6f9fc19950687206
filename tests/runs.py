"""What the tests of modules, callbacks and the command line share: tiny data, trainers and recorders."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from mmcl_lightning.datamodules import ShapesDataModule, TUDataModule
from mmcl_lightning.modules import MMCL, MoCo, SimCLR
from mmcl_lightning.readouts import (
    KNN,
    Embedding,
    Health,
    LinearProbe,
    LogisticRegression,
    Readout,
    Retrieval,
    SupportVectorGrid,
    SVCCrossValidation,
)

#: How to make every readout, for small data: each meets the tests of tests/test_enrolment.py.
READOUTS: tuple[Callable[[], Readout], ...] = (
    functools.partial(Embedding, images=8),
    functools.partial(Health, images=16, view_images=8),
    functools.partial(KNN, k=5),
    LinearProbe,
    LogisticRegression,
    functools.partial(Retrieval, ks=(1, 5)),
    functools.partial(SupportVectorGrid, images=8, queries=2),
    functools.partial(SVCCrossValidation, folds=2, inner_folds=2, C=[1.0, 10.0]),
)
#: Those that write pictures, and no value.
PICTURES = {"Embedding", "SupportVectorGrid"}


#: Every data module, with the tests that read files in its official layout.
DATA_MODULES = {
    "CIFAR10DataModule": "test_official_files.py",
    "CIFAR100DataModule": "test_official_files.py",
    "FewShotDataModule": "test_few_shot_sets.py",
    "ImageFolderDataModule": "test_image_folder.py",
    "NormalsDataModule": "test_normals_set.py",
    "STL10DataModule": "test_official_files.py",
    "ShapesDataModule": "test_shapes.py",
    "StreamDataModule": "test_stream.py",
    "TUDataModule": "test_tu.py",
    "TransferDataModule": "test_transfer_sets.py",
    "UCF101DataModule": "test_ucf101.py",
    "VOCDetectionDataModule": "test_detection_set.py",
}


def generators(name: str) -> ModuleType:
    """A module of tests/data, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "data" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expect_files(monkeypatch: pytest.MonkeyPatch, kind: type, sums: dict[str, str]) -> None:
    """Tell a class of torchvision the MD5 sums of fake files, so that its own check stays in force."""
    for name in ("train_list", "test_list"):
        files = [[file, sums[file]] for file, _ in getattr(kind, name)]
        monkeypatch.setattr(kind, name, files)
    if (meta := getattr(kind, "meta", None)) is not None:
        monkeypatch.setattr(kind, "meta", {**meta, "md5": sums[meta["filename"]]})


def write_official(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write 16 to 20 training and 10 test images of 32 to 96 pixels, as a data module of images reads them.

    Args:
        name: Class of the data module, or ``"tiny-imagenet"`` for a folder in that layout.
        root: Its root.
        monkeypatch: Tells torchvision the MD5 sums.
    """
    fake = generators("fake_images")
    if name == "CIFAR10DataModule":
        expect_files(monkeypatch, CIFAR10, fake.write_cifar10(root, per_batch=4, test=10))
    elif name == "CIFAR100DataModule":
        expect_files(monkeypatch, CIFAR100, fake.write_cifar100(root, train=16, test=10))
    elif name == "STL10DataModule":
        expect_files(monkeypatch, STL10, fake.write_stl10(root, train=16, unlabeled=4, test=10))
    elif name == "tiny-imagenet":
        fake.write_tiny_imagenet(root, per_class=8)
    else:
        for split, count in (("train", 8), ("val", 5)):
            fake.write_class_folders(root / split, 2, count, suffix="JPEG")


class FlatNet(nn.Module):
    """A backbone without batch norm, so that processes with parts of a batch agree with one that has all."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, width)
        self.num_features = width

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x.flatten(1)))


class Recorder(Callback):
    """Keeps loss, learning rate and C of every training batch."""

    def __init__(self) -> None:
        self.loss: list[float] = []
        self.lr: list[float] = []
        self.options: list[tuple[int, float, Any]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.loss.append(float(outputs["loss"]))
        self.lr.append(float(trainer.callback_metrics.get("train/lr", torch.nan)))
        criterion = getattr(pl_module, "criterion", None)
        if hasattr(criterion, "C"):
            self.options.append((trainer.current_epoch + 1, criterion.C, criterion.kernel))


class StopAfter(Callback):
    """Ends a run after an epoch, without changing max_epochs, on which schedules depend."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or trainer.current_epoch + 1 >= self.epochs


class InterruptedRunError(RuntimeError):
    """What FailAt raises."""


def shapes(**changes: Any) -> ShapesDataModule:
    """32 training and 20 test images of 16 pixels, four batches of 8."""
    options: dict[str, Any] = {
        "train_size": 32,
        "test_size": 20,
        "image_size": 16,
        "batch_size": 8,
        "eval_batch_size": 16,
        "num_workers": 0,
    }
    return ShapesDataModule(**(options | changes))


def write_tu(root: Path, name: str = "MUTAG", graphs: int = 24) -> Path:
    """A set of graphs in the official layout: rings of class -1 and stars of class 1, 7 labels of nodes."""
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    lines: dict[str, list[str]] = {"A": [], "graph_indicator": [], "graph_labels": [], "node_labels": []}
    first = 1
    for graph in range(graphs):
        count, star = 4 + graph % 5, graph % 2
        for node in range(count):
            other = first if star else first + (node + 1) % count
            if other != first + node:
                lines["A"] += [f"{first + node}, {other}", f"{other}, {first + node}"]
            lines["graph_indicator"].append(str(graph + 1))
            lines["node_labels"].append(str((first + node) % 7))
        lines["graph_labels"].append("1" if star else "-1")
        first += count
    for part, text in lines.items():
        (folder / f"{name}_{part}.txt").write_text("\n".join(text) + "\n")
    return folder


def tu(root: Path, **changes: Any) -> TUDataModule:
    """24 graphs, of which 3 are a batch."""
    if not (root / "MUTAG").exists():
        write_tu(root)
    options: dict[str, Any] = {"root": str(root), "batch_size": 8, "eval_batch_size": 10, "num_workers": 0}
    return TUDataModule(**(options | changes))


#: Options of a module that is as small as a real one can be.
TINY: dict[str, Any] = {"backbone": "conv4", "projection_head": "cifar", "hidden_dim": 16, "output_dim": 8}


def write_normals(root: Path, train: int = 4, test: int = 3, size: tuple[int, int] = (40, 30)) -> None:
    """Write ``{image,normal}/{train,test}/00001``: the left half looks to the right, the other half up.

    The left half of an image is red and the other blue; the first row of the normals is not valid.
    """
    width, height = size
    for split, count in (("train", train), ("test", test)):
        for index in range(1, count + 1):
            colours = np.zeros((2, height, width, 3), dtype=np.uint8)
            colours[0, :, : width // 2], colours[0, :, width // 2 :] = (
                (200, 9 * index, 0),
                (0, 9 * index, 200),
            )
            colours[1, :, : width // 2], colours[1, :, width // 2 :] = (255, 128, 128), (128, 255, 128)
            colours[1, 0] = 128
            for kind, suffix, pixels in zip(("image", "normal"), ("jpg", "png"), colours, strict=True):
                path = root / kind / split / f"{index:05d}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


#: An object: name, xmin, ymin, xmax, ymax, difficult.
Box = tuple[str, int, int, int, int, int]


def voc_xml(objects: Sequence[Box], size: tuple[int, int] = (48, 32)) -> str:
    """An annotation; the file that it names is none."""
    parts = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult><bndbox><xmin>{left}</xmin>"
        f"<ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, left, top, right, bottom, hard in objects
    )
    return (
        "<annotation><filename>none.jpg</filename><path>/none/none.jpg</path>"
        f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>{parts}</annotation>"
    )


def write_voc(root: Path, year: int = 2007, train: int = 4, test: int = 3) -> Path:
    """Write ``VOCdevkit/VOCyear``: images of 48 x 32 pixels with a red dog and, from the second on, a cat.

    The dog is 16 x 12 pixels from (4, 5) on, moved to the right by the number of the image; the cat, blue and
    difficult in every other one, is 20 x 16 from (28, 16).
    """
    folder = root / "VOCdevkit" / f"VOC{year}"
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = {"trainval": range(train), "test": range(train, train + test)}
    for split, numbers in names.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{n:06d}\n" for n in numbers))
        for number in numbers:
            pixels = np.full((32, 48, 3), 128, dtype=np.uint8)
            pixels[5:17, 4 + number : 20 + number] = (200, 20, 20)
            objects: list[Box] = [("dog", 5 + number, 6, 20 + number, 17, 0)]
            if number:
                pixels[16:32, 28:48] = (20, 20, 200)
                objects.append(("cat", 29, 17, 48, 32, number % 2))
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{number:06d}.jpg")
            (folder / "Annotations" / f"{number:06d}.xml").write_text(voc_xml(objects))
    return folder


def mmcl(seed: int = 0, **changes: Any) -> MMCL:
    torch.manual_seed(seed)
    return MMCL(**(TINY | changes))


def simclr(seed: int = 0, **changes: Any) -> SimCLR:
    torch.manual_seed(seed)
    return SimCLR(**(TINY | changes))


def moco(seed: int = 0, **changes: Any) -> MoCo:
    """A queue of 20 rows, which batches of 8 do not divide, and a key encoder that moves visibly."""
    torch.manual_seed(seed)
    options = {"projection_head": "moco", "queue_size": 20, "momentum": 0.9}
    return MoCo(**(TINY | options | changes))


def trainer(folder: Path, *callbacks: Callback, log: bool = False, **changes: Any) -> Trainer:
    options: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any("Checkpoint" in type(callback).__name__ for callback in callbacks),
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "logger": TensorBoardLogger(folder, name="tb", version=0) if log else False,
    }
    return Trainer(callbacks=list(callbacks), **(options | changes))


def events(folder: Path) -> EventAccumulator:
    """Everything that a run wrote to TensorBoard, of the one run below ``folder``."""
    (path,) = {file.parent for file in folder.rglob("events.out.tfevents*")}
    return EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Steps and values of a scalar."""
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


class Plain(LightningModule):
    """Someone else's module: loaders of its own, no datamodule, no criterion of ours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 16 * 16, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        return image_loader(24, seed=5, batch_size=8, shuffle=True)


def image_loader(count: int, seed: int, labels: Tensor | None = None, **options: Any) -> DataLoader[Any]:
    """Batches ``(image, label)`` of random images whose brightness tells their class, of three."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 3
    images = torch.rand(count, 3, 16, 16, generator=generator) + targets[:, None, None, None]
    return DataLoader(
        TensorDataset(images, targets if labels is None else labels), **({"batch_size": 10} | options)
    )
