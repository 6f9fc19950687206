"""The weighted losses from their equations, in loops over scalars: slow, and nothing to do with the package.

``python tests/twins.py`` writes ``tests/golden/forms.json`` from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: From the positive, the anchor and the negatives to one weight per negative, of any scale.
Rule = Callable[[list[float], list[float], list[list[float]]], list[float]]

GOLDEN = Path(__file__).parent / "golden" / "forms.json"


def dot(x: Any, y: Any) -> Any:
    return sum(a * b for a, b in zip(x, y, strict=True))


def uniform(positive: list[float], anchor: list[float], Y: list[list[float]]) -> list[float]:
    return [1.0] * len(Y)


def near(beta: float) -> Rule:
    return lambda positive, anchor, Y: [math.exp(beta * dot(positive, y)) for y in Y]


def clipped_inverse(gamma: float, C: float, reg: float, drop_at_bound: bool = False) -> Rule:
    """Alpha of the SVM between ``positive`` and ``Y`` with an RBF kernel, by one dense solve and a clip."""

    def k(x: list[float], y: list[float]) -> float:
        return math.exp(-gamma * sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))

    def alpha(positive: list[float], anchor: list[float], Y: list[list[float]]) -> list[float]:
        Q = np.array([[1 + k(a, b) - k(positive, a) - k(positive, b) for b in Y] for a in Y])
        found = np.clip(np.linalg.solve(Q + reg * np.eye(len(Y)), np.full(len(Y), 2.0)), 0, C)
        return [0.0 if drop_at_bound and a > C * (1 - 1e-6) else float(a) for a in found]

    return alpha


def weighted_loss(
    z0: Tensor, z1: Tensor, rule: Rule, form: str, T: float, negatives: str, symmetric: bool
) -> Tensor:
    """The loss as a tensor, so that autograd gives its gradient with the weights held fixed."""
    views = [[row / row.norm() for row in z] for z in (z0, z1)]
    terms = []
    for role in (0, 1) if symmetric else (0,):  # the view of the positive
        for i in range(len(z0)):
            positive, anchor = views[role][i], views[1 - role][i]
            others = [j for j in range(len(z0)) if j != i]
            Y = [views[role][j] for j in others]
            if negatives == "both":
                Y += [views[1 - role][j] for j in others]
            w = rule(positive.tolist(), anchor.tolist(), [y.tolist() for y in Y])
            mean = sum(w) / len(w)
            if mean == 0:  # no negative is left
                terms.append(0 * positive.sum())
                continue
            total = sum(a / mean * (dot(anchor, y) / T).exp() for a, y in zip(w, Y, strict=True))
            pull = dot(anchor, positive) / T
            terms.append(total.log() - pull if form == "log" else (pull.exp() + total).log() - pull)
    return torch.stack(terms).sum() / len(terms)


RULES: dict[str, Rule] = {
    "uniform": uniform,
    "near beta=3": near(3.0),
    "svm gamma=1 C=100 reg=0.1": clipped_inverse(1.0, 100.0, 0.1),
    "svm gamma=5 C=0.5 reg=1": clipped_inverse(5.0, 0.5, 1.0),
}


def write() -> None:
    generator = torch.Generator().manual_seed(7)
    rounded = [[round(x, 6) for x in row] for row in torch.randn(10, 4, generator=generator).tolist()]
    views = [rounded[:5], rounded[5:]]
    cases = []
    for name, rule in RULES.items():
        for form in ("log", "nce"):
            for negatives in ("both", "one"):
                for symmetric in (False, True):
                    z0, z1 = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in views)
                    loss = weighted_loss(z0, z1, rule, form, 0.2, negatives, symmetric)
                    gradients = [g.tolist() for g in torch.autograd.grad(loss, (z0, z1))]
                    case = {"rule": name, "form": form, "temperature": 0.2, "negatives": negatives}
                    case |= {"symmetric": symmetric, "loss": loss.item(), "gradients": gradients}
                    cases.append(case)
    GOLDEN.write_text(json.dumps({"views": views, "cases": cases}) + "\n")


if __name__ == "__main__":
    write()
