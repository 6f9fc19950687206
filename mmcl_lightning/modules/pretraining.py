"""What every pretraining module has: a backbone, a projection head, and how they are optimised."""

from __future__ import annotations

import contextlib
import functools
import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from mmcl_lightning._lightning import has_trained, learning_rate_trial
from mmcl_lightning._log_number import log_number
from mmcl_lightning._options import check_choice, check_flags, check_number, check_whole, is_number
from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.batches import clean_views, image_count, names_of, views_of
from mmcl_lightning.callbacks.averaging import average_anew
from mmcl_lightning.callbacks.progress import brings_a_bar
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.distributed import mean_over_processes
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.models import ProjectionHead, explained, feature_dim
from mmcl_lightning.modules.chunked import encode_in_chunks
from mmcl_lightning.modules.preprocessing import preprocessing_of, published_preprocessing
from mmcl_lightning.modules.recording import record_options
from mmcl_lightning.modules.resumable import ResumableModule, restoring
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import load_backbone, make_backbone
from mmcl_lightning.optim import (
    WarmupConstant,
    WarmupCosine,
    WarmupSteps,
    parameter_groups,
    scale_learning_rate,
)
from mmcl_lightning.views import concatenate, mean_over_views

__all__ = ["PretrainingModule"]


class PretrainingModule(ResumableModule):
    """Pretrain a backbone from several views of each item; a subclass says by which loss.

    A batch starts with a list of two views or is a mapping with one under ``views``; see
    :mod:`mmcl_lightning.batches`. A view is a tensor ``(B, ...)``, such as images ``(B, 3, H, W)``, or any
    nesting of lists, tuples and mappings of such tensors that the backbone maps to ``(B, F)``. Labels are not
    used. A checkpoint holds ``backbone.*`` and ``projection_head.*`` and rebuilds the module by itself:
    ``load_from_checkpoint(path)``; a backbone or head that was a live ``nn.Module`` has to be passed again.

    Args:
        backbone: A name (``"resnet50"``, ``"timm:vit_small_patch16_224"``, ``"conv4"``, see
            :func:`~mmcl_lightning.models.build_backbone`) or a module from a view to ``(B, F)``.
        cifar_stem: Give a ResNet the stem for images of 32 to 64 pixels.
        projection_head: ``"imagenet"`` or ``"cifar"`` for the paper's two heads, ``"moco"``, or a module from
            ``(B, F)`` to ``(B, D)``.
        hidden_dim: Width of a named head's hidden layer; ``None`` for the paper's (2048 or 512; moco: F).
        output_dim: Width D of a named head's projection.
        optimizer: Called with parameter groups; in YAML a ``class_path`` with ``init_args``.
            ``None`` for Adam with lr 1e-3 and weight decay 1e-6, the paper's choice for small sets.
            Biases and normalisation layers get no weight decay, and no trust ratio under LARS.
        lr_scaling: ``"linear"``: lr x batch / 256; ``"sqrt"``: lr x sqrt(batch); ``"none"``. The batch is
            the one over all devices and accumulated steps.
        lr_schedule: ``"cosine"`` to zero, ``"constant"``, or ``"step"``: a tenth after each of ``lr_steps``.
        lr_steps: Epochs, increasing, after which ``"step"`` takes a tenth of the learning rate.
        warmup: Share of all steps, in [0, 1), that the learning rate rises over.
        chunk_size: Items that pass the network at a time, so that the batch, and with it the number of
            negatives, is not limited by the memory for activations. The gradient stays that of the whole
            batch, at the price of a second forward pass; batch norm sees a chunk as its batch. ``None``
            for one pass.
        init_from: File of the backbone's first weights, every one of them or none: a checkpoint of this
            package, an exported backbone, torchvision's, timm's, or a published one; see
            :func:`~mmcl_lightning.modules.weight_files.read_backbone`. A resumed run does not read it.
        compile: Let ``torch.compile`` make one program each of backbone and head when a fit begins, in place:
            weights keep their names, and a run may be resumed with it or without.

    Logs:
        ``train/loss`` (of the anchors of all processes), ``train/lr`` each step;
        ``val/loss`` on held-out items with training augmentation.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        backbone: str | nn.Module | dict[str, Any] = "resnet50",
        cifar_stem: bool = False,
        projection_head: Literal["imagenet", "cifar", "moco"] | nn.Module = "imagenet",
        hidden_dim: int | None = None,
        output_dim: int = 128,
        optimizer: OptimizerCallable | None = None,
        lr_scaling: Literal["sqrt", "linear", "none"] = "none",
        lr_schedule: Literal["cosine", "constant", "step"] = "constant",
        lr_steps: list[int] | None = None,
        warmup: float = 0.0,
        chunk_size: int | None = None,
        init_from: str | None = None,
        compile: bool = False,
    ):
        super().__init__()
        record_options(self)
        check_choice("lr_schedule", lr_schedule, ("cosine", "constant", "step"))
        _check_lr_steps(lr_schedule, lr_steps)
        check_number("warmup", warmup, "in [0, 1)", "it is a share of all steps")
        if chunk_size is not None:
            check_whole(1, chunk_size=chunk_size)
        check_flags(cifar_stem=cifar_stem, compile=compile)
        scale_learning_rate(1.0, 1, lr_scaling)  # raises here, not hours later
        self.backbone = make_backbone(backbone, cifar_stem, pretrained=False if restoring.get() else None)
        self._published: Preprocessing | None = None  # of the weights that the backbone begins with
        if isinstance(backbone, dict) and backbone.get("pretrained") and not restoring.get():
            self._published = published_preprocessing(backbone, self.backbone)
        self.projection_head = _head(
            from_spec(projection_head, nn.Module, "projection_head"), self.backbone, hidden_dim, output_dim
        )
        self.optimizer: OptimizerCallable = from_spec(optimizer, torch.optim.Optimizer, "optimizer")
        if self.optimizer is None:
            self.optimizer = functools.partial(torch.optim.Adam, lr=1e-3, weight_decay=1e-6)
        self.lr_scaling = lr_scaling
        self.lr_schedule = lr_schedule
        self.lr_steps = lr_steps
        self.warmup = warmup
        self.chunk_size = chunk_size
        self.init_from = init_from
        self._compiles = compile  # torch's modules have a method of that name
        self._deferred_checks = DeferredChecks()

    def start_from(self, path: str) -> None:
        """Load the backbone's weights from a file, every one of them or none.

        Args:
            path: As ``init_from``.

        Raises:
            ConfigError: If the file cannot be read or does not fit.
        """
        file = read_backbone(path)
        rank_zero_info(load_backbone(self.backbone, file))
        if file.preprocessing is not None:
            self._compare_images(Preprocessing.from_plain(file.preprocessing), path)

    def _compare_images(self, told: Preprocessing, source: str) -> None:
        """Warn where the weights that a run begins with saw images of another mean and std."""
        own = None if self.preprocessing is None else Preprocessing.from_plain(self.preprocessing)
        if own is not None and told.difference(own.statistics):
            rank_zero_warn(f"the weights of {source} were trained on images of {told}; these are of {own}")

    @abstractmethod
    def loss_of_views(self, views: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the loss of the views of a batch, and h of those that gradients pass, ``(n, F)``.

        Args:
            views: Two views of the same B items; h has those of one view after the other.
        """

    def forward(self, x: Any) -> Tensor:
        """Return the representation h, shape ``(B, F)``, of a view, such as images ``(B, 3, H, W)``."""
        h: Tensor = self.backbone(x)
        return h

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        """Return ``loss``, and ``h`` ``(views * B, F)`` without a gradient, for callbacks that learn from it.

        A projection that is not finite raises, naming the step: at once on a CPU, elsewhere at the next step
        that is logged, or at the end of the epoch. A learning rate that leads to one while a finder tries
        rates is passed over.
        """
        found = self._loss_and_h(batch)
        if found is None:
            return None
        loss, h = found
        trial = learning_rate_trial(self.trainer)
        if trial is not None and loss < 0:  # it stops at a multiple of the smallest loss, which then is less
            trial.early_stop_threshold = None
        size = image_count(batch)
        # A bar of Lightning reads what it shows in every step, and a GPU is waited for then.
        shown = mean_over_processes(loss)
        self.log("train/loss", shown, prog_bar=not brings_a_bar(self.trainer), batch_size=size)
        log_number(self, "train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], batch_size=size)
        return {"loss": loss, "h": h.detach()}

    def on_fit_start(self) -> None:
        """Compile backbone and head where that is wanted; see :class:`ResumableModule` for the rest."""
        super().on_fit_start()
        self._deferred_checks.drop()
        if self._compiles:
            self.backbone.compile()
            self.projection_head.compile()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the checks since the last log, where the host waits anyway, unless a callback has."""
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.global_step % every == 0:
            self._deferred_checks.look()

    def on_train_epoch_end(self) -> None:
        """Look at those of the last steps."""
        self._deferred_checks.look()

    def on_validation_epoch_end(self) -> None:
        """Look at those of the validation."""
        self._deferred_checks.look()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Look before anything is written."""
        self._deferred_checks.look()
        super().on_save_checkpoint(checkpoint)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of held-out items."""
        if (found := self._loss_and_h(batch)) is not None:
            self.log("val/loss", found[0], batch_size=image_count(batch), sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return ``h`` ``(B, F)``, ``z`` ``(B, D)``, ``target`` ``(B,)``; ``name`` if the batch has it."""
        views, labels = clean_views(batch)
        with explained(self.backbone, views[0]):
            h = mean_over_views(self, views)
        found = {"h": h.clone(), "z": self.projection_head(h), "target": labels}
        return found if (names := names_of(batch)) is None else {**found, "name": names}

    def configure_optimizers(self) -> Any:
        """Build the optimizer on groups by module type, and its schedule per step.

        The first weights of the backbone are taken up here: after a checkpoint, which would have brought its
        own, and before a finder of the learning rate begins.
        """
        if (made := preprocessing_of(self)) is not None:
            self.preprocessing = made.to_plain()
        begins = self.trainer.ckpt_path is None and not has_trained(self.trainer)
        if begins and self.init_from is None and self._published is not None:
            self._compare_images(self._published, "the network's library")
        if begins and self.init_from is not None:
            self.start_from(self.init_from)
            average_anew(self.trainer, self)
        modules = {"backbone": self.backbone, "projection_head": self.projection_head}
        try:
            optimizer = self.optimizer(parameter_groups(modules))
        except ValueError as error:  # torch's own checks of lr, betas, ...
            raise ConfigError(f"optimizer: {error}") from error
        scheduled = self.lr_schedule != "constant" or self.warmup > 0
        # It also sets up the loader that the next line reads.
        steps = self.planned_steps(
            "a schedule or a warm-up"
            if self.lr_schedule == "step"
            else "a cosine or a warm-up"
            if scheduled
            else None
        )
        batch_size = self.global_batch_size()
        if batch_size is None and self.lr_scaling != "none" and self.lr is None:
            raise ConfigError(
                "lr_scaling needs the batch size, and the training loader has no batch_size: "
                "set lr_scaling to 'none' and give the learning rate itself"
            )
        for group in optimizer.param_groups:
            # Plain numbers: a checkpoint cannot hold one of NumPy.
            group |= {name: _plain(value) for name, value in group.items() if name != "params"}
            scaled = scale_learning_rate(group["lr"], batch_size or 1, self.lr_scaling)
            group["lr"] = scaled if self.lr is None else self.lr
        if math.isinf(steps):
            return optimizer
        warmup_steps = round(self.warmup * steps)
        if self.lr_schedule == "cosine":
            scheduler: Any = WarmupCosine(optimizer, warmup_steps, int(steps))
        elif self.lr_schedule == "step":
            in_epoch = math.ceil(self.trainer.num_training_batches / self.trainer.accumulate_grad_batches)
            scheduler = WarmupSteps(
                optimizer, warmup_steps, [epoch * in_epoch for epoch in self.lr_steps or []]
            )
        else:
            scheduler = WarmupConstant(optimizer, warmup_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def project(self, views: list[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pass views through backbone and head together, so that batch norm sees them as one batch.

        Args:
            views: Views of the same B items.

        Returns:
            h ``(views * B, F)``, one view after the other, without a gradient, and the projections of each
            view, ``(B, D)``.
        """

        def encode(view: Any) -> tuple[Tensor, Tensor]:
            h = self.backbone(view)
            return h.detach().clone(), self.projection_head(h)  # a copy: the head may work in place

        if self.chunk_size is None or not torch.is_grad_enabled():
            h, z = encode(concatenate(*views))
            return h, z.chunk(len(views))
        hs, zs = encode_in_chunks(encode, views, self.chunk_size, [self.backbone, self.projection_head])
        return torch.cat(hs), zs

    def _loss_and_h(self, batch: Any) -> tuple[Tensor, Tensor] | None:
        """Loss and h of a batch; None where a finder tries a rate that is too high for numbers."""
        views = views_of(batch)
        # Views that were made on the device have not been there when Lightning gave others the precision.
        views = self.trainer.precision_plugin.convert_input(views)
        trial = learning_rate_trial(self.trainer) is not None
        stage = "validation" if self.trainer.validating or self.trainer.sanity_checking else "training"
        where = f"{stage} step {self.global_step}"
        at_once = trial or not self._deferred_checks.defers(self.device)
        try:
            collecting = contextlib.nullcontext() if at_once else self._deferred_checks.collect(where)
            with collecting, explained(self.backbone, views[0]):
                return self.loss_of_views(views)
        except NumericalError as error:
            if trial:
                return None
            raise NumericalError(f"{where}: {error}") from error


def _check_lr_steps(schedule: str, steps: list[int] | None) -> None:
    if (schedule == "step") != bool(steps):
        raise ConfigError(
            "lr_steps has the epochs at which lr_schedule 'step' lowers the learning rate: give both or "
            f"none, got lr_schedule {schedule!r} and lr_steps {steps}"
        )
    for epoch in steps or []:
        check_whole(1, lr_steps=epoch)
    if steps and sorted(set(steps)) != list(steps):
        raise ConfigError(f"lr_steps must be increasing epochs, got {steps}")


def _plain(value: Any) -> Any:
    """Return numbers, also within tuples, as Python's own."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return to_spec(value) if is_number(value) else value


def _head(head: str | nn.Module, backbone: nn.Module, hidden_dim: int | None, output_dim: int) -> nn.Module:
    if isinstance(head, nn.Module):
        return head
    if head == "imagenet":
        return ProjectionHead.imagenet(feature_dim(backbone), hidden_dim or 2048, output_dim)
    if head == "cifar":
        return ProjectionHead.cifar(feature_dim(backbone), hidden_dim or 512, output_dim)
    if head == "moco":
        return ProjectionHead.moco(feature_dim(backbone), hidden_dim, output_dim)
    raise ConfigError(f"projection_head must be 'imagenet', 'cifar', 'moco' or a module, got {head!r}")
