"""The k-NN readout alone, for anybody's LightningModule and loaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from mmcl_lightning.callbacks.readouts import Readouts
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.metrics import KNNProtocol
from mmcl_lightning.readouts import KNN

__all__ = ["OnlineKNN"]


class OnlineKNN(Readouts):
    """:class:`Readouts` with the k-NN readout alone, in one line.

    ``Trainer(callbacks=[OnlineKNN(k=20, bank_loader=train, query_loader=test)])`` works on any
    LightningModule whose ``forward`` maps images to ``(B, F)``.

    Args:
        protocol: As the next four, an option of :class:`~mmcl_lightning.readouts.KNN`.
        k: Neighbours.
        temperature: T of the weights exp(s / T).
        feature: ``"h"`` or ``"z"``.
        every_n_epochs: As the next six, an option of :class:`Readouts`.
        at_start: Read before the first step too.
        bank_loader: Batches of the bank; ``None`` asks the datamodule's ``knn_dataloaders()``.
        query_loader: Batches to classify; given together with ``bank_loader``.
        num_classes: Number of classes; ``None`` asks the datamodule, else the largest label counts.
        protocols: Further protocols from the same pass over the images, an option of ``KNN``.
        bank_device: Where the bank lies.
        bank_dtype: How the bank is kept.
        chunk_size: Queries that are compared with the bank at a time, an option of ``KNN``.

    Writes:
        What :class:`~mmcl_lightning.readouts.KNN` writes. ``knn/top1`` exists from the start, so that
        ``ModelCheckpoint(monitor="knn/top1", mode="max")`` works.

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
        if (bank_loader is None) != (query_loader is None):
            raise ConfigError("give bank_loader and query_loader together, or neither")
        self._knn = KNN(protocol, k, temperature, feature, protocols, chunk_size)
        super().__init__(
            every_n_epochs,
            at_start,
            knn=self._knn,
            bank_loader=bank_loader,
            query_loader=query_loader,
            num_classes=num_classes,
            bank_device=bank_device,
            bank_dtype=bank_dtype,
        )

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Epochs trained and ``knn/top1`` of every reading."""
        return self._knn.curve

    @property
    def best(self) -> tuple[int, float] | None:
        """Epochs trained and ``knn/top1`` of the best reading so far, the earliest of equals."""
        return self._knn.best

    @property
    def described(self) -> str:
        """The protocol as it was used in the last reading, in words."""
        return self._knn.described
