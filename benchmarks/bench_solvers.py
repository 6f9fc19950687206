"""Time, memory and exactness of every solver, beside the dense form as published and NT-Xent.

    python benchmarks/bench_solvers.py [--sizes 64,128,...,4096] [--device cuda] [--out docs/results]

Prints a table and writes ``solvers_<device>.{json,png}`` and the device's section of ``solvers.md``.
*Loss* is forward and backward of the loss on given projections; *solve* goes from a given kernel matrix to
alpha, for the dense form too. Each is the median of several warmed-up calls, taken in turn with those of the
other methods.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import common  # first: it puts a clone's root on the path
import torch
from common import Target, milliseconds, number, ratio
from torch import Tensor

from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import MMCLLoss, NTXentLoss
from mmcl_lightning.svm import Exact, Inverse, MaxMarginDual, ProjectedGradient, Solver, max_margin_dual

try:
    from lightly.loss import NTXentLoss as LightlyNTXent
except ImportError:
    LightlyNTXent = None

NTXENT, LIGHTLY = "NT-Xent", "NT-Xent, lightly"
INVERSE, EXACT = "Inverse", "Exact"
SOLVERS: dict[str, Solver] = {
    INVERSE: Inverse(),
    EXACT: Exact(),
    "ProjectedGradient": ProjectedGradient(),
    "ProjectedGradient, published rule": ProjectedGradient.reference(),
}
DENSE_INVERSE, DENSE_GRADIENT = "dense Inverse", "dense gradient, 1000 steps"
DENSE_STEPS = 50  # timed; 1000 take 20 times as long, see the check in `linearity`
C, REG = 100.0, 0.1


@dataclass(frozen=True)
class Limits:
    """Largest batch of what would otherwise take too long or not fit."""

    dense: int
    float64: int
    gradient: int
    solve: int
    optimum: int
    untrained: int
    one_view: int
    path: str  # of Exact, the one that is not taken by itself
    other_path: int
    repeats: int = 9
    budget: float = 2.0  # seconds for the timed calls of one method in one setting
    once: float = 6.0  # seconds of a first call above which there is no other


LIMITS = {
    "cpu": Limits(256, 512, 512, 1024, 512, 256, 2048, "fixed", 1024),
    "cuda": Limits(512, 1024, 2048, 2048, 1024, 512, 4096, "adaptive", 2048, repeats=15),
}


@dataclass(frozen=True)
class Setting:
    """One batch that all methods meet."""

    B: int
    dtype: str = "float32"
    negatives: str = "both"
    regime: str = "half-trained"

    def views(self, device: torch.device) -> list[Tensor]:
        """Projections of two views, each ``(B, 128)``, the same numbers in every dtype."""
        return [v.to(device, getattr(torch, self.dtype)) for v in common.projections(self.B, self.regime)]


@dataclass
class Row:
    """What one method did in one setting; ``None`` for what was not measured."""

    setting: Setting
    method: str
    loss: list[float] = field(default_factory=list)
    solve: list[float] = field(default_factory=list)
    bytes: int | None = None
    resident: int | None = None
    steps: float | None = None
    kkt: float | None = None
    gap: float | None = None
    single: float | None = None  # relative error of float32 against float64


def settings(sizes: Sequence[int], limits: Limits) -> list[Setting]:
    """Batches to measure, in order."""
    single = [Setting(B) for B in sizes]
    single += [Setting(B, negatives="one") for B in sizes if limits.one_view >= B]
    double = [Setting(B, "float64") for B in sizes if limits.float64 >= B]
    double += [Setting(B, "float64", negatives="one") for B in sizes if limits.float64 >= B]
    return single + double + [Setting(B, regime="untrained") for B in sizes if limits.untrained >= B]


def ours(B: int, limits: Limits, gradient: int) -> dict[str, Solver]:
    """Our solvers by name, without projected gradient and the other path of Exact above their limits."""
    found = {name: s for name, s in SOLVERS.items() if gradient >= B or not isinstance(s, ProjectedGradient)}
    if limits.other_path >= B:
        found[other(limits)] = Exact(path=limits.path)  # type: ignore[arg-type]
    return found


def other(limits: Limits) -> str:
    """Name of Exact on the path that it does not take by itself on this device."""
    return f"{EXACT}, {limits.path} path"


def criteria(setting: Setting, limits: Limits) -> dict[str, Any]:
    """Losses to time, by name of the method."""
    result: dict[str, Any] = {NTXENT: NTXentLoss()}
    if LightlyNTXent is not None:
        result[LIGHTLY] = LightlyNTXent(temperature=0.5)
    for name, solver in ours(setting.B, limits, limits.gradient).items():
        result[name] = MMCLLoss(solver=solver, C=C, reg=REG, negatives=setting.negatives)
    return result


def measure(setting: Setting, limits: Limits, device: torch.device) -> list[Row]:
    """Measure all methods in one setting."""
    views = [view.requires_grad_() for view in setting.views(device)]
    optimum = best(replace(setting, dtype="float64"), device) if limits.optimum >= setting.B else None
    rows, losses, repeats = {}, {}, {}
    for name, criterion in criteria(setting, limits).items():
        rows[name], losses[name] = Row(setting, name), partial(backward, criterion, views)
        first = watch(rows[name], losses[name], device)  # also the warm-up
        if isinstance(criterion, MMCLLoss):
            judge(rows[name], criterion, optimum)
            criterion.last_duals = ()  # not beside those of the next method
        once = first > limits.once  # too long to call again; counting bytes costs microseconds per call
        rows[name].loss, repeats[name] = ([first], 0) if once else ([], rounds(first, limits))
    for name, times in common.interleave(losses, repeats, device).items():
        rows[name].loss += times
    if limits.solve >= setting.B:
        solves = solve_sides(setting, limits, device)
        repeats = {name: rounds(common.seconds(solve, device), limits) for name, solve in solves.items()}
        for name, times in common.interleave(solves, repeats, device).items():
            scale = 1000 / DENSE_STEPS if name == DENSE_GRADIENT else 1
            rows.setdefault(name, Row(setting, name)).solve = [scale * time for time in times]
        if DENSE_INVERSE in rows:
            rows[DENSE_INVERSE].bytes = common.peak_bytes(solves[DENSE_INVERSE], device)
    return list(rows.values())


def backward(criterion: Any, views: list[Tensor]) -> None:
    """Forward and backward of a loss."""
    for view in views:
        view.grad = None
    criterion(*views).backward()


def watch(row: Row, loss: Callable[[], object], device: torch.device) -> float:
    """Note the memory of one call and return its seconds."""
    times: list[float] = []

    def tracked() -> None:
        row.bytes = common.peak_bytes(lambda: times.append(common.seconds(loss, device)), device)

    row.resident = common.resident_peak(tracked)
    return times[0]


def rounds(time: float, limits: Limits) -> int:
    """How many calls of ``time`` seconds there is time for; three at least, unless they are long."""
    return max(3 if time < 2 * limits.budget else 1, min(limits.repeats, int(limits.budget / time)))


@functools.cache
def best(setting: Setting, device: torch.device) -> tuple[MaxMarginDual, Tensor, Tensor]:
    """Return the duals in float64, their optimal values, ``(B,)``, and the clipped inverse, ``(B, n)``."""
    gram, excluded = duals(setting, device)
    problem = max_margin_dual(gram, excluded[:, 0], excluded[:, 1:], C=C, reg=REG)
    alpha = Exact(tol=1e-10, max_steps=1000)(problem).alpha
    return problem, problem.objective(alpha), Inverse()(problem).alpha


def judge(row: Row, criterion: MMCLLoss, optimum: tuple[MaxMarginDual, Tensor, Tensor] | None) -> None:
    """Note how good the alpha of the last call is, the worst problem of the batch."""
    problem, solution = criterion.last_duals[0].problem, criterion.last_duals[0].solution
    assert problem is not None and solution is not None  # noqa: PT018
    row.steps = solution.steps.double().mean().item()
    if optimum is None:
        row.kkt = problem.kkt_residual(solution.alpha).max().item()
        return
    problem, value, inverse = optimum
    alpha = solution.alpha.double()
    row.kkt = problem.kkt_residual(alpha).max().item()
    row.gap = ((problem.objective(alpha) - value) / value.abs()).max().item()
    if isinstance(criterion.solver, Inverse):
        row.single = ((alpha - inverse).abs().amax(1) / inverse.amax(1)).max().item()


def duals(setting: Setting, device: torch.device) -> tuple[Tensor, Tensor]:
    """Kernel matrix ``(n, n)``, and the candidates that are no negatives, the positive first, ``(B, m)``."""
    views, anchors = setting.views(device), torch.arange(setting.B, device=device)[:, None]
    both = setting.negatives == "both"
    points = torch.cat(views) if both else views[0]
    return RBF()(points, points), torch.cat([anchors, anchors + setting.B], dim=1) if both else anchors


def solve_sides(setting: Setting, limits: Limits, device: torch.device) -> dict[str, Callable[[], object]]:
    """Ways from a kernel matrix to alpha, ours and the dense ones, by name of the method."""
    gram, excluded = duals(setting, device)

    def solve(solver: Solver) -> None:
        solver(max_margin_dual(gram, excluded[:, 0], excluded[:, 1:], C=C, reg=REG))

    sides: dict[str, Callable[[], object]] = {
        name: partial(solve, solver) for name, solver in ours(setting.B, limits, limits.dense).items()
    }
    if limits.dense >= setting.B and setting.regime == "half-trained":
        delta = common.dense_delta(gram, excluded, REG)
        sides[DENSE_INVERSE] = lambda: common.dense_inverse(common.dense_delta(gram, excluded, REG), C)
        sides[DENSE_GRADIENT] = partial(common.dense_gradient, delta, C, DENSE_STEPS, 1e-3)
    return sides


def linearity(B: int, device: torch.device) -> str:
    """Check that the time of the dense gradient grows with its steps, since 1000 of them are not timed."""
    delta, few, many = common.dense_delta(*duals(Setting(B), device), REG), DENSE_STEPS, 4 * DENSE_STEPS
    sides = {str(k): partial(common.dense_gradient, delta, C, k, 1e-3) for k in (few, many)}
    for side in sides.values():
        side()
    times = common.interleave(sides, dict.fromkeys(sides, 5), device)
    value, _ = ratio(times[str(many)], times[str(few)])
    return (
        f"The dense gradient is timed for {few} steps and multiplied by {1000 // few}, without forming the "
        f"matrices. At B = {B}, four times the steps took {number(value)} times as long."
    )


def scaling(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Exponents of time and memory in B, and the worst growth per doubling, from B = 512 on."""
    found = []
    for method in (NTXENT, *SOLVERS):
        line = [r for r in rows if r.method == method and r.setting == Setting(r.setting.B)]
        line = [r for r in line if r.setting.B >= 512]
        if len(line) < 2:
            continue
        entry: dict[str, Any] = {"method": method, "sizes": [r.setting.B for r in line]}
        for kind in ("time", "memory"):
            x = [math.log2(r.setting.B) for r in line]
            y = [math.log2(statistics.median(r.loss) if kind == "time" else r.bytes or 1) for r in line]
            slopes = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
            entry[f"{kind}_exponent"] = statistics.linear_regression(x, y).slope
            entry[f"{kind}_doubling"] = 2 ** max(slopes)
        found.append(entry)
    return found


