"""Signs of a good or a collapsed representation, without labels and without training."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn.functional import normalize

from mmcl_lightning._options import check_whole
from mmcl_lightning._text import counted
from mmcl_lightning.batches import views_of
from mmcl_lightning.distributed import gather_objects, layout
from mmcl_lightning.errors import ShapeError
from mmcl_lightning.features import encode, evaluating
from mmcl_lightning.metrics import EffectiveRank, alignment, feature_std, rankme, uniformity
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading
from mmcl_lightning.views import concatenate

__all__ = ["Health"]

# A collapsed representation is far below these, a healthy one far above: RankMe is 1 for equal rows, and the
# standard deviation of unit rows, times sqrt(D), is 0 for equal ones and about 1 for spread ones.
_RANK_FLOOR = 1.5
_STD_FLOOR = 0.02


class Health(Readout):
    """Effective rank, spread, uniformity and alignment of the features.

    RankMe, standard deviation and uniformity are of training images without augmentation, evenly spaced over
    the data set: those of the bank where another readout reads it, so that no image is run twice. Without
    one, those of the datamodule's ``health_dataloader()``. Labels are not used. Alignment needs two augmented
    views of each image; it is of the first batches of held-out images or, where nothing is held out, of
    training images. With several processes the numbers are of the images of all.

    Args:
        images: Images for rank, spread and uniformity. RankMe is at most the smaller of images and features
            and grows with both: compare values of equal number, and take more images than features.
        view_images: Images for alignment; 0 leaves it out. Each process averages over its own, and the mean
            over all is logged.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        Training images, and views. Where the module has a ``projection_head``, alignment and uniformity are
        those of z, else of h.

    Writes:
        ``health/rankme_h``, ``health/rankme_z``, ``health/std_h``, ``health/std_z`` (mean over dimensions of
        the standard deviation of unit rows), ``health/uniformity``, ``health/alignment``; histograms
        ``health/std_per_dimension_h`` and ``_z``; the text ``health/protocol``. A warning, once, when
        rank or spread has fallen to almost nothing.

    Raises:
        ConfigError: If an option is out of range.
    """

    def __init__(
        self, images: int = 8192, view_images: int = 1024, every_n_epochs: int | None = None
    ) -> None:
        super().__init__(every_n_epochs)
        check_whole(2, images=images)
        check_whole(0, view_images=view_images)
        self.images = images
        self.view_images = view_images

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return h, and z where the module has a projection head, of training images."""
        return {"sample": kinds_of(module)}

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return all values."""
        kinds = sorted(kinds_of(reading.module))
        found = reading.sample(self.images, set(kinds), "health")
        values: dict[str, float] = {}
        texts = []
        for kind in kinds:
            rows = found.evenly_spaced(found.features[kind], self.images, reading.module.device).float()
            if rows.device.type == "mps":  # which has no float64
                rows = rows.cpu()
            rank, std = rankme(rows), feature_std(rows).item()
            values |= {f"health/rankme_{kind}": rank.value, f"health/std_{kind}": std}
            _write_histogram(reading, kind, rows)
            self._warn_of_collapse(reading, kind, rank, std * math.sqrt(rows.shape[1]))
            texts.append(
                f"RankMe of {kind}: {len(rows)} images, {rows.shape[1]} features, at most {rank.ceiling}"
            )
        values["health/uniformity"] = uniformity(rows).item()  # the last kind: z, where there is one
        texts.append(f"uniformity and alignment: {kind}")
        aligned, count = self._alignment(reading, kind) if self.view_images else (0.0, 0)
        if count:
            values["health/alignment"] = aligned
            texts.append(f"alignment: {count} images")
        self.protocol_texts["health"] = "; ".join(texts)
        self.write_once(reading, "health/protocol", self.protocol_texts["health"])
        return values

    def _alignment(self, reading: Reading, kind: str) -> tuple[float, int]:
        """Return the mean over the views of all processes, and the number of images."""
        total, count, share = 0.0, 0, -(-self.view_images // layout().world_size)
        with evaluating(reading.module):
            for batch in reading.view_batches(share):
                views = _two_views(batch)
                if views is None or count >= share:
                    break
                rows = encode(reading.trainer, reading.module, [concatenate(*views)], [kind])[kind]
                z0, z1 = rows.float().chunk(2)
                total += alignment(z0, z1).item() * len(z0)
                count += len(z0)
        found = gather_objects((total, count))
        images = sum(count for _, count in found)
        if images == 0:
            self.inform_once("the loaders give no two views of an image, so there is no health/alignment")
        return sum(total for total, _ in found) / max(1, images), images

    def _warn_of_collapse(self, reading: Reading, kind: str, rank: EffectiveRank, spread: float) -> None:
        """Say once that the features have collapsed; those of an untrained network may look so."""
        collapsed = spread < _STD_FLOOR or (rank.value < _RANK_FLOOR and rank.ceiling > 2)
        step = reading.trainer.global_step
        if collapsed and step > 0 and kind not in self._said:
            self._said.add(kind)
            rank_zero_warn(
                f"{kind} has collapsed after {counted(step, 'step')}: effective rank {rank.value:.3g} of "
                f"at most {rank.ceiling}, standard deviation {spread:.2g} of that of spread features. To the "
                "network all images look nearly alike: check the learning rate, and that the views differ"
            )


def kinds_of(module: LightningModule) -> set[str]:
    """Return the features that a module has: h, and z with a projection head.

    Args:
        module: Any module.
    """
    return {"h"} if getattr(module, "projection_head", None) is None else {"h", "z"}


def _two_views(batch: Any) -> list[Tensor] | None:
    try:
        return views_of(batch)
    except ShapeError:
        return None


def _write_histogram(reading: Reading, kind: str, rows: Tensor) -> None:
    """Write the standard deviation of every dimension: dimensions that died are a peak at zero."""
    for board in reading.boards:
        spread = normalize(rows, dim=1).std(dim=0)
        board.add_histogram(f"health/std_per_dimension_{kind}", spread, reading.trainer.global_step)
