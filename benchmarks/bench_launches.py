"""What a GPU pays for beside arithmetic: kernels launched, waits of the host, and products of matrices.

    python benchmarks/bench_launches.py [--images 256]

Counted on the CPU by torch's dispatcher; a count is the same on a GPU, where the host waits for the device to
finish whatever it was given. Of every loss and solver, forward and backward; then of whole training steps of
``quickstart.yaml`` with all its callbacks: what waits in a step that is not logged, and where. Prints tables
and writes ``launches_cpu.json`` and its section of ``launches.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import common  # first: it puts a clone's root on the path
import torch
from bench_step import loss_alone
from common import Target
from step_waits import LIGHTNING_READS, as_on_a_gpu, training

from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import (
    DebiasedLoss,
    DecoupledLoss,
    HCLLoss,
    HingeLoss,
    InfoNCELoss,
    MMCLLoss,
    Near,
    NTXentLoss,
    Shuffled,
    WeightedContrastiveLoss,
)
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient

LOSSES: dict[str, Callable[[], Any]] = {
    "NT-Xent": NTXentLoss,
    "Decoupled": DecoupledLoss,
    "Debiased": DebiasedLoss,
    "HCL": HCLLoss,
    "Hinge": HingeLoss,
    "Near, log": partial(WeightedContrastiveLoss, Near()),
    "Shuffled Near, log": partial(WeightedContrastiveLoss, Shuffled(Near())),
    "InfoNCE, queue": InfoNCELoss,
    "MMCL, Inverse": partial(MMCLLoss, solver=Inverse()),
    "MMCL, Inverse, median width": partial(MMCLLoss, kernel=RBF("median"), solver=Inverse()),
    "MMCL log, Inverse": partial(MMCLLoss, solver=Inverse(), form="log"),
    "MMCL, Exact adaptive": partial(MMCLLoss, solver=Exact(path="adaptive")),
    "MMCL, Exact fixed": partial(MMCLLoss, solver=Exact(path="fixed")),
    "MMCL, ProjectedGradient": partial(MMCLLoss, solver=ProjectedGradient()),
}


def alone(images: int) -> dict[str, common.Launches]:
    """Count forward and backward of every loss, by name."""
    views = common.projections(images)
    queue = torch.cat(common.projections(8 * images, seed=1))
    found = {}
    # The product with few rows is for CPUs: its choice reads a value that a GPU is never asked for.
    with mock.patch("mmcl_lightning.svm.problem._MANY", math.inf), as_on_a_gpu():
        for name, build in LOSSES.items():
            loss = build()
            run = loss_alone(partial(loss, queue=queue) if isinstance(loss, InfoNCELoss) else loss, views)
            run()
            found[name] = common.count(run)
    return found


#: Launches, waits and products of the last version whose losses looked at every check at once, 56c9bad.
BEFORE = {
    "NT-Xent": (121, 2, 0),
    "Decoupled": (119, 2, 0),
    "Debiased": (151, 2, 0),
    "HCL": (176, 2, 0),
    "Hinge": (118, 2, 0),
    "Near, log": (137, 2, 0),
    "Shuffled Near, log": (146, 3, 0),
    "InfoNCE, queue": (88, 1, 0),
    "MMCL, Inverse": (205, 7, 0),
    "MMCL log, Inverse": (212, 7, 0),
    "MMCL, Exact adaptive": (1258, 76, 21),
    "MMCL, ProjectedGradient": (20288, 458, 563),
}
#: Waits of a step that is not logged, there; a copy to the device was not counted then.
STEP_BEFORE = {
    "svm/factorisation.py: _cholesky_inverse": 2,
    "readouts/_online_classifier.py: step": 2,
    "losses/base.py: _prepare": 1,
    "svm/problem.py: _check_values": 1,
    "svm/factorisation.py: factorise": 1,
    "losses/base.py: forward": 1,
    "readouts/_online_classifier.py: _follow": 1,
    LIGHTNING_READS: 1,
}
LOGGED = """A step between two log points waits for nothing. In a logged step the checks of module, callbacks
and probe since the last one, and what the SVM callback logs, are read in one wait. After that Lightning reads
``train/loss`` and ``probe/loss``, when nothing is under way any more. These two cannot be saved: a monitor is
to see their value of every step, so they are logged as tensors on the device, and Lightning makes a number of
each tensor by itself.

