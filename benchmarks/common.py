"""What the benchmarks share: inputs, the published dense form, timing, memory, tables and targets."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # a clone works without being installed; an installed package comes first


def projections(images: int, regime: str = "half-trained", dim: int = 128, seed: int = 0) -> list[Tensor]:
    """Draw two views' projections, unit rows ``(images, dim)`` in float32, such as a network gives.

    ``"half-trained"``: a direction common to all images, ten clusters, what is the image's own (with a
    decaying spectrum: few directions carry most of it) and noise that differs between the views. Cosines are
    about 0.9 between the views of an image, 0.7 within a cluster and 0.3 between clusters.

    ``"untrained"``: what a network gives at the first step: all images close to the common direction, spread
    along nearly one line. The kernel matrix is all ones but for 1e-2, the hardest case for single precision.
    """
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int, spectrum: Tensor | float = 1.0) -> Tensor:
        draws = torch.randn(*shape, dim, generator=generator, dtype=torch.float64)
        return F.normalize(draws * spectrum, dim=-1)

    decay = torch.arange(1, dim + 1, dtype=torch.float64).rsqrt()
    common, own = unit(), unit(images, spectrum=decay)
    if regime == "half-trained":
        image = 0.7 * common + 0.7 * unit(10)[torch.arange(images) % 10] + 0.6 * own
        noise = 0.3
    elif regime == "untrained":
        image = common + 0.1 * torch.randn(images, 1, generator=generator, dtype=torch.float64) * unit()
        image, noise = image + 0.02 * own, 0.01
    else:
        raise ValueError(f"regime must be 'half-trained' or 'untrained', got {regime!r}")
    return [F.normalize(image + noise * unit(images), dim=1).float() for _ in range(2)]


# The dense form, as published: one matrix per anchor. Shah et al., AAAI 2022, Proposition 1


def dense_delta(gram: Tensor, excluded: Tensor, reg: float) -> Tensor:
    """Form every anchor's ``D[i, j] = K_ij + K_pp - K_pi - K_pj + reg [i = j]``, shape ``(B, N, N)``.

    Args:
        gram: Kernel matrix K of the candidates, shape ``(n, n)``.
        excluded: Candidates that are no negatives of an anchor, its positive p first, shape ``(B, m)``.
        reg: Ridge.
    """
    own = dense_negatives(excluded, len(gram))
    positive = excluded[:, :1]
    k = gram[positive, own]  # (B, N)
    delta = gram[own[:, :, None], own[:, None, :]]
    delta += gram[positive, positive][:, :, None]
    delta -= k[:, :, None]
    delta -= k[:, None, :]
    delta.diagonal(dim1=1, dim2=2).add_(reg)
    return delta


def dense_negatives(excluded: Tensor, n: int) -> Tensor:
    """Indices of every anchor's negatives, shape ``(B, N)``."""
    keep = torch.ones(len(excluded), n, dtype=torch.bool, device=excluded.device)
    keep.scatter_(1, excluded, False)
    return keep.nonzero()[:, 1].view(len(excluded), -1)


def dense_inverse(delta: Tensor, C: float) -> Tensor:
    """``clip(2 D^-1 1, 0, C)`` of every anchor by batched Cholesky, ``(B, N, N)`` to ``(B, N)``."""
    twos = delta.new_full((*delta.shape[:2], 1), 2.0)
    return torch.cholesky_solve(twos, torch.linalg.cholesky(delta)).squeeze(2).clamp_(0, C)


def dense_gradient(delta: Tensor, C: float, steps: int, step_size: float) -> Tensor:
    """``a <- clip(a - step_size (D a - 2), 0, C)`` from zero by batched products, to ``(B, N)``."""
    alpha = delta.new_zeros(*delta.shape[:2], 1)
    for _ in range(steps):
        alpha = (alpha - step_size * (delta @ alpha - 2)).clamp_(0, C)
    return alpha.squeeze(2)


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Time one call; on CUDA by events."""
    if device.type != "cuda":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def interleave(
    sides: dict[str, Callable[[], object]], repeats: dict[str, int], device: torch.device
) -> dict[str, list[float]]:
    """Time warmed-up sides in turn, so that a disturbance of the machine hits all of them.

    Args:
        sides: Functions to time, by name.
        repeats: How often to call each. Those with few repeats take part in the first rounds only.
        device: Where they run.

    Returns:
        Seconds of each call, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(max(repeats.values(), default=0)):
        order = list(sides) if turn % 2 == 0 else list(reversed(sides))
        for name in order:
            if turn < repeats[name]:
                times[name].append(seconds(sides[name], device))
    return times