def targets(rows: Sequence[Row], growth: Sequence[dict[str, Any]]) -> list[Target]:
    """What was promised, all in float32 with both views, and what came out."""
    known = {(row.setting, row.method): row for row in rows}

    def at(method: str, B: int = 256) -> Row:
        return known.get((Setting(B), method), Row(Setting(B), method))

    found = []
    for above, below in ((DENSE_INVERSE, INVERSE), (DENSE_GRADIENT, EXACT)):
        value = ratio(at(above).solve, at(below).solve)
        found.append(Target(f"B=256: {above} / {below}, solve", 100, *value, at_least=True))
    found.append(Target("B=256: relative gap of Exact", 1e-4, at(EXACT).gap))
    for method, bound in ((INVERSE, 6), (EXACT, 40)):
        value = ratio(at(method).loss, at(NTXENT).loss)
        found.append(Target(f"B=256: {method} / NT-Xent, loss", bound, *value))
    value = ratio(at(f"{EXACT}, fixed path").loss, at(EXACT).loss)
    found.append(Target("B=256: Exact, fixed path / Exact, loss, on a CPU", 4, *value))
    for method in (INVERSE, EXACT):
        row = at(method, 4096)
        remark = f"process: {number(row.resident / 1e9)} GB" if row.resident else ""
        found.append(Target(f"B=4096: memory of {method}, GB", 4, row.bytes and row.bytes / 1e9, remark))
    for kind, bound in (("time", 8.5), ("memory", 4.5)):
        for method in (INVERSE, EXACT):
            entry = next((g for g in growth if g["method"] == method), {})
            name, worst = f"B>=512 doubled: {kind} of {method}", entry.get(f"{kind}_doubling")
            found.append(Target(name, bound, worst, f"over B = {entry['sizes']}" if entry else ""))
    errors = [row.single for row in rows if row.single is not None and row.setting.dtype == "float32"]
    remark = "worst anchor of all batches, both regimes"
    return [*found, Target("Inverse, float32 against float64", 1e-4, max(errors, default=None), remark)]


