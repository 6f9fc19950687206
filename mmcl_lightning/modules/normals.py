"""Judge a pretrained backbone by the surface normals that a decoder reads from its frozen features."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.distributed import gather_objects
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.metrics import AngularErrors, angular_error, fit_codebook, mean_normal, nearest_code
from mmcl_lightning.models import PyramidPooling, dilate, explained, feature_dim, feature_map
from mmcl_lightning.modules.codebook import read_codebook
from mmcl_lightning.modules.frozen import FrozenBackbone
from mmcl_lightning.modules.recording import record_options
from mmcl_lightning.modules.resumable import restoring
from mmcl_lightning.optim import WarmupPolynomial, parameter_groups

__all__ = ["SurfaceNormals"]

_MOMENTUM = 0.9
_SHARES = ("within_11.25", "within_22.5", "within_30")


class SurfaceNormals(FrozenBackbone):
    """Train a decoder on the frozen features of every place to tell the surface normals of an image.

    A ResNet, dilated to a stride of 8 pixels, keeps all its weights and its batch norm, which is checked as
    in :class:`LinearEvaluation`. The decoder classifies each place into the nearest normal of a codebook, by
    SGD with momentum 0.9 and a learning rate that falls by the power 0.9 to 0 at the last step; batch norm
    and biases have no weight decay. To judge, its scores are resized to the size of the file, and the normal
    of a pixel is the mean of the codes, weighted by their probabilities. Angles count over all valid pixels
    of all images together. A batch is ``(images, normals)``, as
    :class:`~mmcl_lightning.datamodules.NormalsDataModule` gives it.

    Source: Ericsson et al., CVPR 2021, arXiv:2011.13377. Its ground truth has a mask of its own, so that
    numbers on files of normals differ a little.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; ``"pretrained"``; or ``"random"`` for a random start, the floor.
        codes: Normals K of the codebook.
        codebook: A file ``.npy`` of K unit normals, ``(K, 3)``, in the order of the channels of the data's
            files; None for k-means of the training normals.
        hidden: Channels of the decoder.
        lr: Learning rate of the first step.
        weight_decay: Weight decay of the decoder's convolutions.
        backbone: Name of a torchvision ResNet, or a mapping of its name and options; None for what the
            checkpoint names.
        cifar_stem: Stem for small images; None for what the checkpoint has.
        preprocessing: As in :class:`ClassifierModule`.

    Logs:
        ``train/loss``, ``train/lr`` each step; ``normals/median_degrees``, ``normals/mean_degrees``, and the
        shares ``normals/within_11.25``, ``normals/within_22.5`` and ``normals/within_30`` of the pixels whose
        angle is less, of test images; the text ``normals/protocol``.

    Raises:
        ConfigError: If an option is out of range, the backbone is no ResNet, or the codebook no such file.
        DataError: While it runs, if no pixel has a valid normal.
        NumericalError: At the end of ``fit``, if the backbone is not what it was.
    """

    tag = "normals"
    codebook: Tensor

    def __init__(
        self,
        checkpoint: str | None = None,
        codes: int = 40,
        codebook: str | None = None,
        hidden: int = 512,
        lr: float = 0.02,
        weight_decay: float = 1e-4,
        backbone: str | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
    ) -> None:
        super().__init__()
        record_options(self)
        check_whole(2, codes=codes)
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            check_number(name, value, ">= 0")
        self._lr, self.weight_decay = float(lr), float(weight_decay)
        known = torch.zeros(codes, 3)  # until the training normals are there
        if codebook is not None and not restoring.get():
            known = read_codebook(codebook, codes)
        self.backbone = self.judged_backbone(checkpoint, backbone, cifar_stem, preprocessing)
        dilate(self.backbone)
        self.freeze_backbone()
        self.decoder = PyramidPooling(feature_dim(self.backbone), codes, hidden)
        self.register_buffer("codebook", known)
        self.result: tuple[int, dict[str, float]] | None = None  # the step of the last validation, its values
        self._errors = AngularErrors()
        self._valid = False  # whether any pixel that was trained on had a normal
        self.train()

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores ``(B, K, H/8, W/8)`` of images ``(B, 3, H, W)``."""
        with torch.no_grad(), explained(self.backbone, images):
            features = feature_map(self.backbone, images)
        scores: Tensor = self.decoder(features)
        return scores

    def forward(self, x: Tensor) -> Tensor:
        """Return unit normals ``(B, 3, H, W)`` of images ``(B, 3, H, W)``."""
        return self._normals(x, x.shape[-2:])

    def setup(self, stage: str) -> None:
        """Make images as those of the weights were; find the codebook before a fit."""
        super().setup(stage)
        if stage != "fit" or self.codebook.any():
            return
        data: Any = datamodule_of(self.trainer)
        if not hasattr(data, "training_normals"):
            raise ConfigError(
                "the data module has no training_normals() to make a codebook of: use NormalsDataModule, or "
                "give --model.codebook"
            )
        rank_zero_info(f"finding {len(self.codebook)} codes among the training normals")
        found = fit_codebook(data.training_normals(), len(self.codebook))
        self.codebook.copy_(self.trainer.strategy.broadcast(found))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of the places that have a normal."""
        images, normals = _images_and_normals(batch)
        codes = nearest_code(normals, self.codebook)
        self._valid = self._valid or bool((codes >= 0).any())
        scores = self.scores(images).float()
        if scores.shape[-2:] != codes.shape[-2:]:
            raise ShapeError(
                f"expected normals of {scores.shape[-2]} x {scores.shape[-1]} places, an eighth of the "
                f"images, got {codes.shape[-2]} x {codes.shape[-1]}"
            )
        total = F.cross_entropy(scores, codes, ignore_index=-1, reduction="sum")
        loss = total / (codes >= 0).sum().clamp_min(1)
        self._log_step(loss, len(images))
        return loss

    def on_train_epoch_end(self) -> None:
        """Refuse data from which nothing can be learnt."""
        if not any(gather_objects(self._valid)):
            raise DataError("no pixel of the training images has a valid normal")

    def on_validation_epoch_start(self) -> None:
        """Count from zero."""
        if not self.codebook.any():
            raise ConfigError("there is no codebook yet: a fit makes it; give --ckpt_path of one")
        self._errors = AngularErrors()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Count the angles of all pixels that have a normal."""
        images, normals = _images_and_normals(batch)
        found, valid = self._normals(images, normals.shape[-2:]), normals.any(dim=1)
        self._errors.update(
            angular_error(found.movedim(1, -1)[valid], normals.to(found).movedim(1, -1)[valid])
        )

    def on_validation_epoch_end(self) -> None:
        """Log the angles over the pixels of all processes."""
        errors = AngularErrors()
        for part in gather_objects(self._errors):
            errors.add(part)
        values = errors.compute()
        named = {name: values[name] for name in _SHARES}
        named |= {f"{name}_degrees": values[name] for name in ("median", "mean")}
        if not self.trainer.sanity_checking:
            self.result = self.global_step, named
        self._log_measured(named)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def configure_optimizers(self) -> Any:
        """Build SGD on the decoder, and its schedule per step."""
        steps = self.planned_steps("the schedule of the learning rate")
        groups = parameter_groups({"decoder": self.decoder}, self.weight_decay)
        optimizer = torch.optim.SGD(groups, lr=self.lr or 0.0, momentum=_MOMENTUM)
        scheduler = WarmupPolynomial(optimizer, 0, int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """Remember what the backbone is, and write down what is run."""
        super().on_train_start()
        self._validate_the_last_epoch()
        self.remember_frozen()
        codebook = self.hparams.get("codebook") or "k-means of the training normals"
        text = (
            f"PPM decoder of {self.hparams['hidden']} channels, stride 8, {len(self.codebook)} codes by "
            f"{codebook}, SGD lr={self.lr:g} wd={self.weight_decay:g} polynomial, batch "
            f"{self.global_batch_size()}, {self.trainer.estimated_stepping_batches:.0f} steps, "
            f"{self.mode()}, weights {self.checkpoint}"
        )
        self._describe(text, *_SHARES, "median_degrees", "mean_degrees")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the codebook."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint["state_dict"].get("codebook")
        if saved is None or saved.shape != self.codebook.shape:  # is complained of with the other weights
            return
        if self.codebook.any() and not torch.allclose(self.codebook, saved.to(self.codebook), atol=1e-6):
            raise ConfigError(
                "the checkpoint was trained with another codebook than that of model.codebook: leave it out"
            )
        self.codebook.copy_(saved)

    def summary(self) -> list[str]:
        """Return the result of a run in words."""
        if self.result is None:
            return []
        step, values = self.result
        shares = ", ".join(f"{name[7:]}° {values[name]:.1%}" for name in _SHARES)
        when = "the result" if step == self.trainer.global_step else f"at step {step}, not at the end"
        return [
            f"surface normals: median {values['median_degrees']:.2f}°, mean "
            f"{values['mean_degrees']:.2f}°: {when}",
            f"pixels below:    {shares}",
            f"protocol:        {self.described}",
        ]

    def _normals(self, images: Tensor, size: Any) -> Tensor:
        scores = F.interpolate(self.scores(images).float(), size, mode="bilinear")
        return mean_normal(scores.softmax(dim=1), self.codebook)


def _images_and_normals(batch: Any) -> tuple[Tensor, Tensor]:
    """Return images ``(B, 3, H, W)`` and normals ``(B, 3, H, W)``."""
    parts = list(batch) if isinstance(batch, list | tuple) else []
    shapes = [tuple(part.shape) for part in parts if isinstance(part, Tensor)]
    if len(parts) < 2 or len(shapes) < 2 or [len(s) for s in shapes[:2]] != [4, 4] or shapes[1][1] != 3:
        raise DataError(
            "expected a batch (images, normals), (B, 3, H, W) each, got "
            f"{shapes or type(batch).__name__}: use NormalsDataModule"
        )
    return parts[0], parts[1]