class Memory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations return, for as long as their storage lives.

    What an operation allocates and frees within itself (a workspace) is not seen; the resident size is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self._known:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class Launches(TorchDispatchMode):
    """Counts operations that compute, those for which the host waits, and products with a square matrix.

    What an operation launches is the same on a CPU and on a GPU, so both can be counted on a CPU. Views and
    bookkeeping launch nothing. A wait is an operation whose result the host, or the shape of the next
    operation, depends on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.waits += waits(name, args)
        self.launches += not (func.is_view or name in NO_LAUNCH)
        self.products += _is_product(name, args)
        return func(*args, **(kwargs or {}))


NO_LAUNCH = ("_local_scalar_dense", "_unsafe_view", "detach", "empty", "empty_like", "empty_strided")
NO_LAUNCH += ("new_empty",)
_WAITS = ("_local_scalar_dense", "_linalg_check_errors", "_unique2", "equal", "is_nonzero", "masked_select")
_WAITS += ("nonzero", "repeat_interleave", "unique_dim")
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


def waits(name: str, args: Sequence[Any]) -> bool:
    """Whether the host waits for an operation of ATen."""
    return name in _WAITS or (
        name in _INDEXING
        and any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1]))
    )


def _is_product(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation multiplies by a square matrix that is as wide as the other one."""
    if name not in ("mm", "addmm"):
        return False
    left, right = args[-2:]
    return right.shape[0] == right.shape[1] == left.shape[1] > left.shape[0] // 4


def count(run: Callable[[], object]) -> Launches:
    """Launches, waits and products of one call."""
    with Launches() as found:
        run()
    return found


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that one call holds at a time, beyond what is alive before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with Memory() as memory:
        function()
    return memory.peak


def resident_peak(function: Callable[[], object]) -> int | None:
    """Most bytes that the process holds in memory during one call; ``None`` where Linux does not tell."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    try:
        reset.write_text("5")  # puts the high-water mark back to the present size
    except OSError:
        reset = None
    function()
    return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 if reset else None


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        cpu = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
    found = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    found |= {"gpu": torch.cuda.get_device_name()} if device.type == "cuda" else {}
    return found | {"torch": torch.__version__}


@dataclass(frozen=True)
class Target:
    """A number that was promised, and what this run measured (``None`` if it did not)."""

    name: str
    bound: float
    measured: float | None
    remark: str = ""
    at_least: bool = False
    head: ClassVar = ("target", "asked", "measured", "", "remark")

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or ``not measured``."""
        if self.measured is None:
            return "not measured"
        met = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return "met" if met else "missed"

    def row(self) -> list[str]:
        """As it stands in the table."""
        asked = f"{'>=' if self.at_least else '<='} {self.bound:g}"
        return [self.name, asked, number(self.measured), self.verdict, self.remark]


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float | None, str]:
    """Ratio of the medians of two sides timed in turn, and its range over the rounds both took part in."""
    if not above or not below:
        return None, ""
    rounds = [a / b for a, b in zip(above, below, strict=False)]
    spread = f"{len(rounds)} rounds, {number(min(rounds))} to {number(max(rounds))}"
    return statistics.median(above) / statistics.median(below), spread


def number(value: float | None) -> str:
    """Three digits, without an exponent where that is short; a dash for what was not measured."""
    if value is None:
        return "-"
    if not 1e-2 <= abs(value) < 1e5:
        return f"{value:.1e}" if value else "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def milliseconds(times: Sequence[float] | None) -> str:
    """Median in milliseconds with half the interquartile range in per cent."""
    if not times:
        return "-"
    median = statistics.median(times)
    if len(times) < 3:
        return number(1e3 * median)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return f"{number(1e3 * median)} ±{(high - low) / (2 * median):.0%}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Command line with the options that all benchmarks have."""
    form = argparse.RawDescriptionHelpFormatter
    result = argparse.ArgumentParser(description=description, formatter_class=form)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    result.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of the results")
    result.add_argument("--quick", action="store_true", help="tiny sizes; the numbers mean nothing")
    return result


@contextlib.contextmanager
def figure(path: Path, panels: int) -> Iterator[list[Any]]:
    """Give axes to draw on and save them; gives none where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print(f"matplotlib is not installed: no {path.name}")
        yield []
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(1, panels, figsize=(6 * panels, 4.5), squeeze=False)
    yield list(axes[0])
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=150)
    plt.close(drawing)


def write(
    out: Path, stem: str, device: object, record: dict[str, Any], targets: Sequence[Target], text: str
) -> str:
    """Write ``stem_DEVICE.json`` and the device's section of ``stem.md``, and return the section.

    What else stands in ``stem.md``, such as the other device's section and an introduction, is kept.
    """
    machine = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    promised = f"## Targets\n\n{table(Target.head, [t.row() for t in targets])}\n" if targets else ""
    text = f"Machine: {machine}.\n\n{promised}{text}"
    record |= {"targets": [vars(t) | {"verdict": t.verdict} for t in targets]}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}_{device}.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    path, begin, end = out / f"{stem}.md", f"<!-- {device} -->\n", f"<!-- end of {device} -->\n"
    before, _, rest = (path.read_text() if path.exists() else "").partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n# Measured on {str(device).upper()}\n\n{text}\n{end}{after}")
    return text
