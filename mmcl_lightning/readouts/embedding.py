"""Features for TensorBoard's projector."""

from __future__ import annotations

from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.health import kinds_of
from mmcl_lightning.readouts.reading import Reading

__all__ = ["Embedding"]


class Embedding(Readout):
    """Write h and z of some training images to TensorBoard's projector, with labels and thumbnails.

    Args:
        images: How many images, at least 2, evenly spaced over the data set.
        every_n_epochs: Epochs between two embeddings; ``None`` for one, at the end of the training.

    Reads:
        Training images, and the datamodule's ``class_names`` where it has them.

    Writes:
        One embedding for each of h and z. Nothing without TensorBoard, which is said once.

    Raises:
        ConfigError: If an option is out of range.
    """

    at_start = in_validation = False

    def __init__(self, images: int = 1024, every_n_epochs: int | None = None) -> None:
        super().__init__(every_n_epochs)
        check_whole(2, images=images)
        self.images = images

    def is_due(self, epoch: int, last: bool, period: int) -> bool:
        """Whether it writes after an epoch."""
        return last or (self.every_n_epochs is not None and epoch % self.every_n_epochs == 0)

    def compute(self, reading: Reading) -> dict[str, float]:
        """Write the embedding; every process brings its part."""
        if not reading.has_tensorboard:
            self.inform_once("the embedding needs a TensorBoardLogger")
            return {}
        kinds = kinds_of(reading.module)
        found = reading.sample(self.images, kinds | {"thumbnail"}, "the embedding")
        device = reading.module.device
        rows = {k: found.evenly_spaced(v, self.images, device).cpu() for k, v in found.features.items()}
        labels = found.evenly_spaced(found.labels, self.images, device).tolist()
        names = getattr(reading.datamodule, "class_names", None)
        words = ["unlabelled" if i < 0 else str(i if names is None else names[i]) for i in labels]
        if (thumbnails := rows.get("thumbnail")) is None:
            self.inform_once("there are no pictures of the items, and the embedding has none")
        pictures = None if thumbnails is None else _in_unit_range(thumbnails)
        for board in reading.boards:
            for kind in sorted(kinds):
                board.add_embedding(rows[kind], words, pictures, reading.trainer.global_step, kind)
        return {}


def _in_unit_range(images: Tensor) -> Tensor:
    """Undo a normalisation as far as the eye needs it, channel by channel; one or three channels remain."""
    images = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
    low, high = images.amin(dim=(0, 2, 3), keepdim=True), images.amax(dim=(0, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-12)