A number that Lightning is given as a Python number costs two more, a copy to the device and one back. Over
the package of commit 7408295 this script counts that for 16 numbers of a logged step, and the copy of the
learning rate in every step: 36 waits and 1.

Several processes ask in every step whether one of them was told to stop, Lightning and the checkpoint each,
and the gather of the projections reads how many rows each has, as a gather of different numbers hangs.
"""
NOTES = """*Launches*: operations that compute something. *Waits*: operations for which the host waits for
the device. *Products*: of a matrix (B, n), or of several stacked, with the kernel matrix or its inverse.
*Before*: the same three at the commit before this was changed, 56c9bad.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, then write the tables and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=256)
    chosen = options.parse_args(arguments)
    images = 16 if chosen.quick else chosen.images
    found = alone(images)
    places, steps = training(chosen.quick)
    rows = []
    for name, n in found.items():
        before = [str(number) for number in BEFORE.get(name, ("-",) * 3)]
        rows.append([name, str(n.launches), str(n.waits), str(n.products), *before])
    head = ["loss, forward and backward", "launches", "waits", "products", "before", "", ""]
    text = f"B = {images}, both views as negatives. {NOTES}\n{common.table(head, rows)}\n"
    text += f"## Waits of a training step of quickstart.yaml, all callbacks\n\n{LOGGED}\n"
    text += _step_table(places, steps)
    record = {
        "machine": common.machine(torch.device("cpu")),
        "images": images,
        "counts": {name: [n.launches, n.waits, n.products] for name, n in found.items()},
        "steps": steps,
        "waits": {kind: dict(counted) for kind, counted in places.items()},
    }
    print(common.write(chosen.out, "launches", "cpu", record, targets(found, places, steps), text))


def _step_table(places: dict[str, Counter[str]], steps: dict[str, int]) -> str:
    names = sorted({*STEP_BEFORE, *places["not logged"], *places["logged"]})
    rows = [
        [name]
        + [common.number(places[kind][name] / max(1, steps[kind])) for kind in ("not logged", "logged")]
        + [str(STEP_BEFORE.get(name, 0))]
        for name in names
    ]
    return common.table(["where", "per step between log points", "per logged step", "before"], rows)


def targets(
    found: dict[str, common.Launches], places: dict[str, Counter[str]], steps: dict[str, int]
) -> list[Target]:
    """What was promised."""
    softmax = [n for name, n in found.items() if "MMCL" not in name and "Shuffled" not in name]
    logged = places["logged"]
    promised = [
        Target("waits: NT-Xent and the other softmax losses", 0, max(n.waits for n in softmax)),
        Target("waits: Inverse", 0, found["MMCL, Inverse"].waits),
        Target("launches: Inverse", 150, found["MMCL, Inverse"].launches),
        Target("waits of a training step between log points", 0, places["not logged"].total()),
        Target(
            "waits of a logged step",
            1,
            logged.total() / max(1, steps["logged"]),
            "Lightning's reading of the two losses is among them: see below",
        ),
        Target(
            "waits of a logged step, within this package",
            1,
            (logged.total() - logged[LIGHTNING_READS]) / max(1, steps["logged"]),
        ),
    ]
    fixed = found.get("MMCL, Exact fixed")
    if fixed is not None:
        promised += [
            Target("waits: Exact, fixed path", 0, fixed.waits),
            Target("launches: Exact, fixed path", 900, fixed.launches),
            Target("products: Exact, fixed path", 60, fixed.products),
        ]
    return promised


if __name__ == "__main__":
    main()
