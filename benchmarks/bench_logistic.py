"""Time of the logistic path of linear transfer beside scikit-learn's, on the same features.

    python benchmarks/bench_logistic.py [--rows 8000] [--dim 2048] [--classes 100] [--Cs 5]

Prints a table and writes ``transfer_linear_<device>.json`` and its section of ``transfer_linear.md``. Both
sides fit one model after the other from weak to strong penalty, each from where the last one ended, by the
published stopping rule: at most 100 iterations, a gradient of 1e-4 of the sum of the losses, in float64 on
one thread. scikit-learn divides by the number of rows, so its ``tol`` is 1e-4 over it; its relative
decrease is fixed at 1.4e-14, where the published one is 2.2e-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common  # first: it puts a clone's root on the path
import torch
from common import Target, number, seconds
from torch import Tensor

from mmcl_lightning.metrics import logistic_path
from mmcl_lightning.modules import LOGISTIC_PROTOCOLS

try:
    from sklearn.linear_model import LogisticRegression
except ImportError:
    LogisticRegression = None

MAX_ITER = 100


def features(rows: int, dim: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw features ``(rows, dim)`` of overlapping classes, as after a ReLU, and labels ``(rows,)``."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centres = torch.randn(classes, dim, generator=generator)
    noise = torch.randn(rows, dim, generator=generator) * 6
    return (centres[labels] + noise).relu_() * 0.1, labels


def ours(x: Tensor, y: Tensor, classes: int, Cs: Sequence[float], found: list[Any]) -> None:
    """Fit the path, and keep iterations and scores of each C."""
    for C, model in logistic_path(x, y, classes, Cs, max_iter=MAX_ITER):
        found.append((C, model.steps, model.scores(x).softmax(1)))


def sklearn(x: Tensor, y: Tensor, Cs: Sequence[float], found: list[Any]) -> None:
    """Do the same by scikit-learn."""
    model = LogisticRegression(tol=1e-4 / len(x), max_iter=MAX_ITER, warm_start=True)
    rows, labels = x.double().numpy(), y.numpy()
    for C in Cs:
        model.set_params(C=C).fit(rows, labels)
        found.append((C, int(model.n_iter_[0]), torch.from_numpy(model.predict_proba(rows))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = common.parser(__doc__)
    for name, default in (("rows", 8000), ("dim", 2048), ("classes", 100), ("Cs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    sizes = [options.rows, options.dim, options.classes]
    rows, dim, classes = [60, 8, 3] if options.quick else sizes
    torch.set_num_threads(1)
    device = torch.device(options.device)
    x, y = (part.to(device) for part in features(rows, dim, classes))
    every = LOGISTIC_PROTOCOLS["transfer"].Cs
    Cs = [every[round(step * (len(every) - 1) / max(1, options.Cs - 1))] for step in range(options.Cs)]
    mine: list[Any] = []
    theirs: list[Any] = []
    times = {"ours": seconds(lambda: ours(x, y, classes, Cs, mine), device)}
    if LogisticRegression is not None:
        times["scikit-learn"] = seconds(lambda: sklearn(x.cpu(), y.cpu(), Cs, theirs), device)
    print(report(options.out, device, (rows, dim, classes), times, mine, theirs))


def report(
    out: Path,
    device: torch.device,
    sizes: tuple[int, int, int],
    times: dict[str, float],
    mine: list[Any],
    theirs: list[Any],
) -> str:
    """Write the record and its section, and return the section."""
    found = [
        {
            "C": C, "ours": steps, "scikit-learn": theirs[at][1] if theirs else None,
            "difference": float((scores.cpu() - theirs[at][2]).abs().max()) if theirs else None,
        }
        for at, (C, steps, scores) in enumerate(mine)
    ]  # fmt: skip
    total = {"ours": sum(row["ours"] for row in found)}
    if theirs:
        total["scikit-learn"] = sum(row["scikit-learn"] for row in found)
    text = (
        f"Features {sizes[0]:,} x {sizes[1]:,}, {sizes[2]} classes, {len(found)} of the 45 values of C, one "
        "call each.\n\n"
    )
    head = ["path", "time, s", "iterations", "s / iteration"]
    text += common.table(
        head, [[n, number(t), str(total[n]), number(t / max(1, total[n]))] for n, t in times.items()]
    )
    text += "\n" + common.table(
        ["C", "iterations, ours", "scikit-learn", "largest difference of a probability"],
        [[f"{r['C']:g}", str(r["ours"]), str(r["scikit-learn"]), number(r["difference"])] for r in found],
    )
    measured = times["ours"] / times["scikit-learn"] if theirs else None
    targets = [Target("ours / scikit-learn, seconds", 1.0, measured, "one call")]
    machine = common.machine(device)
    record = {"machine": machine, "sizes": sizes, "seconds": times, "rows": found}
    return common.write(out, "transfer_linear", device, record, targets, text)


if __name__ == "__main__":
    main()
