"""One reading of a network: the features of its images, run once for all readouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden

from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.features import FeaturePass, feature_pass
from mmcl_lightning.features._sharing import first_batches

__all__ = ["ImagesToRead", "Reading"]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class ImagesToRead:
    """Which images readouts read, and how their features are kept.

    Args:
        bank_loader: Batches of labelled training images without augmentation; ``None`` asks the datamodule's
            ``knn_dataloaders()``, which returns bank and query, or None without labels.
        query_loader: Batches of labelled held-out images.
        view_loader: Batches ``(views, ...)`` of augmented views; ``None`` asks the datamodule's
            ``val_dataloader()``, or ``train_dataloader()`` where nothing is held out.
        num_classes: Number of classes; ``None`` asks the datamodule.
        bank_device: Where the features of the bank lie: ``"module"``, or ``"cpu"``.
        bank_dtype: How they are kept.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    bank_loader: Iterable[Any] | None = None
    query_loader: Iterable[Any] | None = None
    view_loader: Iterable[Any] | None = None
    num_classes: int | None = None
    bank_device: Literal["module", "cpu"] = "module"
    bank_dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        check_choice("bank_device", self.bank_device, ("module", "cpu"))
        check_choice("bank_dtype", self.bank_dtype, _DTYPES)
        if self.num_classes is not None:
            check_whole(1, num_classes=self.num_classes)


@dataclass(eq=False)
class Reading:
    """The state of a run at one moment, and the features of its images, each pass made when it is asked for.

    Args:
        trainer: The trainer.
        module: The module that is trained.
        images: Which images.
        needs: Kinds of features by images, all that this reading will be asked for; see
            :meth:`~mmcl_lightning.readouts.base.Readout.needs`.
        epoch: Epochs trained.
        kept: Loaders of the datamodule, which keep their workers from one reading of a run to the next.
    """

    trainer: Trainer
    module: LightningModule
    images: ImagesToRead
    needs: dict[str, set[str]]
    epoch: int
    kept: dict[str, Any] = field(default_factory=dict)
    _passes: dict[str, FeaturePass] = field(default_factory=dict, init=False)

    @property
    def datamodule(self) -> Any:
        """The datamodule of the trainer, or None."""
        return datamodule_of(self.trainer)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, or None where nobody says it."""
        if self.images.num_classes is not None:
            return self.images.num_classes
        classes: int | None = getattr(self.datamodule, "num_classes", None)
        return classes

    @property
    def has_tensorboard(self) -> bool:
        """Whether the run writes to TensorBoard, the same on every process."""
        return any(isinstance(logger, TensorBoardLogger) for logger in self.trainer.loggers)

    @property
    def boards(self) -> list[Any]:
        """TensorBoard's writers on the first process; empty on others, and without TensorBoard."""
        if not self.trainer.is_global_zero:
            return []
        return [logger.experiment for logger in self.trainer.loggers if isinstance(logger, TensorBoardLogger)]

    def loaders(self, user: str, *images: str) -> list[Iterable[Any]] | None:
        """Return the loaders of some images, or None where the data has no labels.

        Args:
            user: Who needs them, for the message.
            images: Which images, of ``"bank"`` and ``"query"``, or ``"labelled"``.

        Raises:
            ConfigError: If neither the user nor a datamodule gives them.
        """
        if images == ("labelled",):
            if not hasattr(self.datamodule, "labelled_dataloader"):
                raise ConfigError(f"{user} needs a datamodule with labelled_dataloader()")
            loader = self._keep("labelled_dataloader")
            return None if loader is None else [loader]
        given = {"bank": self.images.bank_loader, "query": self.images.query_loader}
        if any(loader is not None for loader in given.values()):
            found = [loader for name in images if (loader := given[name]) is not None]
        elif hasattr(self.datamodule, "knn_dataloaders"):
            loaders = self._keep("knn_dataloaders")
            if loaders is None:
                return None
            found = [loaders[name == "query"] for name in images]
        else:
            found = []
        if len(found) < len(images):
            names = " and ".join(f"{name}_loader" for name in images)
            raise ConfigError(f"{user} needs {names}, or a datamodule with knn_dataloaders()")
        return found

    def features(self, images: Literal["bank", "query", "labelled"], user: str) -> FeaturePass | None:
        """Return the features of some images, or None where the data has no labels.

        Args:
            images: Which images.
            user: Who needs them, for the message.

        Raises:
            ConfigError: As :meth:`loaders`.
        """
        if images not in self.needs:
            raise ConfigError(f"{user} reads the {images} images, and its needs() does not say so")
        if images not in self._passes:
            loaders = self.loaders(user, images)
            if loaders is None:
                return None
            kinds = set(self.needs[images])
            options: dict[str, Any] = {}
            if images == "bank":
                kinds |= self.needs.get("sample", set())
                options["dtype"] = _DTYPES[self.images.bank_dtype]
                if self.images.bank_device == "cpu":
                    options["device"] = torch.device("cpu")
            self._passes[images] = feature_pass(self.trainer, self.module, loaders[0], kinds, **options)
        return self._passes[images]

    def sample(self, limit: int, kinds: set[str], user: str) -> FeaturePass:
        """Return features of about ``limit`` training images, or of all where another readout reads all.

        Args:
            limit: How many images are enough.
            kinds: Kinds of features, of ``"h"``, ``"z"`` and ``"thumbnail"``.
            user: Who needs them, for the message.

        Raises:
            ConfigError: If neither the user nor a datamodule gives a loader.
        """
        if "bank" in self.needs and kinds <= self.needs["bank"] | self.needs.get("sample", set()):
            found = self.features("bank", user)
            if found is not None:
                return found
        return feature_pass(self.trainer, self.module, self._sample_loader(user), kinds, limit=limit)

    def view_batches(self, count: int) -> Iterable[Any]:
        """Return batches of views: held-out images, or training images where none is held out.

        Args:
            count: How many images are enough; there may be more.
        """
        if self.images.view_loader is not None:
            return first_batches(self.images.view_loader, count)
        for name in ("val_dataloader", "train_dataloader"):
            if self.datamodule is not None and is_overridden(name, self.datamodule):
                loader: Any = self._keep(name)
                if isinstance(loader, list | tuple):
                    loader = loader[0] if loader else None
                if loader is not None:
                    return first_batches(loader, count)
        return []

    def _keep(self, name: str) -> Any:
        """Ask the datamodule for loaders, once in a run."""
        if name not in self.kept:
            self.kept[name] = getattr(self.datamodule, name)()
        return self.kept[name]

    def _sample_loader(self, user: str) -> Iterable[Any]:
        if self.images.bank_loader is None and hasattr(self.datamodule, "health_dataloader"):
            return self._keep("health_dataloader")  # type: ignore[no-any-return]
        loaders = self.loaders(user, "bank")
        if loaders is None:
            raise ConfigError(f"{user} needs a datamodule with health_dataloader() where there are no labels")
        return loaders[0]
