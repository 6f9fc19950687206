"""The callback that shows which negatives count: the support vectors of held-out images, as pictures."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image
from torch import Tensor

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.callbacks.features import evaluating
from mmcl_lightning.callbacks.findings import SupportVectors
from mmcl_lightning.callbacks.held_out import HeldOutImages, held_out_loader, take_images
from mmcl_lightning.callbacks.svm import mmcl_criterion
from mmcl_lightning.losses import MMCLLoss

__all__ = ["SupportVectorGrid"]

_CHUNK = 128  # images that pass the network at a time


class SupportVectorGrid(Callback):
    """Draw the support vectors of a few held-out images, every few epochs, always the same images.

    Each image's SVM is solved with the options of the module's loss, against the other images of the choice,
    on projections in evaluation mode. One row per query: the query, its strongest support vectors with their
    alpha, then negatives with alpha = 0, the nearest and random ones. With labels, support vectors of the
    query's own class have a frame of another colour; those at the upper bound C have a thick one.

    Args:
        every_n_epochs: Epochs between pictures. The last epoch always has one.
        images: Number of held-out images, at least 2; each is an anchor, and a negative of the others.
        queries: Number of rows, of as many classes as there are.
        support_vectors: Support vectors in a row, at least 1.
        others: Negatives with alpha = 0 in a row, as many nearest ones as random ones.
        views: ``"augmented"``: two views of each image under the training augmentation, from the
            datamodule's ``val_dataloader()``, which is the problem that training solves. ``"clean"``: each
            image once, as the k-NN readout sees it. What is missing is replaced by the other.
        loader: Batches ``(views, labels)`` or ``(image, label)`` of held-out images; ``None`` asks the
            datamodule.
        seed: The choice of images is a function of it.

    Reads:
        A module whose ``criterion`` is an MMCLLoss; its forward, and its ``projection_head`` where it has
        one. Modes, batch-norm statistics, random states and the loss itself stay as they are. Every process
        computes the same from the same images, without waiting for others; the first one writes.

    Writes:
        ``svm/support_vectors`` (image). Nothing without a TensorBoard logger.

    Raises:
        ConfigError: If an option is out of range, the module has another criterion, or there are no images.
    """

    def __init__(
        self,
        every_n_epochs: int = 5,
        images: int = 128,
        queries: int = 8,
        support_vectors: int = 6,
        others: int = 2,
        views: Literal["augmented", "clean"] = "augmented",
        loader: Iterable[Any] | None = None,
        seed: int = 0,
    ) -> None:
        check_whole(1, every_n_epochs=every_n_epochs, queries=queries, support_vectors=support_vectors)
        check_whole(2, images=images)
        check_whole(0, others=others, seed=seed)
        check_choice("views", views, ("augmented", "clean"))
        self.every_n_epochs = every_n_epochs
        self.images = images
        self.queries = queries
        self.support_vectors = support_vectors
        self.others = others
        self.views = views
        self.loader = loader
        self.seed = seed
        self._chosen: HeldOutImages | None = None
        self._draws = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the images, so that what cannot work fails now and not after some epochs."""
        self._draws = isinstance(getattr(pl_module, "criterion", None), MMCLLoss)
        if not self._draws:  # a recipe with its loss exchanged
            rank_zero_info("the loss has no support vectors, so there are no pictures of them")
        elif _boards(trainer):
            self._load(getattr(trainer, "datamodule", None), pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw where it is due."""
        epoch, boards = trainer.current_epoch + 1, _boards(trainer)
        last = trainer.should_stop or epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if self._draws and boards and (epoch % self.every_n_epochs == 0 or last):
            found = self.look(trainer, pl_module)
            if trainer.is_global_zero:
                picture = np.asarray(self.draw(found, f"after {epoch} epoch{'s' * (epoch > 1)}"))
                for board in boards:
                    board.experiment.add_image(
                        "svm/support_vectors", picture, trainer.global_step, dataformats="HWC"
                    )

    def look(self, trainer: Trainer, pl_module: LightningModule, datamodule: Any = None) -> SupportVectors:
        """Solve the SVMs of the chosen images as the module is now.

        Args:
            trainer: Says the precision.
            pl_module: The module, on its device.
            datamodule: Where the images come from; ``None`` for the trainer's.
        """
        criterion = mmcl_criterion(pl_module, "a picture of support vectors")
        images = self._load(datamodule or getattr(trainer, "datamodule", None), pl_module)
        z = _project(trainer, pl_module, torch.cat(images.views)).chunk(len(images.views))
        inspected = copy.copy(criterion)  # the same options, while the criterion keeps what training found
        inspected._announced = True
        inspected.gather = inspected.symmetric = False
        inspected.negatives = criterion.negatives if len(z) == 2 else "one"  # one view is no two candidates
        with torch.no_grad():
            inspected(z[0], z[-1])
        (dual,) = inspected.last_duals
        return SupportVectors(images, inspected, dual)

    def draw(self, found: SupportVectors, note: str = "") -> Image.Image:
        """Draw what :meth:`look` found.

        Args:
            found: What it found.
            note: Said below the title.
        """
        return found.draw(self.queries, self.support_vectors, self.others, self.seed, note)

    def _load(self, datamodule: Any, pl_module: LightningModule) -> HeldOutImages:
        if self._chosen is None:
            with evaluating(pl_module):  # loading may draw random numbers
                torch.manual_seed(self.seed)
                loader = held_out_loader(datamodule, self.views) if self.loader is None else self.loader
                self._chosen = take_images(loader, self.images, self.seed, datamodule)
        return self._chosen


def _boards(trainer: Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def _project(trainer: Trainer, module: LightningModule, images: Tensor) -> Tensor:
    """Return the projections ``(N, D)`` of images in evaluation mode, in float32."""
    head = getattr(module, "projection_head", None)
    parts = []
    with evaluating(module), trainer.precision_plugin.forward_context():
        for chunk in torch.split(images, _CHUNK):
            h = module(trainer.precision_plugin.convert_input(chunk).to(module.device))
            parts.append((h if head is None else head(h)).float())
    return torch.cat(parts)
