"""The pictures of support vectors in a run: written where due, and no trace of having looked."""

from __future__ import annotations

import functools
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from PIL import Image
from runs import FlatNet, events, image_loader, mmcl, shapes, simclr, trainer
from torch import nn
from torch.utils.data import DataLoader

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.negatives import Selection, choose_images, find_support_vectors
from mmcl_lightning.readouts import SupportVectorGrid


@pytest.mark.parametrize("own", [False, True])
def test_is_written_where_due_and_only_with_a_board(own: bool, tmp_path: Path) -> None:
    grid = SupportVectorGrid(
        images=10, queries=3, support_vectors=2, others=1, every_n_epochs=2 if own else None
    )
    readouts = Readouts(every_n_epochs=1 if own else 2, support_vectors=grid)
    module = mmcl(C=0.5)
    runner = trainer(tmp_path, readouts, log=True, max_epochs=3)
    runner.fit(module, shapes())
    written = events(tmp_path).Images("svm/support_vectors")
    assert [event.step for event in written] == [8, 12]
    images = choose_images(module, shapes(), 10, "augmented", 0)
    expected = find_support_vectors(runner, module, images).draw(Selection(3, 2, 1), "after 3 epochs")
    shown = np.asarray(Image.open(io.BytesIO(written[-1].encoded_image_string)).convert("RGB"))
    assert np.array_equal(shown, np.asarray(expected))
    silent = SupportVectorGrid(images=10)
    trainer(tmp_path / "none", Readouts(support_vectors=silent)).fit(mmcl(), shapes())
    assert silent._chosen is None


class Watch(Callback):
    """Modes of the network and what the loss found, at the start of every batch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.look(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.look(pl_module)

    def look(self, module: Any) -> None:
        stats = {name: float(value) for name, value in module.criterion.last_stats.items()}
        self.seen.append(([child.training for child in module.modules()], stats, repr(module.criterion)))


def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    ends = []
    for with_it in (False, True):
        watch = Watch()
        grid = SupportVectorGrid(images=10, queries=2, loader=None)
        extra = [Readouts(every_n_epochs=1, support_vectors=grid)] if with_it else []
        module = mmcl(symmetric=True)
        module.projection_head.eval()  # a mode of its own has to come back
        torch.manual_seed(7)
        # Callbacks run in their order: the watch comes after the grid.
        trainer(tmp_path / str(with_it), *extra, watch, log=True, max_epochs=2).fit(module, shapes())
        ends.append((module.state_dict(), watch.seen, torch.rand(3).tolist()))
    (alone, seen, draws), (watched, watched_seen, watched_draws) = ends
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    assert seen == watched_seen
    assert draws == watched_draws


def still(folder: Path, **options: Any) -> bytes:
    """Picture of a network that does not move."""
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    torch.manual_seed(0)
    module = mmcl(
        backbone=FlatNet(), projection_head=head, optimizer=functools.partial(torch.optim.SGD, lr=0.0)
    )
    readouts = Readouts(every_n_epochs=1, support_vectors=SupportVectorGrid(images=12, queries=2))
    size = 16 // options.get("devices", 1)
    trainer(folder, readouts, log=True, **options).fit(module, shapes(batch_size=size))
    (event,) = events(folder).Images("svm/support_vectors")
    return event.encoded_image_string


def test_two_processes_draw_the_picture_of_one_once(tmp_path: Path) -> None:
    torch.manual_seed(3)
    one = still(tmp_path / "one")
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = still(tmp_path / "two", devices=2, strategy="ddp_fork")
    assert one == two


def test_unlabelled_folder(tmp_path: Path) -> None:
    for index in range(20):
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0, holdout=0.5)
    readouts = Readouts(every_n_epochs=5, support_vectors=SupportVectorGrid(images=8, queries=2))
    trainer(tmp_path / "run", readouts, log=True).fit(mmcl(), data)
    assert len(events(tmp_path / "run").Images("svm/support_vectors")) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1, got 0"),
        ({"images": 1}, "images must be an integer >= 2, got 1"),
        ({"support_vectors": 0}, "support_vectors must be an integer >= 1"),
        ({"views": "both"}, "views must be 'augmented' or 'clean', got 'both'"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SupportVectorGrid(**options)


class Bare(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return image_loader(24, seed=5)


def test_a_loss_without_support_vectors_has_no_pictures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        trainer(tmp_path, Readouts(support_vectors=SupportVectorGrid()), log=True).fit(simclr(), shapes())
    assert caplog.text.count("the loss has no support vectors") == 1


def test_no_images_stop_at_the_start(tmp_path: Path) -> None:
    readouts = Readouts(support_vectors=SupportVectorGrid())
    with pytest.raises(ConfigError, match=r"no held-out images to look at: give a loader"):
        trainer(tmp_path, readouts, log=True).fit(mmcl(), Bare())
