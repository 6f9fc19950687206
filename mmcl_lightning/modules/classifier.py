"""The common part of evaluations by labels: a backbone from a file, a classifier, exact counting."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning._options import check_choice, check_number
from mmcl_lightning._text import counted
from mmcl_lightning.batches import clean_views, images_and_labels, names_of
from mmcl_lightning.callbacks.averaging import average_anew
from mmcl_lightning.distributed import gather_objects
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.models import explained, feature_dim
from mmcl_lightning.modules.judging import JudgingModule, check_same_classes
from mmcl_lightning.modules.measures import MEASURES
from mmcl_lightning.modules.protocols import EVALUATION_PROTOCOLS
from mmcl_lightning.modules.recording import record_options
from mmcl_lightning.modules.targets import LabelSets, OneClass
from mmcl_lightning.views import mean_over_views

__all__ = ["ClassifierModule"]


class ClassifierModule(JudgingModule):
    """A pretrained backbone with a linear classifier on its representation h.

    A batch is ``images, labels = batch[0], batch[1]``, float ``(B, 3, H, W)`` and int64 ``(B,)``; rows with a
    negative label do not count. Accuracy is over the images of all processes, each counted once. In place of
    the images that are judged may stand a list of views, such as ten crops, whose softmax is averaged.

    What is measured is the data module's ``metric``, ``top1`` or ``mean_per_class``. Where it has
    ``multi_label``, an image may be of several classes: the loss is the mean binary cross-entropy over the
    classes, and the metric ``map_11point``.

    Args:
        checkpoint: Where the backbone's weights come from: a checkpoint of this package, an exported
            backbone, torchvision's own file; or ``"random"`` for a random start, the floor under all.
        protocol: Name in ``EVALUATION_PROTOCOLS``.
        backbone: Name or module as in :class:`ContrastiveModule`; ``None`` for what the checkpoint names.
        cifar_stem: A ResNet's stem for small images; ``None`` for what the checkpoint has.
        num_classes: Number of classes; ``None`` asks the data module.
        preprocessing: ``"checkpoint"``: images are made as those that the weights were trained on, where the
            data module leaves that open, and another mean and std are refused. ``"data"``: as the data module
            has it.
        lr: Learning rate in place of the protocol's, not scaled by the batch.
        weight_decay: Weight decay in place of the protocol's.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
    """

    tag = "classifier"
    protocols: ClassVar[dict[str, Any]] = EVALUATION_PROTOCOLS  # by name
    metric = "top1"
    """What the result is: one of ``MEASURES``."""
    targets: OneClass = OneClass()
    """What an image is to be classified as."""

    def __init__(
        self,
        checkpoint: str | None,
        protocol: str,
        backbone: str | nn.Module | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        num_classes: int | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
        lr: float | None = None,
        weight_decay: float | None = None,
    ):
        super().__init__()
        record_options(self)
        check_choice("protocol", protocol, sorted(self.protocols))
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if value is not None:
                check_number(name, value, ">= 0")
        self.protocol = self.protocols[protocol]
        self.num_classes = num_classes
        self.class_names: list[str] | None = None  # of the data, in the order of the scores
        # Plain numbers: a checkpoint, which has the optimizer's options, cannot hold one of NumPy.
        self._lr = None if lr is None else float(lr)
        self.weight_decay = float(self.protocol.weight_decay if weight_decay is None else weight_decay)
        self.backbone = self.judged_backbone(checkpoint, backbone, cifar_stem, preprocessing)
        self.classifier: nn.Linear | None
        self.register_module("classifier", None)  # made when the number of classes is known
        self.feature_norm: nn.BatchNorm1d | None
        self.register_module("feature_norm", None)  # likewise, where the protocol has it
        self.curve: list[tuple[int, int, float]] = []  # (epochs, steps, metric): survives a resume
        self._accuracy: Any = None  # of the validation at work
        self._loss_sum, self._count = 0.0, 0
        self._labelled = False  # whether any training image was

    @abstractmethod
    def represent(self, images: Tensor) -> Tensor:
        """Return the representation h ``(B, F)`` of training images ``(B, 3, H, W)``."""

    @abstractmethod
    def trained(self) -> Iterable[nn.Parameter]:
        """Return the weights that are trained."""

    @abstractmethod
    def mode(self) -> str:
        """Say in words what happens to the backbone."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the representation h, shape ``(B, F)``, of images ``(B, 3, H, W)``."""
        h: Tensor = self.backbone(x)
        return h

    def setup(self, stage: str) -> None:
        """Make the classifier, unless a checkpoint did; make images as those of the weights were."""
        super().setup(stage)
        datamodule = getattr(self.trainer, "datamodule", None)
        task = getattr(datamodule, "task", "classify")
        if stage == "validate" and task != "classify":  # in training two views are refused
            raise ConfigError(
                f"an evaluation needs one view of each image: set data.task to 'classify', got {task!r}"
            )
        self.targets = LabelSets() if getattr(datamodule, "multi_label", False) else OneClass()
        measures = self.targets.measures
        self.metric = getattr(datamodule, "metric", measures[0])
        check_choice("the data module's metric", self.metric, measures)
        classes = self.num_classes or getattr(datamodule, "num_classes", None)
        if classes is None and self.classifier is not None:  # to predict images without labels
            return
        if classes is None:
            raise ConfigError(
                "the data tells of no classes, and an evaluation needs labels: give them by class folders or "
                "by --data.labels, or set model.num_classes"
            )
        names = getattr(datamodule, "class_names", None)
        if self.classifier is not None:
            check_same_classes(self.class_names, names)
        self.class_names = names if names is not None else self.class_names
        if self.classifier is None:
            if classes < 2:
                raise DataError(
                    f"the data has {classes} class, and there is nothing to tell it from: set data.root to a "
                    "folder with a folder for each class, or give data.labels"
                )
            self._make_classifier(classes)
            if stage == "fit":
                average_anew(self.trainer, self)
        elif self.classifier.out_features != classes:
            raise ConfigError(
                f"the checkpoint's classifier has {self.classifier.out_features} classes, the data {classes}"
            )

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the mean loss of the labelled images of a batch, and h."""
        images, labels = self._images_and_labels(batch)
        self._labelled = self._labelled or bool((labels >= 0).any())
        with explained(self.backbone, images):
            h = self.represent(images)
        loss = self.targets.loss_sum(self.scores(h), labels) / (labels >= 0).sum().clamp_min(1)
        self._log_step(loss, len(labels))
        return {"loss": loss, "h": h.detach()}

    def on_train_epoch_end(self) -> None:
        """Refuse data from which nothing can be learnt."""
        if not any(gather_objects(self._labelled)):
            raise DataError("none of the training images has a label")

    def on_validation_epoch_start(self) -> None:
        """Count from zero."""
        assert self.classifier is not None
        self._accuracy = self.targets.metric(self.classifier.out_features, self.device)
        self._loss_sum, self._count = 0.0, 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Count what is classified correctly."""
        views, labels = clean_views(batch)
        labels = self._checked(labels)
        with explained(self.backbone, views[0]):
            scores = self._mean_scores([self(view) for view in views])
        assert self._accuracy is not None
        self._accuracy.update(scores, labels)
        self._loss_sum += float(self.targets.loss_sum(scores, labels))
        self._count += int((labels >= 0).sum())

    def on_validation_epoch_end(self) -> None:
        """Log the accuracy over the images of all processes.

        Raises:
            DataError: If none of them has a label.
            NumericalError: If the loss is not finite: the accuracy of such weights is no result.
        """
        losses, counts = zip(*gather_objects((self._loss_sum, self._count)), strict=True)
        if sum(counts) == 0:
            raise DataError("none of the images to classify has a label")
        loss = sum(losses) / sum(counts)
        if not math.isfinite(loss):
            raise NumericalError(
                f"the loss of the held-out images is {loss} after {counted(self.global_step, 'step')}: the "
                "weights are no longer finite; train again with a lower --model.lr"
            )
        assert self._accuracy is not None
        values = {**self._accuracy.compute(), "loss": loss}
        if self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking:
            self.curve.append((self.current_epoch + 1, self.global_step, values[self.metric]))
            values[f"best_{self.metric}"] = max(point[2] for point in self.curve)
        self._log_measured(values)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return ``h`` ``(B, F)``, ``scores`` ``(B, classes)``, ``target`` ``(B,)``; ``name`` if given.

        ``predicted`` has the names of the classes with the largest score, or their indices without names; of
        images that may be of several classes the names of all that are more likely than not, joined by " + ".
        """
        views, labels = clean_views(batch)
        with explained(self.backbone, views[0]):
            hs = [self(view) for view in views]
        h, scores = mean_over_views(lambda h: h, hs), self._mean_scores(hs)
        found = {
            "h": h,
            "scores": scores,
            "predicted": self.targets.predicted(scores, self.class_names),
            "target": labels,
        }
        return found if (names := names_of(batch)) is None else {**found, "name": names}

    def scores(self, h: Tensor) -> Tensor:
        """Return the scores ``(B, classes)`` of representations ``(B, F)``."""
        if self.classifier is None:
            raise ConfigError("there is no classifier yet: a trainer makes it, or load_from_checkpoint")
        if self.feature_norm is not None:
            h = self.feature_norm(F.normalize(h, dim=1, eps=1e-18))  # untrained networks have tiny features
        scores: Tensor = self.classifier(h)
        return scores

    def _mean_scores(self, hs: list[Tensor]) -> Tensor:
        """Return the scores of one view, or those of the mean probabilities over several."""
        if len(hs) == 1:
            return self.scores(hs[0]).float()
        targets = self.targets
        return targets.scores(mean_over_views(lambda h: targets.probabilities(self.scores(h).float()), hs))

    def configure_optimizers(self) -> Any:
        """Build the protocol's optimizer, and its schedule per step."""
        scheduled = self.protocol.lr_schedule != "constant"
        # It also sets up the loader that tells the batch size.
        steps = self.planned_steps("the protocol's schedule" if scheduled else None)
        batch_size = self.global_batch_size()
        return self.protocol.optimize(self.trained(), self.lr, self.weight_decay, batch_size, steps)

    def on_train_start(self) -> None:
        """Write down what is run, and say where it is not what the protocol says."""
        super().on_train_start()
        self._validate_the_last_epoch()
        group, batch = self.trainer.optimizers[0].param_groups[0], self.global_batch_size()
        name, protocol = self.hparams["protocol"], self.protocol
        limit = self.trainer.max_steps
        length = f"{limit} steps" if limit > 0 else f"{self.trainer.max_epochs} epochs"
        text = (
            f"{name}: {protocol.optimizer.__name__} lr={group.get('initial_lr', group['lr']):g} "
            f"wd={group['weight_decay']:g} {protocol.lr_schedule}, batch {batch}, {length}, {self.mode()}, "
            f"weights {self.hparams['checkpoint']}"
        )
        self._describe(text, self.metric)
        due = f"{protocol.steps} steps" if protocol.steps else f"{protocol.epochs} epochs"
        if (batch, length) != (protocol.batch_size, due):
            rank_zero_info(
                f"protocol {name} has batch {protocol.batch_size} and {due}; this run has batch {batch} and "
                f"{length}, so its accuracy does not compare with published ones"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the curve."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["curve"] = [list(point) for point in self.curve]
        checkpoint["labelled"] = self._labelled
        checkpoint["class_names"] = self.class_names

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the curve, and make a classifier of the checkpoint's size."""
        super().on_load_checkpoint(checkpoint)
        self.class_names = checkpoint.get("class_names") or self.class_names
        curve = checkpoint.get("curve", [])
        self.curve = [(int(epoch), int(step), float(value)) for epoch, step, value in curve]
        self._labelled = bool(checkpoint.get("labelled", True))
        weight = checkpoint["state_dict"].get("classifier.weight")
        if weight is not None and self.classifier is None:
            self._make_classifier(len(weight))

    def summary(self) -> list[str]:
        """Return the result of a run in words: what was measured at its end, and apart from it the best."""
        if not self.curve:
            return []
        epoch, step, last = self.curve[-1]
        best_epoch, _, best = max(self.curve, key=lambda point: point[2])
        end = self.trainer.global_step
        result = f"{last:.4f} at the end of epoch {epoch}: the result"
        if step != end:
            result = f"{last:.4f} at step {step} of {end}: `validate --ckpt_path last` gives the result"
        return [
            f"{f'{self.tag} {MEASURES[self.metric]}:':<13} {result}",
            f"{'best:':<14}{best:.4f} in epoch {best_epoch}, picked on the images that it is measured on",
            f"{'protocol:':<14}{self.described}",
        ]

    def _images_and_labels(self, batch: Any) -> tuple[Any, Tensor]:
        try:
            images, labels = images_and_labels(batch)
        except DataError as error:
            raise DataError(f"{error}: set task to 'classify' in a data module of ours") from error
        return images, self._checked(labels)

    def _checked(self, labels: Tensor) -> Tensor:
        """Return labels on the device, all of them of classes that there are."""
        labels = labels.to(self.device)
        largest = int(labels.max())
        if self.classifier is not None and largest > self.targets.largest(self.classifier.out_features):
            raise DataError(
                f"a label is {largest}, and there are {self.classifier.out_features} classes, from 0"
            )
        return labels

    def _make_classifier(self, classes: int) -> None:
        self.classifier = nn.Linear(feature_dim(self.backbone), classes, device=self.device)
        if self.protocol.init_std is not None:
            nn.init.normal_(self.classifier.weight, std=self.protocol.init_std)
            nn.init.zeros_(self.classifier.bias)
        if self.protocol.batch_norm:
            self.feature_norm = nn.BatchNorm1d(feature_dim(self.backbone), device=self.device)
