"""Retrieval readout: do the nearest training items of a held-out one show its class?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning._options import check_choice, check_flags, check_whole
from mmcl_lightning._text import counted
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.metrics import recall_at_k
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["Retrieval"]


class Retrieval(Readout):
    """Look for each held-out item's class among its k nearest training items: R@k, as for videos.

    Args:
        ks: Numbers of neighbours.
        center: Subtract from training and held-out features their own means, as CoCLR's code does.
        feature: ``"h"`` for the representation, ``"z"`` for the projection.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        Bank and query, in the same passes as k-NN. Rows with label -1 are left out.

    Writes:
        ``retrieval/R1``, ``retrieval/R5`` and so on, shares in [0, 1], and the text ``retrieval/protocol``.
        Nothing where the data has no labels, which is said once.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        ks: Sequence[int] = (1, 5, 10, 20, 50),
        center: bool = True,
        feature: Literal["h", "z"] = "h",
        every_n_epochs: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs)
        if isinstance(ks, str) or not isinstance(ks, Sequence) or not len(ks):
            raise ConfigError(f"ks must be numbers of neighbours, such as [1, 5], got {ks!r}")
        for k in ks:
            check_whole(1, ks=k)
        check_flags(center=center)
        check_choice("feature", feature, ("h", "z"))
        self.ks = sorted(set(ks))
        self.center = center
        self.feature = feature

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.course: list[float] = []  # R@k of the first and the last reading, k being the smallest

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return the features of bank and query."""
        return {"bank": {self.feature}, "query": {self.feature}}

    def start(self, reading: Reading) -> None:
        """Check that there are items to read."""
        reading.loaders("retrieval", "bank", "query")

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return R@k of every k, or nothing where there are no labels."""
        bank, query = reading.features("bank", "retrieval"), reading.features("query", "retrieval")
        if bank is None or query is None:
            self.inform_once("there are no labelled items to read, so there is no retrieval")
            return {}
        device = reading.module.device
        rows, labels = bank.labelled_rows(self.feature, device)
        queries, targets = query.labelled_rows(self.feature, device)
        found = recall_at_k(queries, targets, rows, labels, self.ks, center=self.center)
        text = (
            f"cosine {self.feature}{', each split minus its mean' if self.center else ''}, bank {len(rows)}, "
            f"queries {len(queries)}"
        )
        self.protocol_texts |= {f"retrieval/R{k}": text for k in found}
        self.write_once(reading, "retrieval/protocol", text)
        return {f"retrieval/R{k}": value for k, value in found.items()}

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Say the value of the smallest k."""
        name = f"retrieval/R{self.ks[0]}"
        if name in values:
            self.course = [*self.course[:1], values[name]]
            rank_zero_info(f"retrieval R@{self.ks[0]} after {counted(epoch, 'epoch')}: {values[name]:.3f}")
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the first and the last value, for the summary."""
        return {"course": list(self.course)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up."""
        self.course = [float(value) for value in state_dict.get("course", [])]

    def summary(self) -> list[str]:
        """Return the course of the smallest k in words."""
        if not self.course:
            return []
        text = self.protocol_texts.get(f"retrieval/R{self.ks[0]}", "")
        return [f"{f'R@{self.ks[0]}:':<14}{self.course[0]:.3f} -> {self.course[-1]:.3f}  ({text})"]
