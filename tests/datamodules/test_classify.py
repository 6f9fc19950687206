"""One augmented view of the labelled images to train a classifier on, clean test images to judge it by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mmcl_lightning.datamodules import ShapesDataModule, STL10DataModule
from mmcl_lightning.datamodules.datasets import EvalDataset
from mmcl_lightning.datamodules.loading import EvenSampler
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import MultiView


def shapes(**options: Any) -> ShapesDataModule:
    return ShapesDataModule(
        **{
            "train_size": 50,
            "test_size": 20,
            "batch_size": 8,
            "num_workers": 0,
            "task": "classify",
            **options,
        }
    )


def test_one_view_of_every_labelled_image() -> None:
    data = shapes()
    loader = data.train_dataloader()
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [8] * 6 + [2]  # the last partial batch trains too
    assert batches[0][0].shape == (8, 3, 32, 32)
    labels = torch.cat([targets for _, targets in batches])
    assert sorted(labels.tolist()) == sorted(data.splits.bank.targets.tolist())
    # The view is the first of the two that pretraining would draw.
    order = list(loader.sampler)[:8]
    views = shapes(task="pretrain").train_dataloader().dataset
    for image, key in zip(batches[0][0], order, strict=True):
        assert torch.equal(image, views[key][0][0])
    loader.sampler.set_epoch(1)
    assert not torch.equal(next(iter(loader))[0], batches[0][0])


def test_a_last_image_alone_is_left_out() -> None:
    # Batch norm needs two.
    assert [len(images) for images, _ in shapes(train_size=49).train_dataloader()] == [8] * 6


def test_one_image_is_too_few() -> None:
    data = shapes()
    data.splits.bank.targets[1:] = -1
    with pytest.raises(DataError, match="2 labelled training images or more on each device, got 1 for 1"):
        data.train_dataloader()


def test_a_batch_may_exceed_the_images() -> None:
    (batch,) = shapes(batch_size=512).train_dataloader()
    assert len(batch[0]) == 50


def test_validation_and_test_are_the_clean_queries() -> None:
    data = shapes(eval_batch_size=6)
    queries = list(data.knn_dataloaders()[1])
    for loader in (data.val_dataloader(), data.test_dataloader()):
        for ours, query in zip(loader, queries, strict=True):
            assert torch.equal(ours[0], query[0])
            assert torch.equal(ours[1], query[1])


def test_images_without_label_are_left_out() -> None:
    data = shapes()
    data.splits.bank.targets[:20] = -1
    labels = torch.cat([targets for _, targets in data.train_dataloader()])
    assert len(labels) == 30
    assert labels.min() >= 0


def test_the_augmentation_of_a_multi_view_is_taken() -> None:
    transform = shapes().default_train_transform()
    one, two = (
        next(iter(shapes(train_transform=t).train_dataloader()))[0] for t in (transform, MultiView(transform))
    )
    assert torch.equal(one, two)


def test_stl10_trains_on_its_labelled_split(stl10_root: Any) -> None:
    for split in ("train", "train+unlabeled"):
        data = STL10DataModule(
            str(stl10_root), task="classify", pretrain_split=split, batch_size=8, num_workers=0
        )
        batches = list(data.train_dataloader())
        assert sum(len(images) for images, _ in batches) == 20
        assert batches[0][0].shape[1:] == (3, 32, 32)
        assert next(iter(data.val_dataloader()))[0].shape[1:] == (3, 96, 96)


def test_what_cannot_work() -> None:
    with pytest.raises(ConfigError, match="task must be 'pretrain' or 'classify', got 'linear'"):
        shapes(task="linear")
    data = shapes()
    data.splits.bank.targets[:] = -1
    with pytest.raises(ConfigError, match="task 'classify' needs labelled training images"):
        data.train_dataloader()


@pytest.mark.parametrize(("length", "ranks"), [(7, 2), (8, 2), (5, 3), (1, 2), (2, 5)])
def test_ranks_share_evenly_and_count_each_image_once(length: int, ranks: int) -> None:
    from mmcl_lightning.datamodules.sources import ArraySource

    source = ArraySource(np.arange(length, dtype=np.uint8)[:, None, None, None].repeat(3, 3), range(length))
    dataset = EvalDataset(source, lambda image: torch.tensor(image.getpixel((0, 0))[0]))
    shares = [[dataset[at] for at in EvenSampler(dataset, ranks, rank)] for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    counted = [int(image) for share in shares for image, target in share if target >= 0]
    assert sorted(counted) == list(range(length))
    assert all(int(image) == target for share in shares for image, target in share if target >= 0)
