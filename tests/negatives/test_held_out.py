"""The few held-out images that are looked at: always the same ones, and as the eye sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import generator
from PIL import Image
from runs import image_loader, shapes
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchvision.transforms import Compose, Normalize, ToTensor

from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.negatives.held_out import HeldOutImages, held_out_loader, take_images
from mmcl_lightning.transforms import CIFAR_MEAN, CIFAR_STD, EvalTransform, SimCLRTransform


def test_the_images_are_a_fixed_choice_of_all(tmp_path: Path) -> None:
    data = shapes(test_size=60)
    runs = [take_images(held_out_loader(data, "augmented"), 20, seed, data) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].positions, runs[1].positions)
    assert torch.equal(runs[0].views[1], runs[1].views[1])
    assert not torch.equal(runs[0].positions, runs[2].positions)
    assert runs[0].positions.max() >= 20
    assert runs[0].class_names == data.class_names
    dataset = data.val_dataloader().dataset
    for row, position in enumerate(runs[0].positions.tolist()):
        (view0, view1), target = dataset[position]
        assert torch.equal(runs[0].views[0][row], view0)
        assert torch.equal(runs[0].views[1][row], view1)
        assert int(runs[0].targets[row]) == target
    clean = take_images(held_out_loader(data, "clean"), 20, 0, data)
    assert len(clean.views) == 1
    assert torch.equal(clean.positions, runs[0].positions)
    assert torch.equal(clean.views[0][3], data.knn_dataloaders()[1].dataset[int(clean.positions[3])][0])


def test_views_that_the_device_would_make_are_the_same_pictures() -> None:
    transform = SimCLRTransform(32, mean=CIFAR_MEAN, std=CIFAR_STD)
    worker, device = (
        take_images(held_out_loader(data, "augmented"), 12, 0, data)
        for data in (shapes(test_size=40, train_transform=transform, augment=a) for a in ("worker", "device"))
    )
    assert torch.equal(worker.positions, device.positions)
    pictures = [
        torch.stack([images.picture(1, i) for i in range(len(images))]) for images in (worker, device)
    ]
    assert float((pictures[0] - pictures[1]).abs().mean()) < 2 / 255


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.full((3, 4, 4), i / 10), i) for i in range(10)])


@pytest.mark.parametrize("given", ["stream", "list"])
def test_images_of_a_loader_without_length_are_those_of_its_first_batch(given: str) -> None:
    batches = DataLoader(Stream(), batch_size=6)
    images = take_images(batches if given == "stream" else list(batches), 4, seed=0)
    assert images.targets.tolist() == images.positions.tolist() == [0, 1, 2, 3]
    assert take_images(batches, 40, seed=0).positions.tolist() == list(range(6))


@pytest.mark.parametrize(
    "transform",
    [
        EvalTransform.cifar(),
        Compose([ToTensor(), Normalize(CIFAR_MEAN, CIFAR_STD)]),
    ],
)
def test_normalisation_is_undone(transform: Any) -> None:
    pixels = torch.randint(256, (2, 6, 6, 3), generator=generator(4)).byte().numpy()

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.transform = transform

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return self.transform(Image.fromarray(pixels[index])), index

    images = take_images(DataLoader(torch.utils.data.Subset(Data(), [1, 0])), 2, seed=0)
    assert images.views[0].min() < -0.5
    expected = torch.from_numpy(pixels[1]).permute(2, 0, 1) / 255
    torch.testing.assert_close(images.picture(0, 0), expected)


def test_unknown_normalisation_is_scaled() -> None:
    views = torch.tensor([-2.0, 0.0, 2.0, 1.0]).view(2, 2, 1, 1).expand(2, 2, 3, 3)[:, :1].expand(2, 3, 3, 3)
    images = HeldOutImages((views,), torch.tensor([0, 9]), torch.arange(2), class_names=["cat"])
    assert images.picture(0, 0).unique().tolist() == [0.0]
    assert images.picture(0, 1).unique().tolist() == [1.0]
    assert images.class_name(0) == "cat"
    assert images.class_name(1) == "class 9"  # a label without a name


def test_unlabelled_folder(tmp_path: Path) -> None:
    for index in range(20):
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0, holdout=0.5)
    for views, count in (("augmented", 2), ("clean", 1)):
        images = take_images(held_out_loader(data, views), 8, 0, data)  # type: ignore[arg-type]
        assert len(images.views) == count
        assert images.targets.tolist() == [-1] * 8


def test_what_cannot_work() -> None:
    with pytest.raises(DataError, match="loader is empty"):
        take_images([], 8, 0)
    with pytest.raises(DataError, match="one held-out image has no negatives"):
        take_images(image_loader(1, seed=0), 8, 0)
    with pytest.raises(ShapeError, match=r"images \(B, 3, H, W\) or a list of two views"):
        take_images([([torch.zeros(4, 3, 8, 8)] * 3, torch.zeros(4))], 8, 0)
