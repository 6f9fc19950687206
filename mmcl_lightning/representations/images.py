"""Images with their representations, from a file that ``predict`` or ``embed`` wrote."""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmcl_lightning.callbacks.tables import read_table
from mmcl_lightning.datamodules.labels import Places
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["EmbeddedImages"]


@dataclass(frozen=True, eq=False)
class EmbeddedImages:
    """Representations, and which image each is of.

    Args:
        h: Representations ``(N, F)``, float32.
        paths: Path, name or number of each image.
        classes: Class of each, empty without one.
        splits: Split of each, empty without one.
    """

    h: Tensor
    paths: list[str]
    classes: list[str]
    splits: list[str]

    @staticmethod
    def read(path: str) -> EmbeddedImages:
        """Read a file; where names repeat, as numbers of images within a split do, the split is added.

        Raises:
            ConfigError: If there is none of that name.
            DataError: If it has no ``h`` of numbers, a column of another length, or is damaged.
        """
        columns = read_table(Path(path))
        if "h" not in columns:
            raise DataError(
                f"{path} has no h but {', '.join(columns)}: give a file that predict or embed wrote"
            )
        h = columns["h"]
        if h.ndim != 2 or h.dtype.kind not in "fiu":
            raise DataError(
                f"h of {path} must be real numbers (N, F), a row per image, got {h.dtype} {h.shape}: give a "
                "file that predict or embed wrote"
            )

        def texts(name: str) -> list[str]:
            values = columns.get(name, np.full(len(h), ""))
            if values.shape != (len(h),):
                raise DataError(
                    f"{name} of {path} must have a value for each of the {len(h)} rows of h, got the shape "
                    f"{values.shape}"
                )
            return [str(value) for value in values]

        name = next((name for name in ("path", "name") if name in columns), None)
        names = [str(row) for row in range(len(h))] if name is None else texts(name)
        splits = texts("split")
        if len(set(names)) < len(names) and any(splits):
            names = [f"{split}/{name}" for split, name in zip(splits, names, strict=True)]
        return EmbeddedImages(torch.from_numpy(h.astype(np.float32)), names, texts("class"), splits)

    def subset(self, rows: Tensor) -> EmbeddedImages:
        """Return some of the images.

        Args:
            rows: Which, ``(M,)``, int64.
        """
        paths, classes, splits = (
            [texts[row] for row in rows.tolist()] for texts in (self.paths, self.classes, self.splits)
        )
        return EmbeddedImages(self.h[rows], paths, classes, splits)

    def fitting(self, name: str) -> list[str]:
        """Return the paths that a name may mean: itself, or those that end in it.

        Args:
            name: Of one image.
        """
        return self._places.find(name)

    @functools.cached_property
    def _places(self) -> Places:
        return Places(self.paths, "")

    def rows(self, names: Iterable[str]) -> Tensor:
        """Return the rows of images ``(Q,)`` by their paths, or the ends of these; all without a name.

        Raises:
            ConfigError: If there is no such image, or several.
        """
        names, known = list(names), defaultdict(list)
        for row, path in enumerate(self.paths):
            known[path].append(row)
        found = []
        for name in names:
            fitting = self.fitting(name)
            rows = [row for path in fitting for row in known[path]]
            if len(rows) != 1:
                near = fitting[:2] or difflib.get_close_matches(name, self.paths, n=1)
                hint = f", such as {' and '.join(near)}" if near else ""
                if not fitting and Path(name).is_file():
                    hint = "; with --checkpoint it is searched for as an image of its own"
                raise ConfigError(f"--query {name} fits {len(rows)} of the {len(self.paths)} images{hint}")
            found += rows
        return torch.tensor(found) if names else torch.arange(len(self.paths))
