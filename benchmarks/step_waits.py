"""Counts the waits of whole training steps for a device, on a machine that has none.

``bench_launches.py`` writes what is found here: what waits in a step of ``quickstart.yaml`` with all its
callbacks, and where, in steps that are logged and in the others.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import common  # first: it puts a clone's root on the path
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmcl_lightning.cli import main as mmcl
from mmcl_lightning.deferred import DeferredChecks

#: Where Lightning makes numbers of the tensors that were logged.
LIGHTNING_READS = "fabric/utilities/apply_func.py: to_item"
_PACKAGE = str(common.ROOT / "mmcl_lightning")
_TO_HOST = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__)
_NEW_ON_DEVICE = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


def as_on_a_gpu() -> Any:
    """Let checks be put off as on a GPU."""
    return mock.patch.object(DeferredChecks, "defers", staticmethod(lambda device: True))


class Waits(TorchDispatchMode):
    """Counts waits for tensors that would lie on the device, by the place in the code that waits.

    On the device lie the parameters, the batch, and whatever is computed from such a tensor. What a program
    keeps on the host, such as the step count of an optimizer, costs no wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()
        self._device: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used again

    def add(self, *parts: Any) -> None:
        """Say that these tensors lie on the device."""
        for leaf in tree_leaves(parts):
            if isinstance(leaf, Tensor):
                self._device[leaf.untyped_storage()._cdata] = leaf.untyped_storage()

    def holds(self, *parts: Any) -> bool:
        """Whether one of these tensors lies on the device."""
        leaves = [leaf for leaf in tree_leaves(parts) if isinstance(leaf, Tensor)]
        return any(leaf.untyped_storage()._cdata in self._device for leaf in leaves)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.holds(args, kwargs)
        if known and common.waits(func.overloadpacket.__name__, args):
            self.places[_place()] += 1
        result = func(*args, **(kwargs or {}))
        if known:
            self.add(result)
        return result


class Copies(TorchFunctionMode):
    """Counts copies to the host and from it, which the dispatcher does not see on a CPU.

    A number that is made a tensor of a named device is copied to it from memory that is not pinned: the host
    waits until that is done, and so for everything before it.
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TO_HOST and self.waits.holds(args[0]):
            self.waits.places[_place()] += 1
        result = func(*args, **kwargs)
        if func is Tensor.new_tensor or kwargs.get("device") is not None:
            if func in _NEW_ON_DEVICE:
                self.waits.places[_place()] += 1
            self.waits.add(result)
        return result


def _place() -> str:
    """File and function of the innermost code of this package, of Lightning or of an optimizer that runs."""
    frame = sys._getframe(2)
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith(_PACKAGE):
            return f"{path.removeprefix(_PACKAGE).lstrip('/')}: {name}"
        if "/lightning/" in path or "/torch/optim/" in path:
            return f"{'/'.join(Path(path).parts[-3:])}: {name}"
        frame = frame.f_back
    return "elsewhere"


PLACES: dict[str, Counter[str]] = {"not logged": Counter(), "logged": Counter()}
STEPS: Counter[str] = Counter()


class StepWaits(Callback):
    """Counts the waits of the steps between two log points, all callbacks and the loop included."""

    def __init__(self) -> None:
        self._open: contextlib.ExitStack | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Close the count of the step before, and open that of this one."""
        self.close()
        step = trainer.global_step + 1  # as it is called once the batch is done
        if step <= trainer.log_every_n_steps:  # what happens once in a run
            return
        kind = "not logged" if step % trainer.log_every_n_steps else "logged"
        STEPS[kind] += 1
        waits = Waits()
        waits.add(*pl_module.parameters(), *pl_module.buffers(), batch)
        self._open = contextlib.ExitStack()
        self._open.callback(lambda: PLACES[kind].update(waits.places))
        self._open.enter_context(waits)
        self._open.enter_context(Copies(waits))

    def close(self) -> None:
        """End the count that is open."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the count before the readouts."""
        self.close()


def training(quick: bool) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """Train by the recipe ``quickstart.yaml``; return waits by place, and steps, not logged and logged."""
    STEPS.clear()
    for counted in PLACES.values():
        counted.clear()
    size = 64 if quick else 512
    with tempfile.TemporaryDirectory() as folder, as_on_a_gpu():
        mmcl(
            [
                *("fit", "--config", str(common.ROOT / "configs" / "quickstart.yaml")),
                *("--trainer.callbacks+=step_waits.StepWaits", f"--data.train_size={12 * size // 8}"),
                *(f"--data.test_size={size // 4}", f"--data.batch_size={size // 8}", "--data.num_workers=0"),
                *("--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--readouts.support_vectors=null"),
                "--trainer.log_every_n_steps=5",
                f"--trainer.logger.save_dir={folder}",
            ]
        )
    return PLACES, dict(STEPS)
