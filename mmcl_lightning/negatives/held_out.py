"""A few held-out images to look at: the same ones whenever one looks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.batches import labels_of
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.features import evaluating, pictures_of
from mmcl_lightning.transforms import ImageTransform
from mmcl_lightning.transforms.images import for_the_eye
from mmcl_lightning.views import is_view

__all__ = ["HeldOutImages", "NoPicturesError", "choose_images", "held_out_loader", "take_images"]


class NoPicturesError(DataError):
    """The items are no images and no clips, such as graphs."""


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """Images as a network takes them, and what is known about them.

    Args:
        views: One tensor or two, each ``(N, 3, H, W)``, or clips ``(N, 3, T, H, W)``.
        targets: Class indices, shape ``(N,)``, int64, -1 = unlabelled.
        positions: Where each image stands in its data set, shape ``(N,)``.
        statistics: Mean and std that the views were normalised with, each ``(3, 1, 1)``, or None.
        class_names: Names of the classes by index, or None.
        paths: File of each image, empty where it is none of its own.
    """

    views: tuple[Tensor, ...]
    targets: Tensor
    positions: Tensor
    statistics: tuple[Tensor, Tensor] | None = None
    class_names: list[str] | None = None
    paths: tuple[str, ...] = ()

    def path(self, index: int) -> str:
        """Return the file of an image, or nothing."""
        return self.paths[index] if self.paths else ""

    def __len__(self) -> int:
        return len(self.targets)

    def picture(self, view: int, index: int) -> Tensor:
        """Return one image for the eye, or a clip's middle frame, ``(3, H, W)`` in [0, 1], un-normalised.

        Where the normalisation is not known and values leave [0, 1], black and white are the least and the
        largest value of all images.
        """
        picture = pictures_of(self.views[view][index : index + 1])[0].float()  # type: ignore[index]
        if self.statistics is not None:
            mean, std = self.statistics
            picture = picture * std + mean
        else:
            low = min(0.0, *(float(v.min()) for v in self.views))
            high = max(1.0, *(float(v.max()) for v in self.views))
            picture = (picture - low) / (high - low)
        return for_the_eye(picture.clamp(0, 1))

    def class_name(self, index: int) -> str:
        """Return the name of an image's class, or ``class N`` without names, or nothing without a label."""
        target = int(self.targets[index])
        if target < 0:
            return ""
        if self.class_names is None or target >= len(self.class_names):
            return f"class {target}"
        return self.class_names[target]


def choose_images(
    module: nn.Module,
    datamodule: Any,
    count: int,
    views: Literal["augmented", "clean"],
    seed: int,
    loader: Iterable[Any] | None = None,
) -> HeldOutImages:
    """Return a few held-out images, the same ones for the same data and seed; random states stay as they are.

    Args:
        module: Put into evaluation mode meanwhile.
        datamodule: A datamodule, or None where there is a loader.
        count: How many, at least 2.
        views: As :func:`held_out_loader` takes it.
        seed: The choice, and what is drawn on loading, are functions of it.
        loader: Batches of held-out images; ``None`` asks the datamodule.

    Raises:
        ConfigError: If an option is out of range, or there is no loader.
        DataError: If there are fewer than two images.
    """
    check_whole(2, images=count)
    check_choice("views", views, ("augmented", "clean"))
    with evaluating(module):
        torch.manual_seed(seed)
        loader = held_out_loader(datamodule, views) if loader is None else loader
        return take_images(loader, count, seed, datamodule)


def held_out_loader(datamodule: Any, views: Literal["augmented", "clean"]) -> Iterable[Any]:
    """Return the loader of a datamodule that has held-out images.

    Args:
        datamodule: A datamodule, or None.
        views: ``"augmented"``: that of ``val_dataloader()``, two views of each image, or the next where
            there is none. ``"clean"``: the queries of ``knn_dataloaders()``, or, without labels,
            ``heldout_dataloader()`` or ``predict_dataloader()``; one view under the evaluation transform.

    Raises:
        ConfigError: If there is none of them.
    """
    if views == "augmented" and _has(datamodule, "val_dataloader"):
        loader = datamodule.val_dataloader()
        if isinstance(loader, list | tuple):
            loader = next(iter(loader), None)
        if loader is not None:
            return loader  # type: ignore[no-any-return]
    if hasattr(datamodule, "knn_dataloaders"):
        loaders = datamodule.knn_dataloaders()
        if loaders is not None:
            return loaders[1]  # type: ignore[no-any-return]
    if hasattr(datamodule, "heldout_dataloader") and (clean := datamodule.heldout_dataloader()) is not None:
        return clean  # type: ignore[no-any-return]
    if _has(datamodule, "predict_dataloader"):
        return datamodule.predict_dataloader()  # type: ignore[no-any-return]
    raise ConfigError(
        "there are no held-out images to look at: give a loader, or a datamodule with val_dataloader(), "
        "knn_dataloaders() or predict_dataloader()"
    )


