"""Online k-NN readout: how good is the representation right now, without training anything on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning._options import check_choice, check_whole
from mmcl_lightning.callbacks.features import FeaturePass
from mmcl_lightning.callbacks.readout import FeatureReadout, datamodule_of
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.metrics import KNN_PROTOCOLS, KNNProtocol, sharded_knn_accuracy

__all__ = ["OnlineKNN"]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class OnlineKNN(FeatureReadout):
    """Classify held-out images by their nearest labelled training images, every few epochs.

    The default is the readout of the paper's small-set experiments: k = 200, weights exp(s / 0.5), cosine,
    representation h, labelled training images without augmentation as the bank, evaluation mode. Numbers
    of different protocols do not compare, so the protocol is written beside the number.

    With several processes each has a share of the images; the numbers are those of one process, and the bank
    is never brought together. Loaders are to give all images on every process: a DataLoader over a data set
    with positions is shared out, a DistributedSampler in it replaced. Of an iterable every process loads all
    batches and computes its own.

    Args:
        protocol: ``"mmcl_paper"``, ``"instdisc"`` or ``"dino"``; the next three override its parts.
        k: Neighbours; a smaller bank clamps it, which is said once.
        temperature: T of the weights exp(s / T).
        feature: ``"h"`` for the representation, ``"z"`` for the projection.
        every_n_epochs: Epochs between readouts. The first and the last epoch always have one.
        at_start: Read out before the first step too, for the curve's starting point.
        bank_loader: Batches of the bank, ``(image, label, ...)`` or dicts with ``image`` and ``label``;
            ``None`` asks the datamodule's ``knn_dataloaders()``.
        query_loader: Batches to classify; given together with ``bank_loader``.
        num_classes: Number of classes; ``None`` asks the datamodule, else the largest label counts.
        protocols: Further protocols to compute from the same pass over the images: names, or options such as
            ``{k: 20, temperature: 0.07, feature: z}``; ``protocol`` among them starts from that one, and
            ``name`` is for the log. What equals the first protocol is left out.
        bank_device: Where the bank lies: ``"module"``, or ``"cpu"`` to save the memory of a GPU.
        bank_dtype: How the bank is kept; halves save memory, products are float32 whatever it is.
        chunk_size: Queries that are compared with the bank at a time.

    Reads:
        Any LightningModule whose ``forward`` maps images to ``(B, F)``; ``projection_head`` for ``"z"``.
        Rows with label -1 are left out. Modes, batch-norm statistics and random states stay as they are.

    Writes:
        ``knn/top1`` and ``knn/top5``, shares in [0, 1]; ``knn/best_top1``; the text ``knn/protocol``.
        ``knn/top1`` exists from the start, so that ``ModelCheckpoint(monitor="knn/top1", mode="max")`` works.
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
        every_n_epochs: int = 1,
        at_start: bool = True,
        bank_loader: Iterable[Any] | None = None,
        query_loader: Iterable[Any] | None = None,
        num_classes: int | None = None,
        protocols: Sequence[str | dict[str, Any] | KNNProtocol] | None = None,
        bank_device: Literal["module", "cpu"] = "module",
        bank_dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        chunk_size: int = 1024,
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        changes = {"k": k, "temperature": temperature, "feature": feature}
        changes = {name: value for name, value in changes.items() if value is not None}
        self.protocol = _protocol({"protocol": protocol, **changes})
        further = [protocols] if isinstance(protocols, str) else protocols or []
        self.protocols = _distinct([self.protocol, *map(_protocol, further)])
        if (bank_loader is None) != (query_loader is None):
            raise ConfigError("give bank_loader and query_loader together, or neither")
        check_choice("bank_device", bank_device, ("module", "cpu"))
        check_choice("bank_dtype", bank_dtype, _DTYPES)
        check_whole(1, chunk_size=chunk_size)
        if num_classes is not None:
            check_whole(1, num_classes=num_classes)
        self.bank_loader = bank_loader
        self.query_loader = query_loader
        self.num_classes = num_classes
        self.bank_device = bank_device
        self.bank_dtype = bank_dtype
        self.chunk_size = chunk_size

    def reset(self) -> None:
        """Return to the state before any run."""
        super().reset()
        self.curve: list[tuple[int, float]] = []  # (epochs trained, top1): survives a resume
        self.described = ""  # the first protocol as it was used in the last readout, in words
        self.protocol_texts: dict[str, str] = {}  # the same of every protocol, by the name of its top1
        self._measured = ""  # the protocol of the curve

    @property
    def best(self) -> tuple[int, float] | None:
        """Epochs trained and ``knn/top1`` of the best readout so far, the earliest of equals."""
        return max(self.curve, key=lambda point: point[1], default=None)

    def kinds(self, module: LightningModule) -> set[str]:
        """Return the features that the protocols read."""
        return {protocol.feature for protocol in self.protocols}

    def bank_source(self, trainer: Trainer) -> Iterable[Any] | None:
        """Return the loader of the bank, or None without labels."""
        loaders = self._loaders(trainer)
        return None if loaders is None else loaders[0]

    def bank(self, trainer: Trainer, module: LightningModule) -> FeaturePass | None:
        """Return the features of the bank, or None without labels."""
        loader = self.bank_source(trainer)
        if loader is None:
            return None
        device = torch.device("cpu") if self.bank_device == "cpu" else module.device
        return self._pass(trainer, module, loader, dtype=_DTYPES[self.bank_dtype], device=device)

    def readout(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Return top-1 and top-5 of every protocol, or nothing where there are no labels."""
        loaders = self._loaders(trainer)
        bank = self.bank(trainer, module)
        if loaders is None or bank is None:
            self._inform_once("the data has no labels, so there is no k-NN readout")
            return {}
        query = self._pass(trainer, module, loaders[1])
        classes = self.num_classes
        if classes is None:
            classes = getattr(datamodule_of(trainer), "num_classes", None)
        if classes == 1:
            self._inform_once("all labels are of one class, so k-NN is always right and says nothing")
        found: dict[KNNProtocol, dict[str, float]] = {}
        for feature in sorted(self.kinds(module)):
            chosen = [protocol for protocol in self.protocols if protocol.feature == feature]
            sides = query.shard(feature), bank.shard(feature)
            accuracies = sharded_knn_accuracy(*sides, classes, chosen, chunk_size=self.chunk_size)
            found |= dict(zip(chosen, accuracies, strict=True))
        self._describe(trainer, bank, query)
        return {
            f"knn/{name}{self._suffix(protocol)}": found[protocol][name]
            for protocol in self.protocols
            for name in ("top1", "top5")
        }

    def record(self, trainer: Trainer, epoch: int) -> None:
        """Add the new value to the curve, and the best one to the values."""
        if "knn/top1" in self._values:
            if self.curve and self._measured != self.described:  # numbers that do not compare
                rank_zero_warn(
                    f"k-NN: was {self._measured}, now {self.described}: the best value starts anew"
                )
                self.curve = []
            self._measured = self.described
            self.curve.append((epoch, self._values["knn/top1"]))
            self._values["knn/best_top1"] = max(top1 for _, top1 in self.curve)
            rank_zero_info(
                f"k-NN top-1 after {epoch} epoch{'s' * (epoch != 1)}: {self._values['knn/top1']:.3f}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far, the best of it, and the latest values."""
        curve = [list(point) for point in self.curve]
        best = list(self.best or ())
        return {"curve": curve, "best": best, "described": self.described, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the curve, which has the best value in it, and the latest values."""
        super().load_state_dict(state_dict)
        written = {f"knn/{name}{self._suffix(p)}" for p in self.protocols for name in ("top1", "top5")}
        self._values = {name: value for name, value in self._values.items() if name in written}
        self.described = self._measured = state_dict.get("described", "")
        self.curve = [(int(epoch), float(top1)) for epoch, top1 in state_dict["curve"]]
        if self.best is not None:  # a checkpoint of an earlier version has no best value
            self._values["knn/best_top1"] = self.best[1]

    def _loaders(self, trainer: Trainer) -> tuple[Iterable[Any], Iterable[Any]] | None:
        if self.bank_loader is not None and self.query_loader is not None:
            return self.bank_loader, self.query_loader
        if not hasattr(datamodule_of(trainer), "knn_dataloaders"):
            raise ConfigError(
                "OnlineKNN needs bank_loader and query_loader, or a datamodule with knn_dataloaders()"
            )
        return self._knn_loaders(trainer)

    def _suffix(self, protocol: KNNProtocol) -> str:
        return "" if protocol is self.protocols[0] else f"/{protocol.name}"

    def _describe(self, trainer: Trainer, bank: FeaturePass, query: FeaturePass) -> None:
        """Put the protocols in words, and say so where the bank is smaller than k."""
        for protocol in self.protocols:
            k = min(protocol.k, bank.labelled)
            if k < protocol.k:
                self._inform_once(f"k-NN: k clamped from {protocol.k} to {k}, the size of the labelled bank")
            text = f"{dataclasses.replace(protocol, k=k).describe()}, bank {bank.size}, queries {query.size}"
            self.protocol_texts[f"knn/top1{self._suffix(protocol)}"] = text
        self.described = self.protocol_texts["knn/top1"]
        others = [f"{tag}: {text}" for tag, text in self.protocol_texts.items() if tag != "knn/top1"]
        self._write_once(trainer, "knn/protocol", "\n\n".join([self.described, *others]))


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
