"""A whole training step with NT-Xent and with MMCL by solver: the share that the loss takes.

    python benchmarks/bench_step.py [--device cuda] [--cases resnet18@32:256 resnet50@224:8] [--repeats 3]

A case is ``BACKBONE@PIXELS:IMAGES``; at 32 pixels a ResNet has the CIFAR stem. A step is forward, loss,
backward and SGD on random images, two views each. All losses take turns on one network. Prints a table and
writes ``step_<device>.{json,png}`` and the device's section of ``step.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import common  # first: it puts a clone's root on the path
import torch
from common import Target, milliseconds, number, ratio
from torch import Tensor, nn

from mmcl_lightning.losses import ContrastiveLoss, MMCLLoss, NTXentLoss
from mmcl_lightning.models import ProjectionHead, build_backbone, feature_dim
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Solver

SIMCLR = "SimCLR"
SOLVERS: tuple[Solver, ...] = (Inverse(), Exact(), ProjectedGradient())
CASES = {
    "cpu": ["resnet18@32:256", "resnet50@224:8"],
    "cuda": ["resnet18@32:256", "resnet18@32:1024", "resnet50@224:256"],
}
LOSS_REPEATS = 7


@dataclass(frozen=True)
class Case:
    """One network and batch."""

    backbone: str
    pixels: int
    images: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read ``BACKBONE@PIXELS:IMAGES``."""
        backbone, _, sizes = text.partition("@")
        pixels, _, images = sizes.partition(":")
        return cls(backbone, int(pixels), int(images))

    def __str__(self) -> str:
        return f"{self.backbone}@{self.pixels}:{self.images}"

    def network(self) -> nn.Module:
        """Backbone and the head of the paper's small-image runs, from a fixed seed."""
        torch.manual_seed(0)
        small = self.pixels <= 64 and self.backbone.startswith("resnet")
        backbone = build_backbone(self.backbone, cifar_stem=small)
        return nn.Sequential(backbone, ProjectionHead.cifar(feature_dim(backbone)))


