"""Health panel: signs of a good or a collapsed representation, without labels and without training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.functional import normalize

from mmcl_lightning._options import check_whole
from mmcl_lightning.batches import views_of
from mmcl_lightning.callbacks.features import FeaturePass, encode, evaluating, feature_pass
from mmcl_lightning.callbacks.readout import FeatureReadout, datamodule_of, is_last_epoch
from mmcl_lightning.distributed import gather_objects, layout
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.metrics import EffectiveRank, alignment, feature_std, rankme, uniformity

__all__ = ["HealthPanel"]

# A collapsed representation is far below these, a healthy one far above: RankMe is 1 for equal rows, and the
# standard deviation of unit rows, times sqrt(D), is 0 for equal ones and about 1 for spread ones.
_RANK_FLOOR = 1.5
_STD_FLOOR = 0.02


class HealthPanel(FeatureReadout):
    """Log effective rank, spread, uniformity and alignment of the features, every few epochs.

    RankMe, standard deviation and uniformity are of training images without augmentation, evenly spaced over
    the data set: those of an :class:`OnlineKNN` whose turn it is as well, so that no image is run twice.
    Without it, those of the datamodule's ``health_dataloader()`` or of the bank of its ``knn_dataloaders()``.
    Labels are not used. Alignment needs two augmented views of each image; it is of the first batches of the
    datamodule's validation loader or, where nothing is held out, of its training loader. All of it in
    evaluation mode. With several processes the numbers are of the images of all.

    Args:
        images: Images for rank, spread and uniformity. RankMe is at most the smaller of images and features
            and grows with both: compare values of equal number, and take more images than features.
        view_images: Images for alignment; 0 leaves it out.
        every_n_epochs: Epochs between readouts. The first and the last epoch always have one.
        at_start: Read out before the first step too.
        loader: Batches ``(image, ...)`` or dicts with ``image`` for all but alignment; ``None`` as above.
        view_loader: Batches ``(views, ...)``, views a list of two ``(B, 3, H, W)``, for alignment; each
            process averages over its own, and the mean over all is logged. ``None`` as above.
        embedding: Images to write to TensorBoard's projector at the end of the training, h and z with labels
            and thumbnails; 0 for none.
        embedding_every_n_epochs: Write them every so many epochs as well.

    Reads:
        Any LightningModule whose ``forward`` maps images to ``(B, F)``, and its ``projection_head`` if it has
        one: then alignment and uniformity are those of z, else of h.

    Writes:
        ``health/rankme_h``, ``health/rankme_z``, ``health/std_h``, ``health/std_z`` (mean over dimensions of
        the standard deviation of unit rows), ``health/uniformity``, ``health/alignment``; histograms
        ``health/std_per_dimension_h`` and ``_z``; the text ``health/protocol``. A warning, once, when
        rank or spread has fallen to almost nothing.

    Raises:
        ConfigError: If an option is out of range.
    """

    def __init__(
        self,
        images: int = 8192,
        view_images: int = 1024,
        every_n_epochs: int = 1,
        at_start: bool = True,
        loader: Iterable[Any] | None = None,
        view_loader: Iterable[Any] | None = None,
        embedding: int = 0,
        embedding_every_n_epochs: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        check_whole(2, images=images)
        check_whole(0, view_images=view_images, embedding=embedding)
        if embedding_every_n_epochs is not None:
            check_whole(1, embedding_every_n_epochs=embedding_every_n_epochs)
        self.images = images
        self.view_images = view_images
        self.loader = loader
        self.view_loader = view_loader
        self.embedding = embedding
        self.embedding_every_n_epochs = embedding_every_n_epochs

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.protocol_texts: dict[str, str] = {}

    def kinds(self, module: LightningModule) -> set[str]:
        """Return h, and z where the module has a projection head."""
        return {"h"} if getattr(module, "projection_head", None) is None else {"h", "z"}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read out where it is due, and write the embedding where that is due."""
        super().on_train_epoch_end(trainer, pl_module)
        every = self.embedding_every_n_epochs
        due = is_last_epoch(trainer) or (every is not None and (trainer.current_epoch + 1) % every == 0)
        if self.embedding and due:
            self._write_embedding(trainer, pl_module)

    def readout(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Return all values of the panel."""
        found = self._features(trainer, module)
        values: dict[str, float] = {}
        texts = []
        for kind in sorted(self.kinds(module)):
            rows = found.evenly_spaced(found.features[kind], self.images, module.device).float()
            if rows.device.type == "mps":  # which has no float64
                rows = rows.cpu()
            rank, std = rankme(rows), feature_std(rows).item()
            values |= {f"health/rankme_{kind}": rank.value, f"health/std_{kind}": std}
            _write_histogram(trainer, kind, rows)
            self._watch(trainer, kind, rank, std * math.sqrt(rows.shape[1]))
            texts.append(
                f"RankMe of {kind}: {len(rows)} images, {rows.shape[1]} features, at most {rank.ceiling}"
            )
        values["health/uniformity"] = uniformity(rows).item()  # the last kind: z, where there is one
        texts.append(f"uniformity and alignment: {kind}")
        aligned, count = self._alignment(trainer, module, kind) if self.view_images else (0.0, 0)
        if count:
            values["health/alignment"] = aligned
            texts.append(f"alignment: {count} images")
        self.protocol_texts["health"] = "; ".join(texts)
        self._write_once(trainer, "health/protocol", self.protocol_texts["health"])
        return values

    def _features(self, trainer: Trainer, module: LightningModule) -> FeaturePass:
        """Return features from the pass of another readout, or from one of its own."""
        for readout in self._due(trainer):
            if self.loader is None or self.loader is readout.bank_source(trainer):
                found = readout.bank(trainer, module)
                if found is not None:
                    return found
        return feature_pass(trainer, module, self._loader(trainer), self.kinds(module), limit=self.images)

    def _loader(self, trainer: Trainer) -> Iterable[Any]:
        if self.loader is not None:
            return self.loader
        for readout in self._readouts(trainer):
            if (source := readout.bank_source(trainer)) is not None:
                return source
        datamodule = datamodule_of(trainer)
        if hasattr(datamodule, "health_dataloader"):
            return datamodule.health_dataloader()  # type: ignore[no-any-return]
        loaders = datamodule.knn_dataloaders() if hasattr(datamodule, "knn_dataloaders") else None
        if loaders is None:
            raise ConfigError("HealthPanel needs a loader, or a datamodule with health_dataloader()")
        return loaders[0]  # type: ignore[no-any-return]

    def _alignment(self, trainer: Trainer, module: LightningModule, kind: str) -> tuple[float, int]:
        """Return the mean over the views of all processes, and the number of images."""
        total, count, share = 0.0, 0, -(-self.view_images // layout().world_size)
        with evaluating(module):
            for batch in self._view_batches(trainer):
                views = _two_views(batch)
                if views is None or count >= share:
                    break
                z0, z1 = encode(trainer, module, torch.cat(views), [kind])[kind].float().chunk(2)
                total += alignment(z0, z1).item() * len(z0)
                count += len(z0)
        found = gather_objects((total, count))
        images = sum(count for _, count in found)
        if images == 0:
            self._inform_once("the loaders give no two views of an image, so there is no health/alignment")
        return sum(total for total, _ in found) / max(1, images), images

    def _view_batches(self, trainer: Trainer) -> Iterable[Any]:
        """Return batches of views: held-out images, or training images where none is held out."""
        if self.view_loader is not None:
            return self.view_loader
        datamodule = datamodule_of(trainer)
        for name in ("val_dataloader", "train_dataloader"):
            if datamodule is not None and is_overridden(name, datamodule):
                loader: Any = getattr(datamodule, name)()
                if isinstance(loader, list | tuple):
                    loader = loader[0] if loader else None
                if loader is not None:
                    return loader  # type: ignore[no-any-return]
        return []

    def _watch(self, trainer: Trainer, kind: str, rank: EffectiveRank, spread: float) -> None:
        """Say once that the features have collapsed; those of an untrained network may look so."""
        collapsed = spread < _STD_FLOOR or (rank.value < _RANK_FLOOR and rank.ceiling > 2)
        if collapsed and trainer.global_step > 0 and kind not in self._messages_given:
            self._messages_given.add(kind)
            rank_zero_warn(
                f"{kind} has collapsed after {trainer.global_step} steps: effective rank {rank.value:.3g} of "
                f"at most {rank.ceiling}, standard deviation {spread:.2g} of that of spread features. To the "
                "network all images look nearly alike: check the learning rate, and that the views differ"
            )

    def _write_embedding(self, trainer: Trainer, module: LightningModule) -> None:
        """Write features, labels and thumbnails to TensorBoard's projector; every process brings its part."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not loggers:
            self._inform_once("health: the embedding needs a TensorBoardLogger")
            return
        kinds = self.kinds(module)
        found = feature_pass(
            trainer, module, self._loader(trainer), kinds | {"thumbnail"}, limit=self.embedding
        )
        device = module.device
        rows = {k: found.evenly_spaced(v, self.embedding, device).cpu() for k, v in found.features.items()}
        labels = found.evenly_spaced(found.labels, self.embedding, device).tolist()
        names = getattr(datamodule_of(trainer), "class_names", None)
        words = ["unlabelled" if i < 0 else str(i if names is None else names[i]) for i in labels]
        if trainer.is_global_zero:
            for logger in loggers:
                for kind in sorted(kinds):
                    logger.experiment.add_embedding(
                        rows[kind], words, _in_unit_range(rows["thumbnail"]), trainer.global_step, kind
                    )


def _two_views(batch: Any) -> list[Tensor] | None:
    try:
        return views_of(batch)
    except ShapeError:
        return None


def _write_histogram(trainer: Trainer, kind: str, rows: Tensor) -> None:
    """Write the standard deviation of every dimension: dimensions that died are a peak at zero."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            spread = normalize(rows, dim=1).std(dim=0)
            logger.experiment.add_histogram(f"health/std_per_dimension_{kind}", spread, trainer.global_step)


def _in_unit_range(images: Tensor) -> Tensor:
    """Undo a normalisation as far as the eye needs it, channel by channel; one or three channels remain."""
    images = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
    low, high = images.amin(dim=(0, 2, 3), keepdim=True), images.amax(dim=(0, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-12)
