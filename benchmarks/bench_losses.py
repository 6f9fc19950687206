"""What each loss costs: time beside NT-Xent, share of a small training step, and launches on a GPU.

    python benchmarks/bench_losses.py [--device cuda] [--images 256] [--repeats 15]

Time is forward and backward on projections like those of a half-trained network, 128 dimensions, every view
scored once. Launches and waits are counted by torch's dispatcher and are the same on a CPU and on a GPU: a
launch is an operation that computes something, a wait one for which the host needs a value from the device.
Prints a table and writes ``losses_<device>.json`` and the device's section of ``losses.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import common  # first: it puts a clone's root on the path
import torch
from bench_step import Case, Step, loss_alone
from common import count, milliseconds, number, ratio

from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import (
    ContrastiveLoss,
    DecoupledLoss,
    HCLLoss,
    MMCLLoss,
    Near,
    NTXentLoss,
    WeightedContrastiveLoss,
)
from mmcl_lightning.svm import Exact

PLAIN = "NT-Xent"
LOSSES: dict[str, Callable[[], ContrastiveLoss]] = {
    PLAIN: partial(NTXentLoss, 0.2),
    "Decoupled": partial(DecoupledLoss, 0.2),
    "HCL": partial(HCLLoss, 0.5, 0.1),
    "Near, log": partial(WeightedContrastiveLoss, Near(5.0), "log", 0.2),
    "MMCL log, Inverse": partial(MMCLLoss, form="log", reg=1.0, symmetric=True),
    "MMCL nce, Inverse": partial(MMCLLoss, form="nce", reg=1.0, symmetric=True),
    "MMCL log, Exact": partial(MMCLLoss, solver=Exact(), form="log", reg=1.0, symmetric=True),
    "MMCL log, Exact fixed": partial(
        MMCLLoss, solver=Exact(path="fixed"), form="log", reg=1.0, symmetric=True
    ),
    "MMCL paper, Inverse": partial(MMCLLoss, RBF(1.0), symmetric=True),
    "MMCL paper, Exact": partial(MMCLLoss, RBF(1.0), Exact(), symmetric=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=256)
    options.add_argument("--repeats", type=int, default=15)
    chosen = options.parse_args(arguments)
    device = torch.device(chosen.device)
    images, repeats = (16, 3) if chosen.quick else (chosen.images, chosen.repeats)
    views = [view.to(device) for view in common.projections(images)]
    losses = {name: build() for name, build in LOSSES.items()}
    sides = {name: loss_alone(loss, views) for name, loss in losses.items()}
    for side in sides.values():
        side()
    counts = {name: count(side) for name, side in sides.items()}
    times = common.interleave(sides, dict.fromkeys(sides, repeats), device)
    step = Step(Case("conv4", 32, images), device, half=True)
    step(losses[PLAIN])
    whole = common.interleave(
        {"step": partial(step, losses[PLAIN])}, {"step": 3 if chosen.quick else 7}, device
    )
    network = statistics.median(whole["step"]) - statistics.median(times[PLAIN])
    rows = []
    for name, taken in times.items():
        against, spread = ratio(taken, times[PLAIN])
        share = statistics.median(taken) / (network + statistics.median(taken))
        found = counts[name]
        cells = [name, milliseconds(taken), f"{number(against)} ({spread})", f"{share:.1%}"]
        rows.append([*cells, str(found.launches), str(found.waits)])
    head = ["loss", "forward and backward, ms", "over NT-Xent", "share of a step", "launches", "waits"]
    notes = (
        f"B = {images}, {2 * (images - 1)} negatives per anchor; medians, ± is half the interquartile range. "
        f"*Share of a step*: of `conv4` at 32 pixels under bfloat16 autocast, {number(1e3 * network)} ms "
        "without the loss.\n"
    )
    record = {
        "machine": common.machine(device),
        "images": images,
        "network_seconds": network,
        "seconds": times,
        "launches": {name: [found.launches, found.waits] for name, found in counts.items()},
    }
    print(common.write(chosen.out, "losses", device, record, [], f"{notes}\n{common.table(head, rows)}"))


if __name__ == "__main__":
    main()
