"""On a CPU a step that does not fit into memory is ended by the system, without a word."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from mmcl_lightning.batches import views_of

__all__ = ["MemoryCheck", "activation_bytes", "available_bytes"]


class MemoryCheck(Callback):
    """Warn before the first step of a pretraining on a CPU that will need more memory than is free."""

    def __init__(self) -> None:
        self._checked = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Compare what a pass keeps for its gradients with what is free, once in a run."""
        checked, self._checked = self._checked, True
        free = available_bytes()
        if checked or free is None or pl_module.device.type != "cpu":
            return
        backbone = getattr(pl_module, "backbone", None)
        if not isinstance(backbone, nn.Module) or not hasattr(pl_module, "chunk_size"):  # no pretraining
            return
        views = views_of(batch)
        if not isinstance(views[0], Tensor):
            return
        with trainer.precision_plugin.forward_context():
            few = activation_bytes(backbone, views[0][:2])
        passed = 1 if getattr(pl_module, "symmetric", None) is False else len(views)  # MoCo's keys need none
        images = passed * min(len(views[0]), getattr(pl_module, "chunk_size", None) or len(views[0]))
        needed = few / len(views[0][:2]) * images
        if needed > 0.8 * free:
            rank_zero_warn(
                f"a step will keep about {needed / 1e9:.0f} GB of the network for the gradients of {images} "
                f"views, and {free / 1e9:.0f} GB of memory are free: the system may end the run without a "
                "word. Give a smaller --data.batch_size, --data.image_size or network, such as "
                "--model.backbone conv4; or --model.chunk_size 16, which passes a batch in parts; or train "
                "on a GPU"
            )


def activation_bytes(network: nn.Module, images: Tensor) -> int:
    """Return what a pass keeps in memory for its gradients, without its weights; 0 where it cannot be told.

    Args:
        network: A backbone, which is left as it is.
        images: A few images, ``(n, C, H, W)``, whose activations are counted together.
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    try:
        trial = copy.deepcopy(network)  # batch norm and counters move on
        with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            trial(images)
    except Exception:  # a network of somebody's own, which may not take two images: the step itself will tell
        return 0
    weights = {part.untyped_storage()._cdata for part in (*trial.parameters(), *trial.buffers())}
    return sum(size for storage, size in kept.items() if storage not in weights)


def available_bytes() -> int | None:
    """Return how much memory is free or can be freed, None where the system does not say it in this way."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
