"""The readouts of a run by name, and what earlier checkpoints call them."""

from __future__ import annotations

from typing import Any

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.cross_validation import SVCCrossValidation
from mmcl_lightning.readouts.embedding import Embedding
from mmcl_lightning.readouts.health import Health
from mmcl_lightning.readouts.knn import KNN
from mmcl_lightning.readouts.linear_probe import LinearProbe
from mmcl_lightning.readouts.logistic import LogisticRegression
from mmcl_lightning.readouts.retrieval import Retrieval
from mmcl_lightning.readouts.support_vectors import SupportVectorGrid

__all__ = ["EARLIER", "collect_readouts", "merged_state"]

_KINDS: dict[str, type[Readout]] = {
    "knn": KNN,
    "logistic": LogisticRegression,
    "probe": LinearProbe,
    "retrieval": Retrieval,
    "health": Health,
    "support_vectors": SupportVectorGrid,
    "embedding": Embedding,
    "cv": SVCCrossValidation,
}
#: Callbacks whose states a checkpoint may have, by the readout that they are here; all but the first are of
#: an earlier version.
EARLIER = {
    "knn": "OnlineKNN",
    "logistic": "LogisticReadout",
    "probe": "OnlineLinearProbe",
    "health": "HealthPanel",
}


def collect_readouts(named: dict[str, Any], others: Any) -> dict[str, Readout]:
    """Return readouts by name, each checked to be one.

    Args:
        named: Readouts of this package by the name of their option, None for one that is left out.
        others: A list of further ones, or None.

    Raises:
        ConfigError: If one is something else.
    """
    found = {
        name: _checked(name, readout, _KINDS[name]) for name, readout in named.items() if readout is not None
    }
    if not isinstance(others or [], list | tuple):
        raise ConfigError(f"others must be a list of readouts, got {type(others).__name__}")
    for readout in others or []:
        _checked("others", readout, Readout)  # type: ignore[type-abstract]
        name = type(readout).__name__
        names = [name, *(f"{name}{number}" for number in range(2, len(found) + 3))]
        found[next(candidate for candidate in names if candidate not in found)] = readout
    return found


def merged_state(states: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the state of :class:`~mmcl_lightning.callbacks.Readouts` that has what other callbacks saved.

    Args:
        states: What they saved, by the name of the readout here.
    """
    merged: dict[str, Any] = {"values": {}, "interrupted": [], "readouts": {}}
    for name, state in states.items():
        if "readouts" in state:  # of OnlineKNN
            merged["values"] |= state["values"]
            merged["interrupted"] += state["interrupted"]
            merged["readouts"] |= state["readouts"]
        else:  # of an earlier version
            merged["values"][name] = state["values"]
            merged["interrupted"] += [name] if state.get("owed", False) else []
            merged["readouts"][name] = state
    return merged


def _checked(option: str, readout: Any, kind: type[Readout]) -> Readout:
    """Return a readout, or say what it is instead."""
    if not isinstance(readout, kind):
        found = f"the class {readout.__name__}" if isinstance(readout, type) else repr(readout)
        raise ConfigError(f"{option} must be a {kind.__name__}, such as {kind.__name__}(), got {found}")
    if not hasattr(readout, "every_n_epochs"):
        raise ConfigError(f"{type(readout).__name__} must call super().__init__() in its constructor")
    return readout
