"""What the width of the RBF kernel does to the three solvers, and what the median heuristic chooses.

    python benchmarks/bench_bandwidth.py

Prints a Markdown table and writes it to ``docs/results/bandwidth.md``. Seconds on a CPU.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from common import projections

from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Solver

IMAGES = 256
SOLVERS: dict[str, Solver] = {
    "Inverse": Inverse(),
    "Exact": Exact(),
    "ProjectedGradient": ProjectedGradient(),
    "published PGD": ProjectedGradient.reference(),
}


def row(regime: str, gamma: float | str, name: str, solver: Solver) -> str:
    """Solve one batch and describe it."""
    z0, z1 = projections(IMAGES, regime)
    loss = MMCLLoss(RBF(gamma=gamma), solver, C=float("inf"))
    loss(z0, z1)
    stats = {key: value.item() for key, value in loss.last_stats.items()}
    used = RBF(gamma=gamma).fit(torch.cat([z0, z1])).gamma
    shown = f"median: {used:.2f}" if gamma == "median" else f"{gamma:g}"
    return (
        f"| {regime} | {shown} | {name} | {stats['sv_fraction']:.3f} | {stats['alpha_max']:.3g} | "
        f"{stats['margin']:.3f} | {stats['duality_gap']:.1e} | {stats['steps']:.0f} |"
    )


def table() -> str:
    """All widths, regimes and solvers."""
    head = "| projections | gamma | solver | support vectors | largest alpha | margin | gap | steps |"
    lines = [head, "|---" * 8 + "|"]
    for regime in ("untrained", "half-trained"):
        for gamma in (0.1, 1.0, 10.0, "median"):
            lines += map(functools.partial(row, regime, gamma), SOLVERS, SOLVERS.values())
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "results")
    options = parser.parse_args(args)
    text = table()
    print(text)
    intro = (
        f"# Width of the kernel\n\n`python benchmarks/bench_bandwidth.py`: {IMAGES} images, both views, "
        "reg 0.1, no upper bound, one batch of drawn projections (`benchmarks/common.py`). *Gap*: mean bound "
        "on the relative distance from the optimal objective.\n\n"
    )
    (options.out / "bandwidth.md").write_text(intro + text + "\n")


if __name__ == "__main__":
    main()
