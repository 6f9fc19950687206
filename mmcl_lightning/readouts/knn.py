"""k-NN readout: how good is the representation right now, without training anything on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_whole
from mmcl_lightning._text import counted
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.features import FeaturePass
from mmcl_lightning.metrics import KNN_PROTOCOLS, KNNProtocol, sharded_knn_accuracy
from mmcl_lightning.readouts.base import Readout
from mmcl_lightning.readouts.reading import Reading

__all__ = ["KNN"]


class KNN(Readout):
    """Classify held-out images by their nearest labelled training images.

    The default is the readout of the paper's small-set experiments: k = 200, weights exp(s / 0.5), cosine,
    representation h, labelled training images without augmentation as the bank, evaluation mode. Numbers
    of different protocols do not compare, so the protocol is written beside the number.

    Args:
        protocol: ``"mmcl_paper"``, ``"instdisc"`` or ``"dino"``; the next three override its parts.
        k: Neighbours; a smaller bank clamps it, which is said once.
        temperature: T of the weights exp(s / T).
        feature: ``"h"`` for the representation, ``"z"`` for the projection.
        protocols: Further protocols to compute from the same pass over the images: names, or options such as
            ``{k: 20, temperature: 0.07, feature: z}``; ``protocol`` among them starts from that one, and
            ``name`` is for the log. What equals the first protocol is left out.
        chunk_size: Queries that are compared with the bank at a time.
        every_n_epochs: As in :class:`Readout`.

    Reads:
        Bank and query. Rows with label -1 are left out.

    Writes:
        ``knn/top1`` and ``knn/top5``, shares in [0, 1]; ``knn/best_top1``; the text ``knn/protocol``.
        Of further protocols ``knn/top1/NAME`` and ``knn/top5/NAME``, with a name such as ``dino`` or
        ``k20_T0.07_z``. Nothing where the data has no labels, which is said once.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        protocol: Literal["mmcl_paper", "instdisc", "dino"] = "mmcl_paper",
        k: int | None = None,
        temperature: float | None = None,
        feature: Literal["h", "z"] | None = None,
        protocols: Sequence[str | dict[str, Any] | KNNProtocol] | None = None,
        chunk_size: int = 1024,
        every_n_epochs: int | None = None,
    ) -> None:
        super().__init__(every_n_epochs)
        changes = {"k": k, "temperature": temperature, "feature": feature}
        changes = {name: value for name, value in changes.items() if value is not None}
        self.protocol = _protocol({"protocol": protocol, **changes})
        further = [protocols] if isinstance(protocols, str) else protocols or []
        self.protocols = _distinct([self.protocol, *map(_protocol, further)])
        check_whole(1, chunk_size=chunk_size)
        self.chunk_size = chunk_size

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self.described = ""  # the first protocol as it was used in the last reading, in words
        self._measured = ""  # the protocol of the curve

    @property
    def best(self) -> tuple[int, float] | None:
        """Epochs trained and ``knn/top1`` of the best reading so far, the earliest of equals."""
        return max(self.curve, key=lambda point: point[1], default=None)

    def needs(self, module: LightningModule) -> dict[str, set[str]]:
        """Return the features that the protocols read, of bank and query."""
        kinds: set[str] = {protocol.feature for protocol in self.protocols}
        return {"bank": kinds, "query": kinds}

    def start(self, reading: Reading) -> None:
        """Check that there are images to read."""
        reading.loaders("k-NN", "bank", "query")

    def compute(self, reading: Reading) -> dict[str, float]:
        """Return top-1 and top-5 of every protocol, or nothing where there are no labels."""
        bank, query = reading.features("bank", "k-NN"), reading.features("query", "k-NN")
        if bank is None or query is None:
            self.inform_once("there are no labelled images to read, so there is no k-NN readout")
            return {}
        if reading.num_classes == 1:
            self.inform_once("all labels are of one class, so k-NN is always right and says nothing")
        found: dict[KNNProtocol, dict[str, float]] = {}
        for feature in sorted({protocol.feature for protocol in self.protocols}):
            chosen = [protocol for protocol in self.protocols if protocol.feature == feature]
            sides = query.shard(feature), bank.shard(feature)
            accuracies = sharded_knn_accuracy(*sides, reading.num_classes, chosen, chunk_size=self.chunk_size)
            found |= dict(zip(chosen, accuracies, strict=True))
        self._describe(reading, bank, query)
        return {
            f"knn/{name}{self._suffix(protocol)}": found[protocol][name]
            for protocol in self.protocols
            for name in ("top1", "top5")
        }

    def record(self, epoch: int, values: dict[str, float]) -> dict[str, float]:
        """Add the new value to the curve, and the best one to the values."""
        if "knn/top1" not in values:
            return values
        if self.curve and self._measured != self.described:  # numbers that do not compare
            rank_zero_warn(f"k-NN: was {self._measured}, now {self.described}: the best value starts anew")
            self.curve = []
        self._measured = self.described
        self.curve.append((epoch, values["knn/top1"]))
        rank_zero_info(f"k-NN top-1 after {counted(epoch, 'epoch')}: {values['knn/top1']:.3f}")
        return values | {"knn/best_top1": max(top1 for _, top1 in self.curve)}

    def summary(self) -> list[str]:
        """Return the course of the accuracy in words."""
        if not self.curve:
            return []
        (_, start), (_, end) = self.curve[0], self.curve[-1]
        worse = ", worse than at the start" if end < start else ""
        return [f"k-NN top-1:   {start:.3f} -> {end:.3f}{worse}  ({self.described})"]

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far, and what it was measured by."""
        return {"curve": [list(point) for point in self.curve], "described": self.described}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve."""
        self.described = self._measured = state_dict.get("described", "")
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]

    def kept(self, values: dict[str, float]) -> dict[str, float]:
        """Return the values of protocols that are still computed, and the best one of the curve."""
        written = {f"knn/{name}{self._suffix(p)}" for p in self.protocols for name in ("top1", "top5")}
        kept = {name: value for name, value in values.items() if name in written}
        return kept if self.best is None else {**kept, "knn/best_top1": self.best[1]}

    def _suffix(self, protocol: KNNProtocol) -> str:
        return "" if protocol is self.protocols[0] else f"/{protocol.name}"

    def _describe(self, reading: Reading, bank: FeaturePass, query: FeaturePass) -> None:
        """Put the protocols in words, and say so where the bank is smaller than k."""
        for protocol in self.protocols:
            k = min(protocol.k, bank.labelled)
            if k < protocol.k:
                self.inform_once(f"k-NN: k clamped from {protocol.k} to {k}, the size of the labelled bank")
            mean = bank.labelled / (reading.num_classes or int(bank.labels.max()) + 1)
            if k > mean:
                smaller = max(1, min(20, int(mean) // 2))
                self.inform_once(
                    f"k-NN: k is {k}, and the bank has {mean:.0f} images of a class on average, so that "
                    f"those of other classes can outvote them: take a smaller k, such as KNN(k={smaller}), "
                    f"--readouts.knn.k {smaller}"
                )
            sizes = f"bank {bank.labelled}, queries {query.labelled}"  # which had a label, and could be read
            text = f"{dataclasses.replace(protocol, k=k).describe()}, {sizes}"
            self.protocol_texts[f"knn/top1{self._suffix(protocol)}"] = text
        self.described = self.protocol_texts["knn/top1"]
        others = [f"{tag}: {text}" for tag, text in self.protocol_texts.items() if tag != "knn/top1"]
        self.write_once(reading, "knn/protocol", "\n\n".join([self.described, *others]))


def _protocol(given: str | dict[str, Any] | KNNProtocol) -> KNNProtocol:
    """Return the protocol of a name, or of options that may start from a named one."""
    if isinstance(given, KNNProtocol):
        return given
    options = {"protocol": given} if isinstance(given, str) else dict(given)
    start = options.pop("protocol", "mmcl_paper")
    if start not in KNN_PROTOCOLS:
        raise ConfigError(f"protocol must be one of {', '.join(KNN_PROTOCOLS)}, got {start!r}")
    known = [f.name for f in dataclasses.fields(KNNProtocol)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigError(f"a k-NN protocol has the options {', '.join(known)}, got {', '.join(unknown)}")
    protocol = dataclasses.replace(KNN_PROTOCOLS[start], **options)
    if "name" in options or protocol == KNN_PROTOCOLS[start]:
        return protocol
    similarity = "" if protocol.normalize else "_dot"
    name = f"k{protocol.k}_T{protocol.temperature:g}_{protocol.feature}{similarity}"
    return dataclasses.replace(protocol, name=name)


def _distinct(protocols: list[KNNProtocol]) -> list[KNNProtocol]:
    """Leave out what equals an earlier one but for its name; equal names must not mean different things."""
    kept: dict[tuple[Any, ...], KNNProtocol] = {}
    for protocol in protocols:
        key = (protocol.k, protocol.temperature, protocol.feature, protocol.normalize)
        kept.setdefault(key, protocol)
    names = [protocol.name for protocol in list(kept.values())[1:]]
    if len(set(names)) < len(names):
        raise ConfigError(f"further protocols need different names, got {', '.join(names)}")
    return list(kept.values())