class Step:
    """One network that is trained by several losses in turn.

    Args:
        case: Network and batch.
        device: Where to train.
        half: Whether network and head run under bfloat16 autocast; the losses leave it by themselves.
    """

    def __init__(self, case: Case, device: torch.device, half: bool):
        self.device, self.half = device, half
        self.network = case.network().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        images = torch.randn(2 * case.images, 3, case.pixels, case.pixels, device=device)
        self.images = images.contiguous(memory_format=torch.channels_last)

    def project(self) -> Sequence[Tensor]:
        """Projections of the two views, each ``(B, 128)``."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            return self.network(self.images).chunk(2)

    def __call__(self, criterion: ContrastiveLoss) -> None:
        """Take one step."""
        self.optimizer.zero_grad(set_to_none=True)
        criterion(*self.project()).backward()
        self.optimizer.step()


def loss_alone(criterion: ContrastiveLoss, views: Sequence[Tensor]) -> Callable[[], None]:
    """Forward and backward of the loss on given projections."""
    leaves = [view.detach().clone().requires_grad_() for view in views]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        criterion(*leaves).backward()

    return run


def measure(case: Case, device: torch.device, half: bool, repeats: int) -> dict[str, Any]:
    """Time steps and losses; seconds by name of the method."""
    criteria: dict[str, ContrastiveLoss] = {SIMCLR: NTXentLoss()}
    criteria |= {f"MMCL-{type(solver).__name__}": MMCLLoss(solver=solver) for solver in SOLVERS}
    step = Step(case, device, half)
    step(criteria[SIMCLR])  # warms the network up; the losses are warmed up below
    own = [view.detach() for view in step.project()]
    trained = [view.to(device) for view in common.projections(case.images)]
    record: dict[str, Any] = {"case": str(case), "precision": "bf16 autocast" if half else "float32"}
    for name, views in (("loss", own), ("loss_half_trained", trained)):
        sides = {key: loss_alone(criterion, views) for key, criterion in criteria.items()}
        for side in sides.values():
            side()
        record[name] = common.interleave(sides, dict.fromkeys(sides, LOSS_REPEATS), device)
    steps = {key: partial(step, criterion) for key, criterion in criteria.items()}
    if device.type == "cuda":
        for side in steps.values():
            side()
    record["step"] = common.interleave(steps, dict.fromkeys(steps, repeats), device)
    return record


def lines(record: dict[str, Any]) -> list[list[str]]:
    """Rows of the table, one per method."""
    found = []
    for name, times in record["step"].items():
        losses = [record[key][name] for key in ("loss", "loss_half_trained")]
        shares = [statistics.median(loss) / statistics.median(times) for loss in losses]
        row = [record["case"], record["precision"], name, *map(milliseconds, (times, *losses))]
        row += [f"{share:.2%}" for share in shares]
        against, _ = ratio(times, record["step"][SIMCLR])
        found.append([*row, number(against), f"{1 + extra(record, name):.3f}"])
    return found


def extra(record: dict[str, Any], name: str) -> float:
    """Time that a loss takes beyond NT-Xent on half-trained projections, in steps of SimCLR."""
    loss, plain = (statistics.median(record["loss_half_trained"][key]) for key in (name, SIMCLR))
    return (loss - plain) / statistics.median(record["step"][SIMCLR])


def targets(records: Sequence[dict[str, Any]]) -> list[Target]:
    """What was promised for ResNet-18 at 32 pixels with 256 images."""
    record = next((r for r in records if r["case"] == "resnet18@32:256"), None)
    found = []
    for name, bound in (("MMCL-Inverse", 1.02), ("MMCL-Exact", 1.10)):
        measured, remark = ratio(record["step"][name], record["step"][SIMCLR]) if record else (None, "")
        title = f"ResNet-18 at 32, B=256: {name} / SimCLR"
        found.append(Target(f"{title}, whole steps", bound, measured, remark))
        measured = 1 + extra(record, name) if record else None
        found.append(
            Target(f"{title}, from the losses alone", bound, measured, "less noisy: steps cancel out")
        )
    return found


NOTES = """Medians; ± is half the interquartile range. *Loss, own z*: forward and backward of the loss alone
on the network's projections after one step; *trained z*: on projections like those of a half-trained network.
The shares are these over the whole step. *Step ratio*: whole steps against SimCLR's. *From losses*: 1 + (loss
on trained z - NT-Xent there) / step of SimCLR, which the noise of the network's part does not reach.
"""
HEAD = ["case", "precision", "method", "step, ms", "loss, own z, ms", "loss, trained z, ms"]
HEAD += ["share, own z", "share, trained z", "step ratio", "from losses"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table, the numbers and the plot."""
    options = common.parser(__doc__)
    options.add_argument("--cases", nargs="+", metavar="BACKBONE@PIXELS:IMAGES")
    options.add_argument("--precision", choices=("float32", "bf16"), help="default: bf16 on CUDA")
    options.add_argument("--repeats", type=int, help="timed steps per loss: 3 on a CPU, 20 on CUDA")
    chosen = options.parse_args(arguments)
    device = torch.device(chosen.device)
    half = (chosen.precision or ("bf16" if device.type == "cuda" else "float32")) == "bf16"
    cases = ["conv4@32:16"] if chosen.quick else chosen.cases or CASES[chosen.device]
    repeats = chosen.repeats or (20 if device.type == "cuda" else 3)
    records, left_out = [], ""
    for case in map(Case.parse, cases):
        print(f"{case} ...", flush=True)
        try:
            records.append(measure(case, device, half, repeats))
        except torch.OutOfMemoryError:
            left_out += f"\n{case}: out of memory.\n"
    text = f"{NOTES}{left_out}\n{common.table(HEAD, [line for r in records for line in lines(r)])}"
    record = {"machine": common.machine(device), "notes": NOTES + left_out, "cases": records}
    print(common.write(chosen.out, "step", device, record, targets(records), text))
    plot(records, chosen.out / f"step_{device}.png")


def plot(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the share of the loss, one panel per case."""
    with common.figure(path, max(1, len(records))) as axes:
        for axis, record in zip(axes, records, strict=False):
            for name, times in record["loss_half_trained"].items():
                share = statistics.median(times) / statistics.median(record["step"][name])
                bar = axis.bar(name.removeprefix("MMCL-"), 100 * share)
                axis.bar_label(bar, fmt="%.2g %%")
            axis.set(title=f"{record['case']}, {record['precision']}", ylabel="share of the loss, %")


if __name__ == "__main__":
    main()
