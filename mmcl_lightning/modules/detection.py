"""Judge a pretrained backbone by the objects that a detector finds which starts from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from mmcl_lightning._lightning import datamodule_of
from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.callbacks.averaging import average_anew
from mmcl_lightning.datamodules.loading import mix_seed
from mmcl_lightning.distributed import gather_objects, mean_over_processes
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.metrics import voc_detection_ap
from mmcl_lightning.models import build_detector, explained
from mmcl_lightning.models.detector import box_predictor
from mmcl_lightning.modules.judging import JudgingModule, check_same_classes
from mmcl_lightning.modules.recording import record_options
from mmcl_lightning.optim import WarmupSteps

__all__ = ["Detection"]

_MOMENTUM = 0.9
_DROPS = (2 / 3, 8 / 9)  # of the steps
_WARMUP_START = 1 / 1000
_NAMES = ("ap", "ap50", "ap75")
#: In what it differs from the detector of published numbers.
_DIFFERS = "smooth L1 (1/9), RoIAlign not aligned, other initialisation, scores and boxes not rounded"

Objects = dict[str, Tensor]


class Detection(JudgingModule):
    """Train a Faster R-CNN from a pretrained ResNet, all of its weights, to find the objects of images.

    torchvision's, with a feature pyramid and detectron2's options; batch norm is a fixed scale and shift
    with the statistics of the checkpoint. SGD with momentum 0.9, a warm-up from a thousandth of the learning
    rate, and a tenth of it after 2/3 and again after 8/9 of the steps. Judged is the average precision of VOC
    2007, :func:`~mmcl_lightning.metrics.voc_detection_ap`. A batch is ``(images, objects)``, as
    :class:`~mmcl_lightning.datamodules.VOCDetectionDataModule` gives it.

    Which proposals a step is trained on is a function of the data module's seed, epoch, batch and process, so
    that a resumed run goes on as if it had never stopped; on a GPU as far as RoIAlign's gradient does, which
    is summed in no fixed order.

    Source: Ericsson et al., CVPR 2021, arXiv:2011.13377, who use detectron2. This is not their number: the
    loss of boxes is a smooth L1 from 1/9 on and not L1, RoIAlign is not shifted by half a pixel, new layers
    start otherwise, and scores and boxes are not rounded to 3 and 1 decimals before they are ranked.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; ``"pretrained"``; or ``"random"`` for a random start, the floor.
        lr: Learning rate after the warm-up.
        weight_decay: Weight decay of all weights, biases included.
        warmup: Steps of the warm-up.
        channels: Channels of the feature pyramid.
        hidden: Width of the head that classifies regions.
        regions: Regions of an image that the head is trained on in each step.
        num_classes: Number of classes without the background; None asks the data module.
        backbone: Name of a torchvision ResNet, or a mapping of its name and options; None for what the
            checkpoint names.
        cifar_stem: Stem for small images; None for what the checkpoint has.
        preprocessing: As in :class:`ClassifierModule`.

    Logs:
        ``train/loss``, its parts, such as ``train/loss_classifier``, and ``train/lr`` each step;
        ``detection/ap``, ``detection/ap50`` and ``detection/ap75`` of test images, in [0, 1]; the text
        ``detection/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the backbone is no ResNet.
        DataError: While it runs, if a label is of no class, or there is nothing to detect.
        NumericalError: If the loss is not finite.
    """

    tag = "detection"

    def __init__(
        self,
        checkpoint: str | None = None,
        lr: float = 0.0025,
        weight_decay: float = 1e-4,
        warmup: int = 100,
        channels: int = 256,
        hidden: int = 1024,
        regions: int = 512,
        num_classes: int | None = None,
        backbone: str | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
    ) -> None:
        super().__init__()
        record_options(self)
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            check_number(name, value, ">= 0")
        check_whole(0, warmup=warmup)
        if num_classes is not None:
            check_whole(1, num_classes=num_classes)
        self._lr, self.weight_decay, self.warmup = float(lr), float(weight_decay), int(warmup)
        network = self.judged_backbone(checkpoint, backbone, cifar_stem, preprocessing)
        self.detector = build_detector(network, channels, hidden, regions)
        self.num_classes = num_classes  # None until the data or a checkpoint tells
        if num_classes is not None:
            self._make_predictor(num_classes)
        self.class_names: list[str] | None = None  # of the data, from label 1 on
        self.result: tuple[int, dict[str, float]] | None = None  # the step of the last validation, its values
        self.by_class: list[float] = []  # AP50 of each class, likewise
        self._found: list[tuple[int, Objects, Objects]] = []  # position, what was found, what there is

    def forward(self, images: list[Tensor]) -> list[Objects]:
        """Return ``boxes`` ``(n, 4)``, ``scores`` ``(n,)`` and ``labels`` ``(n,)`` of images ``(C, H, W)``.

        Boxes are in pixels of the images as they are given. It is for evaluation mode.
        """
        found: list[Objects] = self._run(images, None)
        return found

    def setup(self, stage: str) -> None:
        """Make images as those of the weights were; make the last layers, unless a checkpoint did."""
        super().setup(stage)
        data: Any = datamodule_of(self.trainer)
        names = getattr(data, "class_names", None)
        classes = self.num_classes if names is None else len(names)
        if classes is None:
            raise ConfigError(
                "the data tells of no classes: use VOCDetectionDataModule, or set model.num_classes"
            )
        check_same_classes(self.class_names, names)
        self.class_names = names if names is not None else self.class_names
        if self.num_classes is None:
            self._make_predictor(classes)
            if stage == "fit":
                average_anew(self.trainer, self)
        elif self.num_classes != classes:
            raise ConfigError(f"the detector has {self.num_classes} classes, and the data {classes}")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the sum of the losses of proposals and of regions."""
        images, objects = self._checked(batch)
        with self._seeded(batch_idx):
            losses = self._run(images, objects)
        loss: Tensor = sum(losses.values())
        if not loss.isfinite():
            raise NumericalError(
                f"training step {self.global_step + 1}: the loss is not finite: set --model.lr lower, or "
                "--model.warmup longer"
            )
        values = {f"train/{name}": mean_over_processes(value) for name, value in losses.items()}
        self._log_step(loss, len(images))
        self.log_dict(values, batch_size=len(images))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Start from nothing."""
        self._found = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep what is found, in pixels of the files."""
        images, objects = self._checked(batch, "difficult", "size", "position")
        for image, found, own in zip(images, self(images), objects, strict=True):
            if (position := int(own["position"])) < 0:  # a filling
                continue
            height, width = (own["size"] / own["size"].new_tensor(image.shape[1:])).tolist()
            boxes = found["boxes"].float() * found["boxes"].new_tensor([width, height] * 2)
            known = {name: own[name].cpu() for name in ("boxes", "labels", "difficult")}
            told = {"boxes": boxes, "scores": found["scores"].float(), "labels": found["labels"]}
            self._found.append((position, {name: value.cpu() for name, value in told.items()}, known))

    def on_validation_epoch_end(self) -> None:
        """Log the average precision over the images of all processes, in the order of the data set."""
        everything = [one for part in gather_objects(self._found) for one in part]
        everything.sort(key=lambda one: one[0])
        self._found = []
        if not any(
            len(known["labels"]) for _, _, known in everything
        ):  # a part of the images, as to be tried
            if not self.trainer.sanity_checking:
                rank_zero_warn(f"none of the {len(everything)} images that were judged has an object: no AP")
            return
        classes = range(1, (self.num_classes or 0) + 1)
        result = voc_detection_ap([p for _, p, _ in everything], [o for _, _, o in everything], classes)
        self._say_missing([o for _, _, o in everything])
        named = {"ap": result.ap, "ap50": result.ap50, "ap75": result.ap75}
        if not self.trainer.sanity_checking:
            self.result = self.global_step, named
            self.by_class = result.by_class[:, 0].tolist()
        self._log_measured(named)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def configure_optimizers(self) -> Any:
        """Build SGD on all weights, and its schedule per step."""
        steps = int(self.planned_steps("the schedule of the learning rate"))
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.lr or 0.0, momentum=_MOMENTUM, weight_decay=self.weight_decay
        )
        drops = sorted({round(share * steps) for share in _DROPS})
        scheduler = WarmupSteps(optimizer, self.warmup, drops, warmup_start=_WARMUP_START)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """Write down what is run."""
        super().on_train_start()
        self._validate_the_last_epoch()
        options, steps = self.hparams, self.trainer.estimated_stepping_batches
        stem = ", stem for small images" if options.get("cifar_stem") else ""
        text = (
            f"Faster R-CNN of torchvision, pyramid of {options['channels']} channels, head of "
            f"{options['hidden']}, {options['regions']} regions{stem}, {self.num_classes} classes, SGD "
            f"lr={self.lr:g} wd={self.weight_decay:g} x0.1 at 2/3 and 8/9, warm-up {self.warmup}, batch "
            f"{self.global_batch_size()}, {steps:.0f} steps, all weights trained, batch norm fixed, 11-point "
            f"AP of VOC 2007, not detectron2's: {_DIFFERS}, weights {self.checkpoint}"
        )
        self._describe(text, *_NAMES)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the names of the classes."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["class_names"] = self.class_names

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the classes, and make last layers of the checkpoint's size."""
        super().on_load_checkpoint(checkpoint)
        names = checkpoint.get("class_names")
        check_same_classes(names, self.class_names)
        self.class_names = names or self.class_names
        weight = checkpoint["state_dict"].get("detector.roi_heads.box_predictor.cls_score.weight")
        if weight is not None and self.num_classes is None:
            self._make_predictor(len(weight) - 1)

    def summary(self) -> list[str]:
        """Return the result of a run in words."""
        if self.result is None:
            return []
        step, values = self.result
        when = "the result" if step == self.trainer.global_step else f"at step {step}, not at the end"
        names = self.class_names or [str(label) for label in range(1, len(self.by_class) + 1)]
        each = ", ".join(f"{name} {value:.3f}" for name, value in zip(names, self.by_class, strict=True))
        aps = ", ".join(f"{name.upper()} {values[name]:.4f}" for name in _NAMES)
        return [
            f"detection:      {aps}: {when}",
            f"AP50 by class:  {each}",
            f"protocol:       {self.described}",
        ]

    def _run(self, images: list[Tensor], objects: list[Objects] | None) -> Any:
        with explained(self.detector.backbone, images[0][None]):
            return self.detector(images, objects)

    @contextlib.contextmanager
    def _seeded(self, batch_idx: int) -> Iterator[None]:
        """Let what torchvision draws depend on the place in the run alone."""
        seed = int(getattr(datamodule_of(self.trainer), "seed", 0))
        device = self.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(mix_seed(seed, self.current_epoch, batch_idx, self.trainer.global_rank))
            yield

    def _make_predictor(self, classes: int) -> None:
        heads: Any = self.detector.roi_heads
        heads.box_predictor = box_predictor(self.detector, classes)
        self.num_classes = classes

    def _checked(self, batch: Any, *more: str) -> tuple[list[Tensor], list[Objects]]:
        """Return images and objects of a batch, all of classes that there are."""
        parts = list(batch) if isinstance(batch, list | tuple) else []
        needed = {"boxes", "labels", *more}
        images, objects = parts[:2] if len(parts) == 2 else ((), ())
        fits = isinstance(objects, list | tuple) and len(images) == len(objects) > 0
        if not fits or not all(isinstance(own, dict) and needed <= own.keys() for own in objects):
            raise DataError(
                f"expected a batch (images, objects), a list of each, objects being dicts of "
                f"{', '.join(sorted(needed))}, got {type(batch).__name__}: use VOCDetectionDataModule"
            )
        labels = torch.cat([own["labels"] for own in objects])
        if len(labels) and (int(labels.min()) < 1 or int(labels.max()) > (self.num_classes or 0)):
            raise DataError(
                f"labels are from {int(labels.min())} to {int(labels.max())}, and there are "
                f"{self.num_classes} classes, from 1: label 0 is the background"
            )
        return list(images), list(objects)

    def _say_missing(self, objects: list[Objects]) -> None:
        """Warn of classes without an object to find, whose average precision counts as 0."""
        there = {int(label) for own in objects for label in own["labels"][~own["difficult"]]}
        missing = [label for label in range(1, (self.num_classes or 0) + 1) if label not in there]
        if missing and not self.trainer.sanity_checking and self.trainer.is_global_zero:
            names = self.class_names or []
            said = ", ".join(names[label - 1] if names else str(label) for label in missing)
            rank_zero_warn(f"no test image has an object of {said}: the average precision counts 0 for it")
