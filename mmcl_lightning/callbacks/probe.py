"""Online linear probe: a classifier trained beside the pretraining, on what the network gives anyway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.callbacks.features import collect_features
from mmcl_lightning.distributed import layout
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.metrics import topk_correct

__all__ = ["OnlineLinearProbe"]


class OnlineLinearProbe(Callback):
    """Train a linear classifier on the representation while it forms, and read its accuracy.

    The classifier takes one Adam step per training batch on h of that batch, all views of it, which a
    hook copies from the module's own forward: no second pass over images, and no gradient to the network.
    Its loss is its own, beside the one of the pretraining. It chases a moving representation and sees
    augmented views, so its accuracy is a curve to watch; the result of a linear evaluation comes from
    :class:`~mmcl_lightning.modules.LinearEvaluation`, on frozen features.

    Args:
        lr: Learning rate of Adam, > 0, constant.
        weight_decay: Weight decay of Adam, >= 0. Both defaults are those of the paper's linear
            evaluation of small sets.
        every_n_epochs: Epochs between evaluations. The first and the last epoch always have one.
        query_loader: Batches ``(image, label)`` to classify; ``None`` asks the datamodule's
            ``knn_dataloaders()`` for its query images.
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
        lr: float = 1e-3,
        weight_decay: float = 1e-6,
        every_n_epochs: int = 1,
        query_loader: Iterable[Any] | None = None,
        num_classes: int | None = None,
    ) -> None:
        for name, value, fits, rule in (
            ("lr", lr, lr > 0, "> 0"),
            ("weight_decay", weight_decay, weight_decay >= 0, ">= 0"),
            ("every_n_epochs", every_n_epochs, every_n_epochs >= 1, ">= 1"),
            ("num_classes", num_classes, num_classes is None or num_classes >= 2, ">= 2"),
        ):
            if not fits:
                raise ConfigError(f"{name} must be {rule}, got {value}")
        self.lr = lr
        self.weight_decay = weight_decay
        self.every_n_epochs = every_n_epochs
        self.query_loader = query_loader
        self.num_classes = num_classes
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self.classifier: nn.Linear | None = None  # made with the first batch, which tells the width of h
        self.described = ""  # the protocol of the last evaluation, in words
        self._optimizer: torch.optim.Optimizer | None = None
        self._restored: dict[str, Any] = {}  # weights and optimizer of a checkpoint, until they are needed
        self._values: dict[str, float] = {}
        self._classes = 0  # 0: there are no labels, and the probe stays off
        self._hook: Any = None
        self._listening = False
        self._seen: list[Tensor] = []  # h of the current batch, one entry per call of the backbone

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out about the classes, and hook the backbone."""
        self._classes = self._count_classes(trainer)
        if not self._classes:
            rank_zero_info("the data has no labels to train or test on, so there is no linear probe")
            return
        backbone = getattr(pl_module, "backbone", None)
        source = backbone if isinstance(backbone, nn.Module) else pl_module
        self._hook = source.register_forward_hook(self._listen)
        for name, value in self._values.items():
            trainer.callback_metrics[name] = torch.tensor(value)

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
        labels = _labels_of(seen, batch[1], getattr(pl_module, "chunk_size", None))
        loss = self._step(torch.cat(seen), labels)
        if loss is not None:
            pl_module.log("probe/loss", loss, on_step=True, batch_size=len(labels))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate where it is due."""
        epoch = trainer.current_epoch + 1
        last = trainer.should_stop or epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if self.classifier is None or not (epoch % self.every_n_epochs == 0 or last or not self._values):
            return
        values = self._evaluate(trainer, pl_module)
        self.curve.append((epoch, values["probe/top1"]))
        self._values = {**values, "probe/best_top1": max(top1 for _, top1 in self.curve)}
        pl_module.log_dict(self._values, prog_bar=True, batch_size=1)
        rank_zero_info(f"linear probe top-1 after {epoch} epochs: {values['probe/top1']:.3f}")
        if len(self.curve) == 1 and trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_text("probe/protocol", self.described, trainer.global_step)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the probe of a checkpoint under ``trainer.validate``."""
        if trainer.state.fn == TrainerFn.VALIDATING and (self.classifier is not None or self._restored):
            pl_module.log_dict(self._evaluate(trainer, pl_module), batch_size=1)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module without a hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer and curve."""
        state = self._restored
        if self.classifier is not None and self._optimizer is not None:
            state = {"classifier": self.classifier.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {"fitted": state, "curve": [list(point) for point in self.curve], "values": dict(self._values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve; weights and optimizer wait until the device is known."""
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]
        self._values = dict(state_dict["values"])
        self._restored = dict(state_dict["fitted"])
        self.classifier = self._optimizer = None

    def _listen(self, module: nn.Module, inputs: Any, output: Any) -> None:
        # Under DistributedDataParallel the module's own call also returns what training_step does: a scalar.
        if self._listening and isinstance(output, Tensor) and output.ndim >= 2:
            self._seen.append(output.detach().flatten(1).to(torch.float32, copy=True))

    def _ready(self, width: int, device: torch.device) -> tuple[nn.Linear, torch.optim.Optimizer]:
        """Return classifier and optimizer for representations of a width; make them if they are not there."""
        if self.classifier is None or self._optimizer is None:
            saved, self._restored = self._restored, {}
            shape = saved["classifier"]["weight"].shape if saved else (self._classes, width)
            # Zeros, as in the paper's ImageNet protocol: the problem is convex, and nothing is drawn.
            self.classifier = nn.utils.skip_init(  # type: ignore[no-untyped-call]
                nn.Linear, shape[1], shape[0], device=device, dtype=torch.float32
            )
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)
            weights = self.classifier.parameters()
            self._optimizer = torch.optim.Adam(weights, lr=self.lr, weight_decay=self.weight_decay)
            if saved:
                self.classifier.load_state_dict(saved["classifier"])
                self._optimizer.load_state_dict(saved["optimizer"])
        if width != self.classifier.in_features:
            raise ShapeError(
                f"representations have {width} features, the linear probe was trained on "
                f"{self.classifier.in_features}: forward must give what backbone gives"
            )
        return self.classifier, self._optimizer

    def _step(self, h: Tensor, labels: Tensor) -> Tensor | None:
        """Step on the labelled rows of all processes; return their mean loss, or None if there are none."""
        if int(labels.max()) >= self._classes:
            raise DataError(f"a label is {int(labels.max())}, but there are {self._classes} classes, from 0")
        classifier, optimizer = self._ready(h.shape[1], h.device)
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(classifier(h), labels.clamp_min(-1), ignore_index=-1, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in classifier.parameters() if p.grad is not None]
        count = (labels >= 0).sum()
        total = torch.cat([torch.stack([count.to(loss), loss.detach()]), *(grad.flatten() for grad in grads)])
        if layout().world_size > 1:
            dist.all_reduce(total)
        if total[0] == 0:  # then not even Adam's momentum may move the weights
            return None
        mean = total[1:] / total[0]
        for grad, part in zip(grads, torch.split(mean[1:], [grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        optimizer.step()
        return mean[0]

    @torch.no_grad()
    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Return ``probe/top1`` and ``probe/top5`` of the query images."""
        loader = self._query(trainer)
        if loader is None:
            raise ConfigError("the linear probe has no labelled query images: give query_loader")
        h, labels = collect_features(trainer, pl_module, loader)
        h, labels = h[labels >= 0], labels[labels >= 0]
        if len(labels) == 0:
            raise DataError("none of the images that the linear probe is to classify has a label")
        scores = self._ready(h.shape[1], h.device)[0](h)
        self.described = (
            f"online linear probe on h: Adam lr={self.lr:g} wd={self.weight_decay:g}, one step per batch of "
            f"augmented views, {len(labels)} clean queries"
        )
        return {f"probe/top{k}": topk_correct(scores, labels, k).float().mean().item() for k in (1, 5)}

    def _count_classes(self, trainer: Trainer) -> int:
        """Return the number of classes, 0 where the data has no labels to train and test on."""
        datamodule = getattr(trainer, "datamodule", None)
        if self.num_classes is None and not hasattr(datamodule, "num_classes"):
            raise ConfigError("OnlineLinearProbe needs num_classes, or a datamodule that has num_classes")
        classes = self.num_classes or getattr(datamodule, "num_classes", None)
        return 0 if classes is None or self._query(trainer) is None else int(classes)

    def _query(self, trainer: Trainer) -> Iterable[Any] | None:
        if self.query_loader is not None:
            return self.query_loader
        datamodule: Any = getattr(trainer, "datamodule", None)
        if not hasattr(datamodule, "knn_dataloaders"):
            raise ConfigError("OnlineLinearProbe needs query_loader, or a datamodule with knn_dataloaders()")
        loaders = datamodule.knn_dataloaders()
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
