"""What the loss takes of memory and time when images and GPUs grow: arithmetic from counts.

    python benchmarks/scaling.py [--memory 80 --bandwidth 3.35 --flops 33.5 --network 50 --launch 10]

Runs forward and backward of each loss as one of several processes does, on tensors that have shapes and no
values, and counts what torch's dispatcher sees: bytes that live at once, bytes that operations read and
write, and floating-point operations. No time is measured: times are these counts over the rates that are
given. Prints the tables and writes them into ``docs/scaling.md``. A minute, on any machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import common  # first: it puts a clone's root on the path
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.distributed import Layout
from mmcl_lightning.losses import InfoNCELoss, MMCLLoss, NTXentLoss, base
from mmcl_lightning.svm import Exact, Inverse

DIM, QUEUE = 128, 65_536
IMAGES, GPUS = (256, 1024, 4096, 8192, 16_384, 32_768), (1, 8, 64)
LOSSES: dict[str, Callable[[], Any]] = {
    "NT-Xent": NTXentLoss,
    "MMCL, Inverse": partial(MMCLLoss, solver=Inverse()),
    "MMCL, Inverse, negatives: one": partial(MMCLLoss, solver=Inverse(), negatives="one"),
    "MMCL, Exact": partial(MMCLLoss, solver=Exact(path="fixed")),
    "MoCo, queue of 65,536": InfoNCELoss,
}
_PICKS = ("gather", "index", "index_select", "embedding", "scatter", "scatter_")  # read what they return
_FACTORS = {"linalg_cholesky_ex": 1 / 3, "cholesky_inverse": 2 / 3}  # of n^3 operations


@dataclass(frozen=True)
class Rates:
    """Of a GPU: memory in GB, bandwidth in TB/s, TFLOP/s, network in GB/s, a launch in microseconds."""

    memory: float = 80
    bandwidth: float = 3.35
    flops: float = 33.5
    network: float = 50
    launch: float = 10


class Work(TorchDispatchMode):
    """Counts launches, bytes read and written, and floating-point operations."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.traffic = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace != "aten" or func.is_view or name in common.NO_LAUNCH:
            return result
        self.launches += 1
        written = _bytes(result)
        self.traffic += 2 * written if name in _PICKS else written + _bytes((args, kwargs))
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        if name in _FACTORS:
            self.flops += int(_FACTORS[name] * args[0].shape[-1] ** 3)
        return result


def _bytes(parts: Any) -> int:
    """Bytes of tensors; of one that is expanded only those that there are."""
    leaves = [leaf for leaf in tree_leaves(parts) if isinstance(leaf, Tensor)]
    return sum(min(leaf.numel() * leaf.itemsize, leaf.untyped_storage().nbytes()) for leaf in leaves)


@dataclass(frozen=True)
class Counts:
    """What one of the processes does for a batch."""

    bytes: int
    launches: int
    traffic: int
    flops: int
    sent: int

    def seconds(self, rates: Rates) -> float:
        """Time of the host that launches or of the device, whichever is longer, and of the network."""
        device = self.flops / (rates.flops * 1e12) + self.traffic / (rates.bandwidth * 1e12)
        return max(rates.launch * 1e-6 * self.launches, device) + self.sent / (rates.network * 1e9)


def count(name: str, images: int, gpus: int) -> Counts:
    """Count forward and backward of a loss in one of ``gpus`` processes that share ``images``."""
    work, memory = Work(), common.Memory()
    as_on_a_gpu = mock.patch.object(DeferredChecks, "defers", staticmethod(lambda device: True))
    dense = mock.patch("mmcl_lightning.svm.problem._MANY", math.inf)  # the sparse product is for CPUs
    gathered = mock.patch.multiple(
        base,
        layout=lambda: Layout(0, gpus),
        gather_with_gradient=lambda x: x.new_empty(images, 2 * DIM).requires_grad_(),
    )
    with as_on_a_gpu, dense, gathered, FakeTensorMode():
        z0, z1 = (torch.empty(images // gpus, DIM, requires_grad=True) for _ in range(2))
        loss, rest = LOSSES[name](), ()
        if queued := isinstance(loss, InfoNCELoss):
            z1, rest = z1.detach(), (torch.empty(QUEUE, DIM),)
        with memory, work:
            loss(z0, z1, *rest).backward()
    # All-gather of both views, and an all-reduce of their gradients, which sends each number twice.
    sent = 0 if queued else 3 * images * 2 * DIM * 4 * (gpus - 1) // gpus
    return Counts(memory.peak, work.launches, work.traffic, work.flops, sent)


def tables(rates: Rates, images: tuple[int, ...] = IMAGES, gpus: tuple[int, ...] = GPUS) -> str:
    """All losses, numbers of images and of GPUs; and up to where they fit."""
    head = ["images of all GPUs", *(f"{count} GPU{'s' * (count > 1)}: GB, ms" for count in gpus)]
    text = (
        f"Memory {rates.memory:g} GB of {rates.bandwidth:g} TB/s, {rates.flops:g} TFLOP/s in float32, "
        f"network {rates.network:g} GB/s for each GPU, {rates.launch:g} us a launch; {DIM} numbers in z.\n"
    )
    fitting = []
    for name in LOSSES:
        found = {(size, many): count(name, size, many) for size in images for many in gpus}
        rows = [[f"{size:,}", *(_cell(found[size, many], rates) for many in gpus)] for size in images]
        text += f"\n### {name}\n\n{common.table(head, rows)}"
        fitting.append([name, *(_most(found, many, images, rates) for many in gpus)])
    head = ["loss", *(f"{count} GPU{'s' * (count > 1)}" for count in gpus)]
    return f"{text}\n### Most images whose loss takes half of the memory\n\n{common.table(head, fitting)}"


def _cell(counts: Counts, rates: Rates) -> str:
    shown = f"{common.number(counts.bytes / 1e9)}, {common.number(1e3 * counts.seconds(rates))}"
    return shown if counts.bytes <= rates.memory * 1e9 else f"*{shown}*"


def _most(found: dict[tuple[int, int], Counts], gpus: int, images: tuple[int, ...], rates: Rates) -> str:
    """The largest number of images of the table that fits."""
    fits = [size for size in images if found[size, gpus].bytes <= rates.memory * 1e9 / 2]
    more = " or more" if fits and fits[-1] == images[-1] else ""
    return f"{fits[-1]:,}{more}" if fits else f"fewer than {images[0]:,}"


def main(args: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    for name, default in vars(Rates()).items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--out", type=Path, default=common.ROOT / "docs" / "scaling.md")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes alone")
    options = vars(parser.parse_args(args))
    page, quick = options.pop("out"), options.pop("quick")
    text = tables(Rates(**options), *((IMAGES[:1], GPUS[:2]) if quick else ()))
    print(text)
    before, begin, rest = page.read_text().partition("<!-- counted -->\n")
    _, end, after = rest.partition("<!-- end of counted -->\n")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()
