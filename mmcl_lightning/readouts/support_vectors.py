"""Which negatives count: the support vectors of held-out images, as pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning._text import counted
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.negatives import HeldOutImages, Selection, choose_images, find_support_vectors
from mmcl_lightning.negatives.held_out import NoPicturesError
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["SupportVectorGrid"]


class SupportVectorGrid(Readout):
    """Draw the support vectors of a few held-out images, always the same ones.

    Each image's SVM is solved with the options of the module's loss, against the other images of the choice,
    on projections in evaluation mode. One row per query: the query, its strongest support vectors with their
    alpha, then negatives with alpha = 0, the nearest and random ones. With labels, support vectors of the
    query's own class have a frame of another colour; those at the upper bound C have a thick one.

    Args:
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
        every_n_epochs: As in :class:`Readout`. Neither the start nor the first epoch has a picture.

    Reads:
        A module whose ``criterion`` is an MMCLLoss; its forward, and its ``projection_head`` where it has
        one. Modes, batch-norm statistics, random states and the loss itself stay as they are. Every process
        computes the same from the same images, without waiting for others; the first one writes.

    Writes:
        ``svm/support_vectors`` (image). Nothing without a TensorBoard logger.

    Raises:
        ConfigError: If an option is out of range, the module has another criterion, or there are no images.
    """

    at_start = in_validation = False

    def __init__(
        self,
        images: int = 128,
        queries: int = 8,
        support_vectors: int = 6,
        others: int = 2,
        views: Literal["augmented", "clean"] = "augmented",
        loader: Iterable[Any] | None = None,
        seed: int = 0,
        every_n_epochs: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs)
        check_whole(2, images=images)
        check_choice("views", views, ("augmented", "clean"))
        self.images = images
        self.views = views
        self.loader = loader
        self.selection = Selection(queries, support_vectors, others, seed)
        self._draws = True

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self._chosen: HeldOutImages | None = None

    def is_due(self, epoch: int, last: bool, period: int) -> bool:
        """Whether it draws after an epoch."""
        return self._draws and (epoch % period == 0 or last)

    def start(self, reading: Reading) -> None:
        """Load the images, so that what cannot work fails now and not after some epochs."""
        self._draws = isinstance(getattr(reading.module, "criterion", None), MMCLLoss)
        if not self._draws:  # a recipe with its loss exchanged
            rank_zero_info("the loss has no support vectors, so there are no pictures of them")
        elif reading.has_tensorboard:
            seed = self.selection.seed
            try:
                self._chosen = choose_images(
                    reading.module, reading.datamodule, self.images, self.views, seed, self.loader
                )
            except NoPicturesError as error:
                self.inform_once(f"{error}, and the negatives that count are not drawn")

    def compute(self, reading: Reading) -> dict[str, float]:
        """Draw the picture; there are no values."""
        if self._chosen is not None:
            found = find_support_vectors(reading.trainer, reading.module, self._chosen)
            note = f"after {counted(reading.epoch, 'epoch')}"
            for board in reading.boards:
                picture = np.asarray(found.draw(self.selection, note))
                step = reading.trainer.global_step
                board.add_image("svm/support_vectors", picture, step, dataformats="HWC")
        return {}