def tables(rows: Sequence[Row]) -> str:
    """One Markdown table per dtype, choice of negatives and regime."""
    head = ["B", "method", "loss, ms", "solve, ms", "memory, MB", "steps", "KKT residual", "relative gap"]
    parts = []
    kind = operator.attrgetter("setting.dtype", "setting.negatives", "setting.regime")
    for key, group in itertools.groupby(rows, kind):
        title = "{}, {} view(s) as negatives, {} projections".format(*key)
        body = [
            [str(r.setting.B), r.method, milliseconds(r.loss), milliseconds(r.solve)]
            + [number(value) for value in (r.bytes and r.bytes / 1e6, r.steps, r.kkt, r.gap)]
            for r in group
        ]
        parts.append(f"## {title}\n\n{common.table(head, body)}")
    return "\n".join(parts)


NOTES = """Medians; ± is half the interquartile range. *Loss*: forward and backward on given projections.
*Solve*: from the kernel matrix to alpha. KKT residual and relative gap (to Exact(tol=1e-10) in float64) are
those of the worst anchor. A dash: too slow or too large here, or the method has no such number. What takes
over {:g} s was called once, without a warm-up. {}"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table, the numbers and the plot."""
    options = common.parser(__doc__)
    options.add_argument("--sizes", default="64,128,256,512,1024,2048,4096", help="batches, with commas")
    chosen = options.parse_args(arguments)
    device, limits = torch.device(chosen.device), LIMITS[chosen.device]
    if LightlyNTXent is None:
        print("lightly is not installed: its row is left out")
    if chosen.quick:
        chosen.sizes, limits = "16,32", replace(limits, repeats=2, budget=0.01)
    sizes = [int(size) for size in chosen.sizes.split(",")]
    notes = NOTES.format(limits.once, linearity(min(128, *sizes), device))
    rows: list[Row] = []
    for setting in settings(sizes, limits):
        print(f"{setting} ...", flush=True)
        rows += measure(setting, limits, device)
        text = report(rows, notes, device, chosen.out)  # after each: an interrupted run leaves its results
    print(text)


