"""The rendered silhouettes: deterministic, balanced, and neither trivial nor hopeless for raw pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.datamodules.rendering import SHAPES, render_shapes
from mmcl_lightning.errors import ConfigError


def test_rendering_is_a_function_of_its_arguments() -> None:
    images, targets = render_shapes(30, seed=4)
    again, targets_again = render_shapes(30, seed=4)
    assert np.array_equal(images, again)
    assert np.array_equal(targets, targets_again)
    assert not np.array_equal(images, render_shapes(30, seed=5)[0])
    assert images.shape == (30, 32, 32, 3)
    assert images.dtype == np.uint8
    assert np.bincount(targets).tolist() == [3] * 10


def test_other_sizes() -> None:
    assert render_shapes(10, size=48)[0].shape == (10, 48, 48, 3)


@pytest.mark.parametrize("name", SHAPES)
def test_every_silhouette_is_inside_its_radius(name: str) -> None:
    axis = np.linspace(-1.5, 1.5, 151, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    inside = SHAPES[name](x, y) < 0
    assert 0.1 < inside[np.hypot(x, y) < 1].mean() < 0.95
    assert not inside[np.hypot(x, y) > 1.25].any()


def test_silhouettes_are_antialiased_and_visible() -> None:
    images, _ = render_shapes(200, seed=0)
    spread = images.reshape(200, -1).std(axis=1)
    assert spread.min() > 5


def test_raw_pixels_solve_a_quarter() -> None:
    train, train_targets = render_shapes(2000, seed=0)
    test, test_targets = render_shapes(400, seed=1)
    bank = torch.from_numpy(train.reshape(len(train), -1)).float()
    query = torch.from_numpy(test.reshape(len(test), -1)).float()
    nearest = torch.cdist(query, bank).topk(5, largest=False).indices
    votes = torch.nn.functional.one_hot(torch.from_numpy(train_targets)[nearest], 10).sum(1)
    accuracy = (votes.argmax(1) == torch.from_numpy(test_targets)).float().mean()
    assert 0.18 < accuracy < 0.33  # 0.26 on the full set


def test_batches() -> None:
    data = ShapesDataModule(train_size=60, test_size=20, image_size=24, batch_size=16, num_workers=0)
    views, targets = next(iter(data.train_dataloader()))
    assert [view.shape for view in views] == [(16, 3, 24, 24)] * 2
    assert 0 <= views[0].min() < views[0].max() <= 1
    assert targets.dtype == torch.int64
    assert data.num_classes == len(data.class_names) == 10
    assert not np.array_equal(data.splits.bank.images[:20], data.splits.query.images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_size": 1}, "train_size must be an integer >= 2, got 1"),
        ({"test_size": 0}, "test_size must be an integer >= 1, got 0"),
        ({"image_size": 4}, "image_size must be an integer >= 8"),
    ],
)
def test_options_are_checked(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ShapesDataModule(**options)
