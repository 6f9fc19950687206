"""Images with their representations, from a file that ``predict`` or ``embed`` wrote."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
        """Read a file.

        Raises:
            ConfigError: If there is none of that name.
            DataError: If it has no ``h``, or is damaged.
        """
        columns = read_table(Path(path))
        if "h" not in columns:
            raise DataError(
                f"{path} has no h but {', '.join(columns)}: give a file that predict or embed wrote"
            )
        count = len(columns["h"])
        names = next((columns[name] for name in ("path", "name") if name in columns), range(count))
        texts = [
            [str(value) for value in columns[name]] if name in columns else [""] * count
            for name in ("class", "split")
        ]
        return EmbeddedImages(
            torch.tensor(columns["h"], dtype=torch.float32), [str(name) for name in names], *texts
        )

    def rows(self, names: Iterable[str]) -> Tensor:
        """Return the rows of images ``(Q,)`` by their paths, or the ends of these; all without a name.

        Raises:
            ConfigError: If there is no such image, or several.
        """
        names, places = list(names), Places(self.paths, "")
        number: dict[str, int] = {}
        for row, path in enumerate(self.paths):
            number.setdefault(path, row)
        found = []
        for name in names:
            fitting = places.find(name)
            if len(fitting) != 1:
                near = fitting[:2] or difflib.get_close_matches(name, self.paths, n=1)
                hint = f", such as {' and '.join(near)}" if near else ""
                raise ConfigError(f"--query {name} fits {len(fitting)} of the {len(number)} images{hint}")
            found.append(number[fitting[0]])
        return torch.tensor(found) if names else torch.arange(len(self.paths))
