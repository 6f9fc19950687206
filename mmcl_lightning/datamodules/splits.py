"""The images of a data set by their use, and how they are reduced to subsets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mmcl_lightning.datamodules.sources import ImageSource, balanced_subset, take_subset, without_labels
from mmcl_lightning.errors import ConfigError

__all__ = ["Splits"]


@dataclass(frozen=True)
class Splits:
    """The images of a data set by their use.

    Attributes:
        pretrain: Images of the contrastive training, labelled or not.
        heldout: Images of the validation loss, or None where nothing is held out.
        bank: Labelled images that the k-NN readout votes with, or None without labels.
        query: Labelled images that it classifies, or None without labels.
    """

    pretrain: ImageSource
    heldout: ImageSource | None
    bank: ImageSource | None
    query: ImageSource | None

    def hold_out(self, size: int, seed: int) -> Splits:
        """Put ``size`` labelled training images, equally many of each class, in the place of the test images.

        They leave the training; where that is on more than the labelled images, all stay, without labels.

        Raises:
            ConfigError: If there are no labelled images, or no more than ``size``.
        """
        if self.bank is None:
            raise ConfigError("validation_subset needs labelled training images, and there are none")
        labelled = len(self.bank)
        if size >= labelled:
            raise ConfigError(f"validation_subset is {size}, but there are only {labelled} labelled images")
        chosen = balanced_subset(self.bank.targets, size, seed)
        validation = self.bank.subset(chosen)
        rest = self.bank.subset(np.setdiff1d(np.arange(labelled), chosen))
        pretrain = rest if self.pretrain is self.bank else without_labels(self.pretrain)
        return Splits(pretrain, validation, rest, validation)

    def reduce(self, train_subset: int | None, test_subset: int | None, seed: int) -> Splits:
        """Take subsets chosen by ``seed``; a split that stands for two uses goes on to do so.

        Raises:
            ConfigError: If a subset is larger than its split.
        """

        def test_part(source: ImageSource | None) -> ImageSource | None:
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

    def map(self, function: Callable[[ImageSource], ImageSource]) -> Splits:
        """Apply a function to every split, once to one that stands for two uses."""
        sources = (self.pretrain, self.heldout, self.bank, self.query)
        distinct = {id(source): source for source in sources if source is not None}
        ready = {key: function(source) for key, source in distinct.items()}
        return Splits(ready[id(self.pretrain)], *(ready.get(id(source)) for source in sources[1:]))

    def fingerprint(self) -> dict[str, str]:
        """Return the number of images and a hash of them for each split: equal data, equal hash.

        The hash covers all targets and the pixels of up to 32 images spread over the split.
        """
        found = {}
        for use in ("pretrain", "heldout", "bank", "query"):
            source = getattr(self, use)
            if source is not None:
                digest = hashlib.sha256(np.ascontiguousarray(source.targets).tobytes())
                for index in np.linspace(0, len(source) - 1, min(32, len(source))).astype(int):
                    image, _ = source[int(index)]
                    digest.update(repr(image.size).encode() + image.tobytes())
                found[use] = f"{len(source)} images, {digest.hexdigest()[:12]}"
        return found
