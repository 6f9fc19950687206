"""Softmax regression that takes one step per batch of rows, the same on every process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.deferred import check
from mmcl_lightning.distributed import layout
from mmcl_lightning.errors import DataError, ShapeError

__all__ = ["OnlineClassifier"]

_MOMENTUM = 0.1  # share of a batch in the running mean and variance; 0.03 gave the same
_EPS = 1e-5
# The gradient of a class that a batch does not have is the mean of standardised rows: rounding alone, about
# 1e-8, which Adam's usual eps of 1e-8 would turn into whole steps.
_ADAM_EPS = 1e-6


class OnlineClassifier:
    """A linear layer on standardised rows, trained by Adam on cross-entropy.

    Rows are standardised by running statistics of the labelled rows, because representations have a large
    common part, and features of different size, that would take a linear layer long to undo.

    Args:
        width: Features F of a row.
        classes: Number of classes.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        device: Where the rows are.
    """

    def __init__(
        self, width: int, classes: int, lr: float, weight_decay: float, device: torch.device
    ) -> None:
        # Zeros, as in the paper's ImageNet protocol: the problem is convex, and nothing is drawn at random.
        self.linear: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, width, classes, device=device, dtype=torch.float32
        )
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.mean = torch.zeros(width, device=device)
        self.var = torch.zeros(width, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # with a labelled row
        self._optimizer = torch.optim.Adam(
            self.linear.parameters(), lr=lr, weight_decay=weight_decay, eps=_ADAM_EPS, fused=True
        )

    def step(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Take a step on the labelled rows of all processes.

        Args:
            rows: Rows of this process ``(n, F)``, float32.
            labels: Class indices ``(n,)``, negative = unlabelled.

        Returns:
            Mean loss of the labelled rows, the same on every process; nan where there is none.

        Raises:
            DataError: If a label is no class; where checks are deferred, when somebody looks.
            ShapeError: If rows have another width than before.
        """
        classes = self.linear.out_features

        def judge(values: list[float]) -> None:
            if values[0] >= classes:
                raise DataError(f"a label is {values[0]:.0f}, but there are {classes} classes, from 0")

        check(labels.max(), judge)
        self._check(rows)
        count = self._follow(rows, labels >= 0)
        self._optimizer.zero_grad(set_to_none=False)
        targets = labels.clamp(-1, classes - 1)
        loss = F.cross_entropy(self.scores(rows), targets, ignore_index=-1, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in self.linear.parameters() if p.grad is not None]
        mean = _summed(torch.cat([loss.detach().view(1), *(grad.flatten() for grad in grads)])) / count
        for grad, part in zip(grads, torch.split(mean[1:], [grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        # Where no row has a label not even Adam's momentum may move the weights: the fused step leaves
        # everything alone then, and the host need not know.
        self._optimizer.found_inf = (count == 0).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        self.steps += (count > 0).to(self.steps.dtype)
        return mean[0]

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores ``(n, classes)`` of rows ``(n, F)``, float32."""
        self._check(rows)
        scores: Tensor = self.linear((rows - self.mean) / (self.var + _EPS).sqrt())
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Return everything that another one needs to go on alike."""
        return {
            "linear": self.linear.state_dict(),
            "mean": self.mean,
            "var": self.var,
            "steps": int(self.steps),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave."""
        self.linear.load_state_dict(state["linear"])
        self.mean.copy_(state["mean"])
        self.var.copy_(state["var"])
        self.steps.fill_(state["steps"])
        # Also in a state of an earlier version, whose steps were not fused.
        groups = [group | {"fused": True} for group in state["optimizer"]["param_groups"]]
        self._optimizer.load_state_dict(state["optimizer"] | {"param_groups": groups})

    @torch.no_grad()
    def _follow(self, rows: Tensor, labelled: Tensor) -> Tensor:
        """Let mean and variance follow the labelled rows of all processes, and return their number."""
        # Small numbers, whose squares do not cancel.
        away = torch.where(labelled[:, None], rows - self.mean, 0.0)
        total = _summed(torch.cat([labelled.sum()[None], away.sum(dim=0), away.square().sum(dim=0)]))
        count = total[0]
        shift, square = (total[1:] / count.clamp_min(1)).chunk(2)
        var = (square - shift.square()).clamp_min(0)
        share = torch.where(self.steps > 0, _MOMENTUM, 1.0) * (count > 0)
        self.mean += share * shift
        self.var += share * (var - self.var)
        return count

    def _check(self, rows: Tensor) -> None:
        if rows.shape[1] != self.linear.in_features:
            raise ShapeError(
                f"representations have {rows.shape[1]} features, the linear probe was trained on "
                f"{self.linear.in_features}: forward must give what backbone gives"
            )


def _summed(values: Tensor) -> Tensor:
    """Sum over all processes."""
    if layout().world_size > 1:
        dist.all_reduce(values)
    return values
