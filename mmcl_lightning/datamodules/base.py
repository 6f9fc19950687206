"""What every data module shares: options, checks, loaders."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning._loading import PlainlyLoaded
from mmcl_lightning._options import check_choice, check_whole, is_whole
from mmcl_lightning.datamodules.datasets import EvalDataset, ViewDataset, collate_items
from mmcl_lightning.datamodules.loading import (
    EpochSampler,
    EvenSampler,
    ResumableDataLoader,
    leave_process_group,
)
from mmcl_lightning.datamodules.sources import JoinedSource, Source
from mmcl_lightning.datamodules.splits import Splits, describe_rows
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import ImageTransform, MultiView
from mmcl_lightning.transforms.base import described

__all__ = ["SSLDataModule", "Splits"]


class SSLDataModule(PlainlyLoaded, LightningDataModule):  # type: ignore[misc]  # also takes strict
    """Loaders for contrastive training, the k-NN readout and prediction over one data set.

    Its items may be of any kind: images are those of
    :class:`~mmcl_lightning.datamodules.images.ImageDataModule`, which data sets of images derive from. A
    subclass says which items there are (:meth:`load_splits`), which transforms it uses by default
    (:meth:`default_train_transform`, :meth:`default_eval_transform`) and which classes there are.

    Batch:
        ``train_dataloader`` and ``val_dataloader``: ``(views, targets)`` with views a list of two, such as
        float32 tensors ``(B, 3, H, W)``, and targets int64 ``(B,)``, -1 = unlabelled. ``knn_dataloaders``:
        ``(view, target)``, one view of each item, or a list of several, in the order of the data set;
        ``predict_dataloader`` with the position besides. With the task ``"classify"`` all batches are
        ``(view, target)``.

    Order and augmentations depend on (seed, epoch, position of the item) alone; see ``loading.py``.

    Args:
        batch_size: Images per step and per device, at least 2 (each image's negatives are the others).
        eval_batch_size: Images per step of readout and prediction, per device.
        num_workers: Worker processes per loader; 0 loads in the main process.
        task: ``"pretrain"`` trains on two views of all training images. ``"classify"`` trains on one view
            of the labelled ones, and validates and tests on clean test images: for
            :class:`~mmcl_lightning.modules.LinearEvaluation` and ``FineTune``.
        train_subset: Use this many training images, chosen by ``seed``, equally many of each class
            where all are labelled. None uses all.
        test_subset: The same for the held-out images.
        validation_subset: Hold out this many of the labelled training images, equally many of each class,
            and let readout and validation loss see them in place of the test images: for choosing options.
            They are not trained on, unless the data set pretrains on more than its labelled images
            (STL-10): there all images stay, without labels.
        predict_split: Images of ``predict_dataloader``: ``"all"``, those of the training and the held-out
            ones; ``"test"``, these alone; ``"train"``, the labelled training images, or the unlabelled ones
            where none is labelled.
        seed: Order, augmentations and subsets are functions of it.
        train_transform: Augmentation of one view, or a :class:`~mmcl_lightning.transforms.MultiView` that
            makes all views; None for the data set's own.
        eval_transform: Transform of readout and prediction; None for the data set's own.

    Raises:
        ConfigError: If an option is out of its range.
    """

    on_bad_image = "error"
    """What is done about images that cannot be read, ``"error"`` or ``"skip"``; see ImageFolderDataModule."""
    collate_fn: Callable[[list[Any]], Any] = staticmethod(collate_items)
    """Makes a batch of items; that of a subclass may know other items than tensors."""
    contrasts = True
    """Whether a batch needs two items: views of one are compared with those of others."""
    keep_last_batch = False
    """Whether to pretrain on the last batch of an epoch where it is smaller, but for one of a single item."""

    items: ClassVar[str] = "images"
    """What an item is called in records and reports."""

    def __init__(
        self,
        batch_size: int = 256,
        eval_batch_size: int = 512,
        num_workers: int = 2,
        task: Literal["pretrain", "classify"] = "pretrain",
        train_subset: int | None = None,
        test_subset: int | None = None,
        validation_subset: int | None = None,
        predict_split: Literal["all", "train", "test"] = "all",
        seed: int = 0,
        train_transform: ImageTransform | nn.Module | None = None,
        eval_transform: ImageTransform | nn.Module | None = None,
    ) -> None:
        super().__init__()
        if self.contrasts and (not is_whole(batch_size) or batch_size < 2):
            raise ConfigError(
                f"batch_size must be at least 2, since a contrast needs two images; got {batch_size!r}"
            )
        check_whole(1, batch_size=batch_size)
        check_whole(1, eval_batch_size=eval_batch_size)
        check_whole(0, num_workers=num_workers, seed=seed)
        subsets = {"train": train_subset, "test": test_subset, "validation": validation_subset}
        for part, count in subsets.items():
            if count is not None:
                check_whole(2 if part == "train" else 1, **{f"{part}_subset": count})
        if seed >= 2**63:
            raise ConfigError(f"seed must be less than 2**63, got {seed}")
        check_choice("task", task, ("pretrain", "classify"))
        check_choice("predict_split", predict_split, ("all", "train", "test"))
        # Integers of Python: torch's loaders take no others.
        self.batch_size = int(batch_size)
        self.eval_batch_size = int(eval_batch_size)
        self.num_workers = int(num_workers)
        self.task = task
        self.train_subset = train_subset
        self.test_subset = test_subset
        self.validation_subset = validation_subset
        self.predict_split = predict_split
        self.seed = int(seed)
        self.train_transform = train_transform
        self.eval_transform = eval_transform
        self._splits: Splits | None = None
        self._prepared: Splits | None = None

    @property
    @abstractmethod
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their indices, or None without labels."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes, or None without labels."""
        return None if self.class_names is None else len(self.class_names)

    @property
    def held_out(self) -> str:
        """Which images are judged: ``"test"``, or ``"validation"`` where options are to be chosen."""
        return "test" if self.validation_subset is None else "validation"

    @abstractmethod
    def load_splits(self) -> Splits:
        """Open the data set; subsets are taken by the caller."""

    def prepare_source(self, source: Source) -> Source:
        """Do once what every image of a split needs, after subsets are taken; by default nothing."""
        return source

    @abstractmethod
    def default_train_transform(self) -> Any:
        """Return the augmentation of one view."""

    @abstractmethod
    def default_eval_transform(self) -> Any:
        """Return the transform of readout and prediction."""

    def setup(self, stage: str | None = None) -> None:
        """Open the data set once, whatever the stage."""
        self._opened()

    def _opened(self) -> Splits:
        """Return the images by their use, reduced to the subsets, before anything is done once for all."""
        if self._splits is None:
            full = self.load_splits()
            if self.validation_subset is not None:
                full = full.hold_out(self.validation_subset, self.seed + 2)
            # A validation part has the size asked for already.
            test_subset = self.test_subset if self.validation_subset is None else None
            self._splits = full.reduce(self.train_subset, test_subset, self.seed)
        return self._splits

    @property
    def splits(self) -> Splits:
        """The images by their use, reduced to the subsets; made ready on first access."""
        if self._prepared is None:
            self._prepared = self._opened().map(self.prepare_source)
        return self._prepared

    def train_dataloader(self) -> ResumableDataLoader:
        """Training images in a new order every epoch.

        To pretrain, two views of each, without the last partial batch. To classify, one view of each that
        has a label; only a last batch of one image is dropped, since batch norm needs two.

        Raises:
            ConfigError: To pretrain, if one batch over all devices needs more images than there are; to
                classify, if none has a label.
        """
        self.check_options()
        if self.task == "classify":
            return self._train_loader(self._labelled())
        source = self.splits.pretrain
        needed = (2 if self.keep_last_batch else self.batch_size) * self._world_size
        if needed > len(source):
            if len(source) < 2 * self._world_size:
                raise ConfigError(
                    f"a contrast needs 2 training {self.items} or more on each device, got {len(source)}"
                )
            devices = f" on each of {self._world_size} devices" if self._world_size > 1 else ""
            raise ConfigError(
                f"batch_size is {self.batch_size}{devices}, but there are only {len(source)} training "
                f"{self.items}; set batch_size to {max(2, len(source) // self._world_size)} or less, "
                f"or bring more {self.items}"
            )
        return self._train_loader(source)

    def check_options(self) -> None:
        """Warn of options that do not go together; called before items are trained on."""

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Two views of held-out images, the same in every epoch; an empty list where none is held out.

        Batches are smaller than ``batch_size`` only where fewer images are held out. To classify, what
        :meth:`test_dataloader` gives.
        """
        if self.task == "classify":
            return self.test_dataloader()
        source = self.splits.heldout
        batch_size = 0 if source is None else min(self.batch_size, len(source) // self._world_size)
        if source is None or batch_size < 2:
            return []
        dataset = self._view_dataset(source)
        sampler = EpochSampler(
            dataset, self._world_size, self._rank, shuffle=False, seed=self.seed, fixed_epoch=True
        )
        return DataLoader(
            dataset=dataset,
            batch_size=batch_size,
            sampler=sampler,
            drop_last=True,
            collate_fn=self._collate(dataset),
            **self._loader_options(),
        )

    def test_dataloader(self) -> DataLoader[Any]:
        """Labelled test images under the evaluation transform, shared between processes.

        Where shares are uneven, fillings have the target -1, so that no image counts twice.

        Raises:
            ConfigError: If no labelled image is held out.
        """
        if self.splits.query is None:
            raise ConfigError("there are no labelled test images to classify")
        return self._eval_loader(self.splits.query, share=True)

    def knn_dataloaders(self) -> tuple[DataLoader[Any], DataLoader[Any]] | None:
        """Bank and query of the k-NN readout, or None without labels (the readout then switches off)."""
        bank, query = self.splits.bank, self.splits.query
        if bank is None or query is None:
            return None
        return self._eval_loader(bank), self._eval_loader(query)

    def health_dataloader(self) -> DataLoader[Any]:
        """Training images under the evaluation transform: those with labels, or all where none has one."""
        splits = self.splits
        return self._eval_loader(splits.pretrain if splits.bank is None else splits.bank)

    def labelled_dataloader(self) -> DataLoader[Any] | None:
        """Every labelled item once under the evaluation transform, or None without labels."""
        parts = [part for part in (self.splits.bank, self.splits.query) if part is not None]
        return self._eval_loader(JoinedSource(parts)) if parts else None

    def heldout_dataloader(self) -> DataLoader[Any] | None:
        """Held-out images under the evaluation transform, or None where none is held out."""
        source = self.splits.heldout if self.splits.query is None else self.splits.query
        return None if source is None else self._eval_loader(source)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Images of ``predict_split`` under the evaluation transform, ``(image, target, position)``.

        An image that is skipped has the position ``~position``, and shows another.
        :meth:`rows` says which image stands at a position.

        Raises:
            ConfigError: If nothing is held out and ``predict_split`` is ``"test"``.
        """
        parts = self.splits.predicted(self.predict_split)
        return self._eval_loader(JoinedSource(list(parts.values())), numbered=True)

    def rows(self, positions: Sequence[int]) -> dict[str, list[str]]:
        """Say which images stand at positions of :meth:`predict_dataloader`.

        Args:
            positions: The positions.

        Returns:
            ``path``, relative to ``root`` where it lies below, or the position in its split where images are
            no files of their own; ``class``, empty without a label; ``split``, train or test.
        """
        root = os.path.abspath(os.path.expanduser(getattr(self, "root", None) or "."))
        return describe_rows(self.splits.predicted(self.predict_split), positions, self._class_text, root)

    def _class_text(self, target: int) -> str:
        """Return the name of the class that a target stands for, empty without a label."""
        names = self.class_names if target >= 0 else None
        return "" if names is None else names[target]

    def fingerprint(self) -> dict[str, str]:
        """Return the number of images and a hash of them for each split; see :meth:`Splits.fingerprint`."""
        return self.splits.fingerprint(self.items)

    def skipped_images(self) -> list[str]:
        """Return the files that were skipped so far as they cannot be read, by this process's loaders."""
        return []

    def prepared(self) -> str:
        """Say in words how the items of readouts and evaluations are prepared."""
        return described(self._transforms()[1])

    def _labelled(self) -> Source:
        """Training images of the classification."""
        bank = self.splits.bank
        if bank is None or bank.targets.max(initial=-1) < 0:
            raise ConfigError("task 'classify' needs labelled training images, and there are none")
        return bank.subset(np.arange(len(bank))[bank.targets >= 0])

    def _train_loader(self, source: Source) -> ResumableDataLoader:
        dataset = self._view_dataset(source)
        sampler = self._train_sampler(dataset)
        if self.task == "classify" and sampler.num_samples < 2:  # its only batch would be left out
            raise DataError(
                "an evaluation needs 2 labelled training images or more on each device, got "
                f"{len(source)} for {self._world_size}"
            )
        keeps = self.task == "classify" or self.keep_last_batch
        return ResumableDataLoader(
            dataset=dataset,
            batch_size=self.batch_size,
            sampler=sampler,
            drop_last=not keeps or sampler.num_samples % self.batch_size == 1,
            collate_fn=self._collate(dataset),
            **self._loader_options(),
        )

    def _train_sampler(self, dataset: ViewDataset) -> EpochSampler:
        """Return what says in which order items are trained on."""
        return EpochSampler(dataset, self._world_size, self._rank, seed=self.seed)

    def _view_dataset(self, source: Source) -> ViewDataset:
        transform = self._transforms()[0]
        if self.task == "pretrain":
            transform = transform if isinstance(transform, MultiView) else MultiView(transform)
        elif isinstance(transform, MultiView):
            transform = transform.transform
        return ViewDataset(source, transform, self.seed, self._skips)

    def _collate(self, dataset: ViewDataset) -> Callable[[list[Any]], Any]:
        """Return what makes a batch of the items of a data set."""
        return self.collate_fn

    def _eval_loader(self, source: Source, share: bool = False, numbered: bool = False) -> DataLoader[Any]:
        _, transform = self._transforms()
        dataset: Dataset[Any] = EvalDataset(source, transform, numbered, self._skips)
        sampler = EvenSampler(dataset, self._world_size, self._rank) if share else None
        return DataLoader(
            dataset=dataset,
            batch_size=self.eval_batch_size,
            shuffle=False,
            sampler=sampler,
            collate_fn=self.collate_fn,
            **self._loader_options(),
        )

    def _transforms(self) -> tuple[Any, Any]:
        """Return those of training and of evaluation items, as given or as the data set has them."""
        train, evaluation = self.train_transform, self.eval_transform
        return (
            self.default_train_transform() if train is None else train,
            self.default_eval_transform() if evaluation is None else evaluation,
        )

    def _loader_options(self) -> dict[str, Any]:
        # Keywords throughout the loaders: Lightning builds them again for predict, by keyword.
        # An own generator: a loader otherwise draws its base seed from the global random state.
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,  # until the loader goes: spawned ones take seconds
            "worker_init_fn": leave_process_group,
            "pin_memory": torch.cuda.is_available(),
            "generator": torch.Generator().manual_seed(self.seed),
        }

    @property
    def _skips(self) -> bool:
        return self.on_bad_image == "skip"

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0