def report(rows: Sequence[Row], notes: str, device: torch.device, folder: Path) -> str:
    """Write what has been measured so far: numbers, plot, and the tables, which are returned."""
    growth = scaling(rows)
    head = ["method", "time exponent", "memory exponent"]
    body = [[g["method"], number(g["time_exponent"]), number(g["memory_exponent"])] for g in growth]
    text = f"{notes}\n\n## Growth with B, from 512\n\n{common.table(head, body)}\n{tables(rows)}"
    record = {"machine": common.machine(device), "notes": notes, "scaling": growth}
    record["rows"] = [vars(row) | {"setting": vars(row.setting)} for row in rows]
    plot(rows, folder / f"solvers_{device}.png")
    return common.write(folder, "solvers", device, record, targets(rows, growth), text)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw time and memory over B in float32 with both views."""
    shown = [row for row in rows if row.setting == Setting(row.setting.B)]
    with common.figure(path, 2) as axes:
        for axis, title in zip(axes, ("loss (dense: solve), ms", "peak memory of tensors, MB"), strict=False):
            for method in dict.fromkeys(row.method for row in shown):
                line = [row for row in shown if row.method == method]
                time = [1e3 * statistics.median(row.loss or row.solve) for row in line]
                memory = [row.bytes / 1e6 if row.bytes else math.nan for row in line]
                values = time if axis is axes[0] else memory
                axis.loglog([row.setting.B for row in line], values, "o-", markersize=3, label=method)
            axis.set(title=title, xlabel="B")
            axis.grid(alpha=0.3)
        for axis in axes[-1:]:
            handles, labels = axes[0].get_legend_handles_labels()
            axis.legend(
                handles, labels, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1)
            )


if __name__ == "__main__":
    main()
