"""MoCo v2: contrast against a queue of keys from a slowly moving encoder."""

from __future__ import annotations

import copy
import functools
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmcl_lightning._options import check_flags, check_number, check_whole
from mmcl_lightning._specs import from_spec
from mmcl_lightning.batches import image_count
from mmcl_lightning.distributed import gather_with_gradient, layout
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses.mixing import HardNegativeMixing, MixingDraws
from mmcl_lightning.losses.queue import InfoNCELoss, check_finite, unit_rows
from mmcl_lightning.models import feature_dim
from mmcl_lightning.modules.pretraining import PretrainingModule
from mmcl_lightning.views import all_tensors, item_count, map_tensors, split

__all__ = ["MoCo"]


class MoCo(PretrainingModule):
    """Pretraining by momentum contrast (MoCo v2), the negatives of which do not come from the batch.

    View 0 passes the backbone and head that are trained and gives the queries; view 1 passes copies of them,
    the key encoder, and gives the keys. A query is told from the newest ``queue_size`` keys of all processes.
    Before each step the weights of the key encoder move to ``momentum * key + (1 - momentum) * trained``; no
    gradient reaches them, and no optimizer holds them. After the loss the keys of the batch replace the
    oldest ones; any batch size goes with any queue. The queue starts with random unit rows, as in MoCo, alike
    in every process. ``forward``, k-NN and prediction read the backbone that is trained. The checkpoint holds
    ``key_backbone.*``, ``key_projection_head.*``, ``queue`` and ``keys_seen`` besides.

    Batch norm would tell a query's key by the statistics that their two batches share. Keys are therefore
    encoded among other images than queries (shuffled batch norm): over all devices, and in the chunks of
    ``chunk_size``. One device without ``chunk_size`` has the leak; so has ``sync_batchnorm``, which makes one
    batch of all devices: leave it off. A warning says so, and ``train/contrast_top1`` then comes near 1.

    Source: He et al., CVPR 2020, arXiv:1911.05722; Chen et al., "Improved Baselines with Momentum Contrastive
    Learning", 2020, arXiv:2003.04297. Differs from the published code in three points: the cosine is per
    step, not per epoch; biases and normalisation layers are not decayed; where gradients are accumulated, the
    key encoder moves once per optimizer step.

    Args:
        queue_size: Number K of negatives, >= 1; 16,384 for ImageNet-100, 4,096 for CIFAR.
        momentum: Share of its weights that the key encoder keeps in a step, in [0, 1); 0.99 for CIFAR.
        temperature: T > 0; 0.2 in MoCo v2.
        mixing: Synthetic negatives from the hardest ones of the queue (MoCHI), e.g.
            ``HardNegativeMixing(hardest=1024, pairs=1024, with_query=128)``, in YAML its arguments;
            ``None`` for none.
        mixing_start: Epochs that pass before mixing begins; 10 to 15 in MoCHI's runs of 200.
        symmetric: Let each view give the queries once and average; twice the cost, and twice the keys.
        projection_head: As in :class:`PretrainingModule`; ``"moco"`` for Linear F-F, ReLU, Linear F-128.
        optimizer: As in :class:`PretrainingModule`; ``None`` for SGD with lr 0.03 (for a batch of 256),
            momentum 0.9 and weight decay 1e-4, MoCo's choice.
        lr_schedule: As in :class:`PretrainingModule`.
        **kwargs: Backbone and optimisation: see :class:`PretrainingModule`. ``chunk_size`` counts images of
            one view here.

    Logs:
        As :class:`PretrainingModule`, and ``train/contrast_top1``: share of queries nearer to their key than
        to the whole queue.

    Raises:
        ConfigError: If an option is out of range; at the start of training, if weights are in half precision.
    """

    queue: Tensor
    keys_seen: Tensor

    def __init__(
        self,
        queue_size: int = 65536,
        momentum: float = 0.999,
        temperature: float = 0.2,
        mixing: HardNegativeMixing | None = None,
        mixing_start: int = 10,
        symmetric: bool = False,
        projection_head: Literal["imagenet", "cifar", "moco"] | nn.Module = "moco",
        optimizer: OptimizerCallable | None = None,
        lr_schedule: Literal["cosine", "constant", "step"] = "cosine",
        **kwargs: Any,
    ):
        if "schedule" in kwargs and kwargs["schedule"] is None:  # in a checkpoint of an earlier version
            del kwargs["schedule"]
        check_whole(1, queue_size=queue_size)
        check_whole(0, mixing_start=mixing_start)
        mixing = from_spec(mixing, HardNegativeMixing, "mixing")
        if mixing is not None and mixing.hardest > queue_size:
            raise ConfigError(
                f"mixing takes the {mixing.hardest} hardest negatives, and queue_size is {queue_size}: lower "
                "mixing.hardest or raise queue_size"
            )
        check_flags(symmetric=symmetric)
        check_number("momentum", momentum, "in [0, 1)", "use 0.99 to 0.9999")
        if optimizer is None:
            optimizer = functools.partial(torch.optim.SGD, lr=0.03, momentum=0.9, weight_decay=1e-4)
        super().__init__(
            projection_head=projection_head,
            optimizer=optimizer,
            lr_schedule=lr_schedule,
            **kwargs,
        )
        self.criterion = InfoNCELoss(temperature, mixing)
        self.momentum = momentum
        self.mixing = mixing
        self.mixing_start = mixing_start
        self.symmetric = symmetric
        self.key_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
        self.key_projection_head = copy.deepcopy(self.projection_head).requires_grad_(False)
        # A generator of its own, so that all processes start alike whatever their global random state.
        rows = torch.randn(queue_size, self._projection_width(), generator=torch.Generator().manual_seed(0))
        self.register_buffer("queue", unit_rows(rows))
        self.register_buffer("keys_seen", torch.zeros((), dtype=torch.int64))
        self._keys_seen: int | None = 0  # the same on the host; None: to be read
        self.register_load_state_dict_post_hook(_forget_keys_seen)  # type: ignore[no-untyped-call]
        self._new_keys: Tensor | None = None

    def start_from(self, path: str) -> None:
        """Load weights from a file into the backbone, and into the key encoder's too."""
        super().start_from(path)
        self.key_backbone.load_state_dict(self.backbone.state_dict())

    def on_train_start(self) -> None:
        """Check what the key encoder needs of the trainer."""
        super().on_train_start()
        narrow = {p.dtype for p in self.key_backbone.parameters()} - {torch.float32, torch.float64}
        if narrow:
            raise ConfigError(
                f"the key encoder moves by steps that {narrow.pop()} rounds away: train with "
                "precision bf16-mixed or 32-true"
            )
        self._warn_of_leak(self.trainer.world_size)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        """Move the key encoder, return loss and h of a batch of views, and put its keys into the queue."""
        if batch_idx % self.trainer.accumulate_grad_batches == 0:  # the first batch of an optimizer step
            self._move_key_encoder()
        step = super().training_step(batch, batch_idx)
        if self._new_keys is not None:
            self._enqueue(self._new_keys)
        hits = self.criterion.last_stats["contrast_top1"]
        self.log("train/contrast_top1", hits, batch_size=image_count(batch))
        return step

    def loss_of_views(self, views: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the loss of queries against their keys and the queue, and h of the queries.

        Raises:
            ConfigError: If the views are no tensors, such as graphs.
        """
        if not all_tensors(views):
            raise ConfigError(
                f"MoCo shuffles the items of tensors, and the views are of type {type(views[0]).__name__}: "
                "use SimCLR or MMCL, which take graphs"
            )
        queue = self.queue.clone()  # the buffer changes before the backward pass reads it
        where, losses, keys, representations = layout(), [], [], []
        for view in (0, 1) if self.symmetric else (0,):
            h, (query,) = self.project([views[view]])
            representations.append(h)
            everyone = self._keys(views[1 - view], view)
            if where.world_size > 1:  # all processes stop together instead of waiting for one
                check_finite(gather_with_gradient(query.detach().float()), everyone)
            shares = everyone.chunk(where.world_size)
            draws = self._mixing_draws(len(everyone), view)
            losses.append(self.criterion(query, shares[where.rank], queue, draws))
            # As samplers deal a batch out, an image to each process in turn: so the queue does not depend on
            # how many there are.
            keys.append(torch.stack(shares, dim=1).flatten(0, 1))
        self._new_keys = torch.cat(keys)
        return torch.stack(losses).mean(), torch.cat(representations)

    def _mixing_draws(self, images: int, role: int) -> MixingDraws | None:
        """Switch mixing on where it has begun, and draw for this process's share of ``images`` queries.

        Seeded by what all processes, and a resumed run, agree on. Image b of a process is number b W + rank
        of all, as samplers deal a batch out to W processes.
        """
        begun = self.mixing is not None and self.current_epoch >= self.mixing_start
        self.criterion.mixing = self.mixing if begun else None
        if self.mixing is None or not begun:
            return None
        where = layout()
        return self.mixing.draw(images, self._generator(2**31 + role)).rows(where.rank, where.world_size)

    def _keys(self, view: Any, role: int) -> Tensor:
        """Unit keys of the items of all processes, in the order of the ranks, shape ``(G, D)``."""
        where = layout()
        shuffle = torch.is_grad_enabled() and (where.world_size > 1 or self.chunk_size is not None)
        with torch.no_grad():
            if not shuffle:
                return gather_with_gradient(self._encode_keys(view))
            everyone = map_tensors(view, gather_with_gradient)
            order = torch.randperm(item_count(everyone), generator=self._generator(role))
            order = order.to(self.device, non_blocking=True)
            chosen = order.chunk(where.world_size)[where.rank]
            mine = map_tensors(everyone, lambda x: x[chosen])
            return gather_with_gradient(self._encode_keys(mine))[order.argsort()]

    def _generator(self, offset: int) -> torch.Generator:
        """Return a generator seeded by what all processes, and a resumed run, agree on."""
        if self._keys_seen is None:
            self._keys_seen = int(self.keys_seen)
        return torch.Generator().manual_seed(2 * self._keys_seen + offset)

    def _encode_keys(self, view: Any) -> Tensor:
        parts = [view] if self.chunk_size is None else split(view, self.chunk_size)
        return unit_rows(torch.cat([self.key_projection_head(self.key_backbone(part)) for part in parts]))

    @torch.no_grad()
    def _move_key_encoder(self) -> None:
        """Let the weights of the key encoder follow those that are trained."""
        for trained, key in (
            (self.backbone, self.key_backbone),
            (self.projection_head, self.key_projection_head),
        ):
            for q, k in zip(trained.parameters(), key.parameters(), strict=True):
                k.lerp_(q, 1 - self.momentum)

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        """Overwrite the oldest rows of the queue, a ring, by new keys ``(n, D)``."""
        size = len(self.queue)
        places = (self.keys_seen + torch.arange(len(keys), device=keys.device)) % size
        self.queue[places[-size:]] = keys[-size:].to(self.queue.dtype)  # of more than fit, the last
        self.keys_seen += len(keys)
        if self._keys_seen is not None:
            self._keys_seen += len(keys)

    def _warn_of_leak(self, devices: int) -> None:
        """Say so where keys are normalised together with their queries' images alone."""
        norms = [m for m in self.key_backbone.modules() if isinstance(m, _BatchNorm) and m.training]
        synchronised = any(isinstance(m, nn.SyncBatchNorm) for m in norms)
        if norms and self.chunk_size is None and (devices == 1 or synchronised):
            rank_zero_warn(
                "MoCo: batch norm sees all queries, and all keys, of a batch at once, which tells a query's "
                f"key from the queue: {'leave sync_batchnorm off, or ' * synchronised}set chunk_size to a "
                "part of the batch, such as 64"
            )

    def _projection_width(self) -> int:
        head = copy.deepcopy(self.projection_head).eval()  # a copy: no mode and no statistic changes
        like = next(self.projection_head.parameters(), torch.empty(0))
        with torch.no_grad():
            z: Tensor = head(torch.zeros(2, feature_dim(self.backbone), dtype=like.dtype, device=like.device))
        return z.shape[1]


def _forget_keys_seen(module: MoCo, _: object) -> None:
    """Let the count be read anew from what was loaded; a GPU is waited for then, and not in every step."""
    module._keys_seen = None
