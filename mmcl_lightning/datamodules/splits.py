"""The images of a data set by their use, and how they are reduced to subsets."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmcl_lightning.datamodules.sources import (
    IntArray,
    JoinedSource,
    Source,
    grouped_subset,
    take_subset,
    without_labels,
)
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["Splits", "describe_rows", "validation_rows"]


@dataclass(frozen=True)
class Splits:
    """The images of a data set by their use.

    Attributes:
        pretrain: Images of the contrastive training, labelled or not.
        heldout: Images of the validation loss, or None where nothing is held out.
        bank: Labelled images that the k-NN readout votes with, or None without labels.
        query: Labelled images that it classifies, or None without labels.
    """

    pretrain: Source
    heldout: Source | None
    bank: Source | None
    query: Source | None

    def hold_out(self, size: int, seed: int) -> Splits:
        """Put ``size`` labelled training images, equally many of each class, in the place of the test images.

        Of sources with groups whole groups are taken, and so perhaps a few images more.
        They leave the training; where that is on more than the labelled images, all stay, without labels.

        Raises:
            ConfigError: If there are no labelled images, or no more than ``size``.
        """
        if self.bank is None:
            raise ConfigError("validation_subset needs labelled training images, and there are none")
        labelled = len(self.bank)
        if size >= labelled:
            raise ConfigError(f"validation_subset is {size}, but there are only {labelled} labelled images")
        chosen = grouped_subset(self.bank.targets, self.bank.groups, size, seed)
        if len(chosen) == labelled:
            raise ConfigError(
                f"validation_subset is {size}, and whole groups of so many leave nothing to train on"
            )
        validation = self.bank.subset(chosen)
        rest = self.bank.subset(np.setdiff1d(np.arange(labelled), chosen))
        pretrain = rest if self.pretrain is self.bank else without_labels(self.pretrain)
        return Splits(pretrain, validation, rest, validation)

    def reduce(self, train_subset: int | None, test_subset: int | None, seed: int) -> Splits:
        """Take subsets chosen by ``seed``; a split that stands for two uses goes on to do so.

        Raises:
            ConfigError: If a subset is larger than its split.
        """

        def test_part(source: Source | None) -> Source | None:
            return None if source is None else take_subset(source, test_subset, seed + 1, "test_subset")

        pretrain = take_subset(self.pretrain, train_subset, seed, "train_subset")
        heldout, bank = test_part(self.heldout), self.bank
        if bank is self.pretrain:
            bank = pretrain
        elif bank is not None and train_subset is not None:
            # The bank may hold fewer images than the training (STL-10): then it stays whole.
            bank = take_subset(bank, min(train_subset, len(bank)), seed, "train_subset")
        query = heldout if self.query is self.heldout else test_part(self.query)
        return Splits(pretrain, heldout, bank, query)

    def map(self, function: Callable[[Source], Source]) -> Splits:
        """Apply a function to every split, once to one that stands for two uses."""
        sources = (self.pretrain, self.heldout, self.bank, self.query)
        distinct = {id(source): source for source in sources if source is not None}
        ready = {key: function(source) for key, source in distinct.items()}
        return Splits(ready[id(self.pretrain)], *(ready.get(id(source)) for source in sources[1:]))

    def predicted(self, which: Literal["all", "train", "test"]) -> dict[str, Source]:
        """Return the images to predict by their split.

        Args:
            which: ``"train"``: the labelled training images, or all where none is labelled. ``"test"``: the
                held-out ones. ``"all"``: all training images and the held-out ones.

        Raises:
            ConfigError: If nothing is held out and ``which`` is ``"test"``.
        """
        if which == "train":
            return {"train": self.pretrain if self.bank is None else self.bank}
        if which == "all":
            return {"train": self.pretrain} | ({} if self.heldout is None else {"test": self.heldout})
        held = self.heldout if self.query is None else self.query
        if held is None:
            raise ConfigError(
                "predict_split is 'test', but no image is held out; set predict_split to 'train'"
            )
        return {"test": held}

    def fingerprint(self, items: str = "images") -> dict[str, str]:
        """Return the number of images and a hash of them for each split: equal data, equal hash.

        The hash covers all targets and the pixels of up to 32 images spread over the split.

        Args:
            items: What an item is called.
        """
        found = {}
        for use in ("pretrain", "heldout", "bank", "query"):
            source = getattr(self, use)
            if source is not None:
                digest = hashlib.sha256(np.ascontiguousarray(source.targets).tobytes())
                for index in np.linspace(0, len(source) - 1, min(32, len(source))).astype(int):
                    try:
                        digest.update(source.digest(int(index)))
                    except DataError:  # which training and readouts go on about, or do not
                        digest.update(b"cannot be read")
                found[use] = f"{len(source)} {items}, {digest.hexdigest()[:12]}"
        return found


def describe_rows(
    parts: dict[str, Source], positions: Sequence[int], class_text: Callable[[int], str], root: str
) -> dict[str, list[str]]:
    """Say of positions in several sources, one after the other, which images they are.

    Args:
        parts: The sources by split.
        positions: The positions.
        class_text: Says in words what a target stands for.
        root: Absolute path of a folder; what lies below it is given relative to it.

    Returns:
        ``path``, or the position in its split where images are no files of their own; ``class``, empty
        without a label; ``split``.
    """
    splits, source = list(parts), JoinedSource(list(parts.values()))
    found: dict[str, list[str]] = {"path": [], "class": [], "split": []}
    for position in positions:
        which, place = source.place(position)
        path, target = source.path(position), int(source.targets[position])
        below = "" if path is None else os.path.abspath(path).removeprefix(root + os.sep)  # of ../photos too
        found["path"].append(str(place) if path is None else path if os.path.isabs(below) else below)
        found["class"].append(class_text(target))
        found["split"].append(splits[which])
    return found


def validation_rows(count: int, share: float) -> tuple[IntArray, IntArray]:
    """Return the rows on which options are chosen, and the others, each in the order of the shuffle.

    The rule of the published transfer code: ``RandomState(0)`` shuffles all rows, and the first
    ``floor(share * count)`` are held out.

    Args:
        count: Number of rows.
        share: Share that is held out.

    Raises:
        DataError: If that holds out none.
    """
    rows = np.arange(count)
    np.random.RandomState(0).shuffle(rows)
    first = math.floor(share * count)
    if not 0 < first < count:
        raise DataError(
            f"there are {count} labelled training images, too few to choose options on {share:.0%} of them"
        )
    return rows[:first], rows[first:]