def take_images(loader: Iterable[Any], count: int, seed: int, datamodule: Any = None) -> HeldOutImages:
    """Load a few images, the same ones for the same data set, number and seed.

    They are a random choice, since data sets are often sorted by class. From a loader without a data set of
    known length they are those of its first batch.

    Args:
        loader: Batches ``(views, labels)`` with views a list of two, or ``(image, label)``.
        count: How many, at most; at least 2.
        seed: The choice is a function of it.
        datamodule: Whose ``class_names`` are the names of the classes, if it has them.

    Raises:
        NoPicturesError: If the items are no images and no clips.
        DataError: If there are fewer than two images.
        ShapeError: If a batch has another structure.
    """
    dataset = getattr(loader, "dataset", None)
    if isinstance(loader, DataLoader) and not isinstance(dataset, IterableDataset):
        order = torch.randperm(len(loader.dataset), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        shows = getattr(dataset, "shows", lambda index: True)  # of a datamodule of ours
        chosen = list(islice(filter(shows, order.tolist()), count))
        positions = torch.tensor(chosen, dtype=torch.int64).sort().values
        items = [loader.dataset[i] for i in positions.tolist()]
        batch = loader.collate_fn(items) if items else None
    else:
        batch = next(iter(loader), None)
        positions = torch.arange(count)
    if batch is None:
        raise DataError("there are no held-out images to look at: the loader is empty")
    views, targets = _structure(batch, count)
    if len(targets) < 2:
        raise DataError("one held-out image has no negatives: hold out at least 2")
    names = getattr(datamodule, "class_names", None)
    positions = positions[: len(targets)]
    source = getattr(dataset, "source", None)  # of a datamodule of ours
    found = [getattr(source, "path", lambda index: None)(index) or "" for index in positions.tolist()]
    return HeldOutImages(views, targets, positions, _statistics(dataset), names, tuple(found))


def _has(datamodule: Any, hook: str) -> bool:
    """Whether a datamodule has a loader of its own; Lightning's base class has them all, to raise errors."""
    if isinstance(datamodule, LightningDataModule):
        return is_overridden(hook, datamodule, LightningDataModule)
    return hasattr(datamodule, hook)


def _structure(batch: Any, count: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the views of the first ``count`` images and their labels, -1 where there are none."""
    first = batch[0] if isinstance(batch, list | tuple) and len(batch) else batch
    if hasattr(first, "make"):  # views that a move to the device would make: transforms.batched.DrawnViews
        first = first.make()
    views = tuple(first) if isinstance(first, list | tuple) else (first,)
    if all(map(is_view, views)) and not any(isinstance(view, Tensor) for view in views):
        raise NoPicturesError(f"there are no pictures to look at: the items are {type(views[0]).__name__}")
    if len(views) not in (1, 2) or not all(isinstance(v, Tensor) and v.ndim in (4, 5) for v in views):
        raise ShapeError(
            "a batch must start with images (B, 3, H, W) or a list of two views of that shape, got "
            f"{[tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in views]}"
        )
    views = tuple(view[:count].cpu() for view in views)
    targets = labels_of(batch)
    if not isinstance(targets, Tensor) or targets.ndim != 1 or targets.is_floating_point():
        targets = torch.full((len(views[0]),), -1)
    return views, targets[:count].to("cpu", torch.int64)


def _statistics(thing: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and std that a data set normalises with, found in its transform; None where there are none."""
    if isinstance(thing, ImageTransform):
        return thing.statistics
    parts = getattr(thing, "transforms", None)
    if isinstance(parts, list | tuple | nn.ModuleList):  # torchvision's Compose
        return next((found for part in reversed(parts) if (found := _statistics(part))), None)
    if type(thing).__name__ == "Normalize":  # torchvision's, old and new
        mean, std = (torch.as_tensor(x, dtype=torch.float32).view(-1, 1, 1) for x in (thing.mean, thing.std))
        return mean, std
    # Of a CutViewDataset; of another data set, or a MultiView; Subset has its data set.
    parts = [getattr(thing, name, None) for name in ("view", "transform", "dataset")]
    inner = next((part for part in parts if part is not None), None)
    return None if inner is None else _statistics(inner)
