"""Time and memory of the k-NN readout beside lightly and scikit-learn, on the same features.

    python benchmarks/bench_knn.py [--bank 50000] [--queries 10000] [--dim 2048] [--out docs/results]

Prints a table and writes ``knn_<device>.{md,json}``. Each method goes from the same features, as a network
gives them, to a class for every query: it normalises both sides, finds the k most similar rows of the bank,
and lets them vote with weights exp(s / T).
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common  # first: it puts a clone's root on the path
import torch
from common import Target, milliseconds, number, ratio
from torch import Tensor
from torch.nn import functional as F

from mmcl_lightning.metrics import knn_predict

try:
    from lightly.utils.benchmarking.knn import knn_predict as lightly_predict
except ImportError:
    lightly_predict = None
try:
    import numpy as np
    from sklearn.neighbors import KNeighborsClassifier
except ImportError:
    KNeighborsClassifier = None

OURS, HALF, LIGHTLY, SKLEARN = "ours", "ours, bank in float16", "lightly", "scikit-learn"
CHUNK = 1024  # queries at a time, ours and lightly's
CLASSES = 10


def features(rows: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw features ``(rows, dim)`` of overlapping classes, as after a ReLU, and labels ``(rows,)``."""
    centres = torch.randn(CLASSES, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    found = torch.randn(rows, dim, generator=generator).mul_(8.0)
    for start in range(0, rows, 4096):
        found[start : start + 4096] += centres[labels[start : start + 4096]]
    return found.relu_(), labels


def lightly(query: Tensor, bank: Tensor, labels: Tensor, k: int, T: float) -> Tensor:
    """Predict as lightly's k-NN evaluation does, in chunks; it takes the bank as ``(dim, rows)``."""
    turned = F.normalize(bank, dim=1).T
    chunks = F.normalize(query, dim=1).split(CHUNK)
    return torch.cat([lightly_predict(chunk, turned, labels, CLASSES, k, T)[:, 0] for chunk in chunks])


def sklearn(query: Tensor, bank: Tensor, labels: Tensor, k: int, T: float) -> Tensor:
    """Predict by brute force; cosine distance d is 1 - s."""
    model = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / T), metric="cosine", algorithm="brute")
    model.fit(bank.numpy(), labels.numpy())
    return torch.from_numpy(model.predict(query.numpy()))


def methods(query: Tensor, bank: Tensor, labels: Tensor, k: int, T: float) -> dict[str, Callable[[], Tensor]]:
    """Every method that is installed, by name."""
    options = {"k": k, "temperature": T}
    sides: dict[str, Callable[[], Tensor]] = {
        OURS: partial(knn_predict, query, bank, labels, CLASSES, **options),
        HALF: partial(knn_predict, query, bank.half(), labels, CLASSES, **options),
    }
    if lightly_predict is not None:
        sides[LIGHTLY] = partial(lightly, query, bank, labels, k, T)
    if KNeighborsClassifier is not None and bank.device.type == "cpu":
        sides[SKLEARN] = partial(sklearn, query, bank, labels, k, T)
    return sides


def resident() -> int | None:
    """Bytes that the process holds now; None where Linux does not tell."""
    try:
        return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    except OSError:
        return None


def memory(side: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, int | None]:
    """Call a method once; return its answer, and the most memory it held beyond what there was before."""
    gc.collect()
    found: list[Tensor] = []
    if device.type == "cuda":
        peak = common.peak_bytes(lambda: found.append(side()), device)
        return found[0], peak
    before = resident()
    after = common.resident_peak(lambda: found.append(side()))
    return found[0], None if before is None or after is None else after - before


def lines(record: dict[str, Any]) -> list[list[str]]:
    """Rows of the table, one per method."""
    found = []
    for name, row in record["methods"].items():
        against, _ = ratio(row["seconds"], record["methods"][OURS]["seconds"])
        held = None if row["bytes"] is None else row["bytes"] / 1e6
        cells = [milliseconds(row["seconds"]), number(against), number(held)]
        found.append([name, *cells, f"{row['agreement']:.4%}", f"{row['accuracy']:.3f}"])
    return found


def targets(record: dict[str, Any]) -> list[Target]:
    """What was promised: not slower than the fastest of the others."""
    others = {name: row["seconds"] for name, row in record["methods"].items() if name in (LIGHTLY, SKLEARN)}
    measured, remark = None, "neither lightly nor scikit-learn is installed"
    if others:
        best = min(others, key=lambda name: statistics.median(others[name]))
        measured, spread = ratio(record["methods"][OURS]["seconds"], others[best])
        remark = f"against {best}; {spread}"
    title = f"bank {record['bank']}, {record['queries']} queries, {record['dim']} features"
    return [Target(f"{title}: ours / fastest other", 1.0, measured, remark)]


NOTES = """k = {k}, T = {T:g}, cosine, {classes} classes, {chunk} queries at a time, but for scikit-learn.
Medians of {repeats} calls, taken in turn; ± is half the interquartile range. *Memory*: most that the process
held during a call beyond the features themselves. *Agreement*: share of the queries that get the same class
as from ours. The features are drawn, so the accuracy only says that votes are counted.
"""
HEAD = ["method", "time, ms", "time / ours", "memory, MB", "agreement", "accuracy"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    for name, default in (("bank", 50_000), ("queries", 10_000), ("dim", 2048), ("k", 200), ("repeats", 3)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--temperature", type=float, default=0.1)
    chosen = options.parse_args(arguments)
    if chosen.quick:
        chosen.bank, chosen.queries, chosen.dim, chosen.k, chosen.repeats = 400, 60, 32, 20, 2
    device = torch.device(chosen.device)
    query, targets_of_query = (x.to(device) for x in features(chosen.queries, chosen.dim, seed=1))
    bank, labels = (x.to(device) for x in features(chosen.bank, chosen.dim, seed=0))
    sides = methods(query, bank, labels, chosen.k, chosen.temperature)
    record: dict[str, Any] = {"machine": common.machine(device), **vars(chosen), "methods": {}}
    record |= {"out": None, "chunk": CHUNK, "classes": CLASSES}
    answers = {}
    for name, side in sides.items():
        print(f"{name} ...", flush=True)
        answers[name], held = memory(side, device)  # also the warm-up
        row = {"bytes": held, "agreement": (answers[name] == answers[OURS]).double().mean().item()}
        row["accuracy"] = (answers[name] == targets_of_query).double().mean().item()
        record["methods"][name] = row
    for name, times in common.interleave(sides, dict.fromkeys(sides, chosen.repeats), device).items():
        record["methods"][name]["seconds"] = times
    notes = NOTES.format(
        k=chosen.k, T=chosen.temperature, classes=CLASSES, chunk=CHUNK, repeats=chosen.repeats
    )
    text = f"{notes}\n{common.table(HEAD, lines(record))}"
    print(common.write(chosen.out, f"knn_{device}", record, targets(record), text))


if __name__ == "__main__":
    main()
