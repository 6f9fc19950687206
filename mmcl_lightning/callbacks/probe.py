"""Online linear probe: a classifier trained beside the pretraining, on what the network gives anyway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from mmcl_lightning._options import check_number, check_whole
from mmcl_lightning.batches import labels_of
from mmcl_lightning.callbacks._online_classifier import OnlineClassifier
from mmcl_lightning.callbacks.readout import FeatureReadout, datamodule_of
from mmcl_lightning.distributed import gather_objects
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.metrics import topk_correct

__all__ = ["OnlineLinearProbe"]


class OnlineLinearProbe(FeatureReadout):
    """Train a linear classifier on the representation while it forms, and read its accuracy.

    The classifier takes one Adam step per training batch on h of that batch, all views of it, which a
    hook copies from the module's own forward: no second pass over images, and no gradient to the network.
    Its loss is its own, beside the one of the pretraining. It chases a moving representation and sees
    augmented views, so its accuracy is a curve to watch; the result of a linear evaluation comes from
    :class:`~mmcl_lightning.modules.LinearEvaluation`, on frozen features.

    Args:
        lr: Learning rate of Adam, > 0, constant, on h that is standardised by running statistics.
        weight_decay: Weight decay of Adam, >= 0.
        every_n_epochs: Epochs between evaluations. The first and the last epoch always have one.
        query_loader: Batches ``(image, label)`` to classify; ``None`` asks the datamodule's
            ``knn_dataloaders()`` for its query images, which an :class:`OnlineKNN` then shares.
        num_classes: Number of classes; ``None`` asks the datamodule.

    Reads:
        Training batches ``(views, targets, ...)`` and the output ``(n, F)`` of ``pl_module.backbone`` in
        ``training_step``, or of the module's own forward where it has no ``backbone``; a ``chunk_size``
        of the module tells how it cuts a batch. Rows with a negative label are left out. With several
        processes the step is on the labelled rows of all, the same everywhere. Evaluation is on clean
        images in evaluation mode, which leaves modes, statistics and random states as they are.

    Writes:
        ``probe/loss``, cross-entropy of each training batch; ``probe/top1``, ``probe/top5`` and
        ``probe/best_top1``, shares in [0, 1]; the text ``probe/protocol``. Nothing where the data has no
        labels, which is said once. Weights, optimizer and curve are in the checkpoint.

    Raises:
        ConfigError: If an option is out of range, or the number of classes or the images are not given.
    """

    def __init__(
        self,
        lr: float = 3e-3,
        weight_decay: float = 1e-6,
        every_n_epochs: int = 1,
        query_loader: Iterable[Any] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs, at_start=False)
        check_number("lr", lr, "> 0")
        check_number("weight_decay", weight_decay, ">= 0")
        if num_classes is not None:
            check_whole(2, num_classes=num_classes)
        self.lr = lr
        self.weight_decay = weight_decay
        self.query_loader = query_loader
        self.num_classes = num_classes
        self._classes = 0  # 0: there are no labels, and the probe stays off
        self._hook: Any = None
        self._listening = False
        self._seen: list[Tensor] = []  # h of the current batch, one entry per call of the backbone

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self.classifier: OnlineClassifier | None = None  # made with the first batch, which tells the width
        self.protocol_texts: dict[str, str] = {}  # the protocol of the last evaluation, in words
        self._restored: dict[str, Any] = {}  # the classifier of a checkpoint, until it is needed

    @property
    def best(self) -> tuple[int, float] | None:
        """Epochs trained and ``probe/top1`` of the best evaluation so far, the earliest of equals."""
        return max(self.curve, key=lambda point: point[1], default=None)

    def kinds(self, module: LightningModule) -> set[str]:
        """Return h."""
        return {"h"}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out about the classes, and hook the backbone."""
        super().on_train_start(trainer, pl_module)
        self._classes = self._count_classes(trainer)
        if not self._classes:
            self._inform_once("the data has no labels to train or test on, so there is no linear probe")
            return
        self._compare_options()
        backbone = getattr(pl_module, "backbone", None)
        source = backbone if isinstance(backbone, nn.Module) else pl_module
        self._hook = source.register_forward_hook(self._listen)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Listen to the forward pass of this batch."""
        self._seen, self._listening = [], bool(self._classes)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Stop listening: the backward pass may run parts of the forward again (``chunk_size``)."""
        self._listening = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take a step on the representations of this batch."""
        self._listening = False
        if not self._classes:
            return
        seen, self._seen = self._seen, []
        if not seen:
            raise ConfigError(
                f"OnlineLinearProbe saw no representation: training_step of {type(pl_module).__name__} calls "
                f"neither its backbone nor its forward; call one of them, or remove the callback"
            )
        targets = labels_of(batch)
        if targets is None:
            raise DataError("OnlineLinearProbe needs training batches with labels, such as (images, labels)")
        labels = _labels_of(seen, targets, getattr(pl_module, "chunk_size", None))
        rows = torch.cat(seen)
        loss = self._ready(rows).step(rows, labels)
        if loss is not None:
            pl_module.log("probe/loss", loss, on_step=True, batch_size=len(labels))

    def readout(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Return ``probe/top1`` and ``probe/top5`` of the query images, or nothing without a classifier."""
        if self.classifier is None and not self._restored:
            return {}
        loader = self._query(trainer)
        if loader is None:
            raise ConfigError("the linear probe has no labelled query images: give query_loader")
        query = self._pass(trainer, module, loader)
        if query.labelled == 0:
            raise DataError("none of the images that the linear probe is to classify has a label")
        rows = query.features["h"].float()
        with torch.no_grad():
            scores = self._ready(rows).scores(rows)
        correct = gather_objects([int(topk_correct(scores, query.labels, k).sum()) for k in (1, 5)])
        self.protocol_texts["probe/top1"] = (
            f"online linear probe on standardised h: Adam lr={self.lr:g} wd={self.weight_decay:g}, one step "
            f"per batch of augmented views, {query.labelled} clean queries"
        )
        self._write_once(trainer, "probe/protocol", self.protocol_texts["probe/top1"])
        top1, top5 = (sum(hits) / query.labelled for hits in zip(*correct, strict=True))
        return {"probe/top1": top1, "probe/top5": top5}

    def record(self, trainer: Trainer, epoch: int) -> None:
        """Add the new value to the curve, and the best one to the values."""
        if "probe/top1" in self._values:
            self.curve.append((epoch, self._values["probe/top1"]))
            self._values["probe/best_top1"] = max(top1 for _, top1 in self.curve)
            last = self._values["probe/top1"]
            rank_zero_info(f"linear probe top-1 after {epoch} epoch{'s' * (epoch != 1)}: {last:.3f}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module without a hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def state_dict(self) -> dict[str, Any]:
        """Return classifier, optimizer and curve."""
        fitted = self._restored if self.classifier is None else self.classifier.state_dict()
        return {"fitted": fitted, "curve": [list(point) for point in self.curve], **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve; the classifier waits until the device is known."""
        super().load_state_dict(state_dict)
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]
        self._restored = dict(state_dict["fitted"])
        self.classifier = None

    def summary(self) -> list[str]:
        """Return the course of the accuracy in words."""
        if self.best is None:
            return []
        (_, start), (_, end) = self.curve[0], self.curve[-1]
        text = self.protocol_texts.get("probe/top1", "online linear probe")
        return [f"Probe top-1:  {start:.3f} -> {end:.3f}, best {self.best[1]:.3f}  ({text})"]

    def _listen(self, module: nn.Module, inputs: Any, output: Any) -> None:
        # Under DistributedDataParallel the module's own call also returns what training_step does: a scalar.
        if self._listening and isinstance(output, Tensor) and output.ndim >= 2:
            if output.shape[2:].numel() > 1:
                raise ShapeError(
                    f"the backbone gives maps of shape {tuple(output.shape)}: OnlineLinearProbe needs one "
                    "vector per image, so let the backbone pool them"
                )
            # A copy, because what comes after may work in place.
            self._seen.append(output.detach().flatten(1).to(torch.float32, copy=True))

    def _ready(self, rows: Tensor) -> OnlineClassifier:
        """Return the classifier, which the first rows that it meets make."""
        if self.classifier is None:
            saved, self._restored = self._restored, {}
            classes, width = saved["linear"]["weight"].shape if saved else (self._classes, rows.shape[1])
            self.classifier = OnlineClassifier(width, classes, self.lr, self.weight_decay, rows.device)
            if saved:
                self.classifier.load_state_dict(saved)
        return self.classifier

    def _compare_options(self) -> None:
        """Raise :class:`ConfigError` where a resumed probe would not be trained as its options say."""
        if not self._restored:
            return
        group = self._restored["optimizer"]["param_groups"][0]
        if (group["lr"], group["weight_decay"]) != (self.lr, self.weight_decay):
            raise ConfigError(
                f"the checkpoint's linear probe has lr={group['lr']:g} and weight_decay="
                f"{group['weight_decay']:g}, not {self.lr:g} and {self.weight_decay:g}: give the same"
            )

    def _count_classes(self, trainer: Trainer) -> int:
        """Return the number of classes, 0 where the data has no labels to train and test on."""
        datamodule = datamodule_of(trainer)
        if self.num_classes is None and not hasattr(datamodule, "num_classes"):
            raise ConfigError("OnlineLinearProbe needs num_classes, or a datamodule that has num_classes")
        classes = self.num_classes or getattr(datamodule, "num_classes", None)
        return 0 if classes is None or self._query(trainer) is None else int(classes)

    def _query(self, trainer: Trainer) -> Iterable[Any] | None:
        if self.query_loader is not None:
            return self.query_loader
        if not hasattr(datamodule_of(trainer), "knn_dataloaders"):
            raise ConfigError("OnlineLinearProbe needs query_loader, or a datamodule with knn_dataloaders()")
        loaders = self._knn_loaders(trainer)
        return None if loaders is None else loaders[1]


def _labels_of(seen: list[Tensor], targets: Tensor, chunk_size: int | None) -> Tensor:
    """Return a label for each row of the representations, call by call of the backbone.

    A call has one view of the images, or several, one view after the other; with ``chunk_size`` a call has
    that many images.
    """
    chunks = torch.split(targets, chunk_size or len(targets))
    labels = []
    for index, h in enumerate(seen):
        chunk = chunks[index % len(chunks)]
        if len(h) % len(chunk):
            raise ShapeError(
                f"the backbone gave {len(h)} representations of {len(chunk)} images, no whole number of "
                f"views: OnlineLinearProbe cannot tell whose label is whose"
            )
        labels.append(chunk.repeat(len(h) // len(chunk)))
    return torch.cat(labels)
