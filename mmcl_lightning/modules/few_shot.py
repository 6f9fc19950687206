"""Judge a pretrained backbone by few labelled images of each class, without any training."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from mmcl_lightning._lightning import datamodule_of, replace_hyperparameters
from mmcl_lightning._specs import to_spec
from mmcl_lightning.batches import clean_views
from mmcl_lightning.distributed import layout
from mmcl_lightning.errors import DataError
from mmcl_lightning.metrics import FewShotProtocol, FewShotResult, few_shot_accuracy, gather_in_order
from mmcl_lightning.models import explained
from mmcl_lightning.modules.frozen import check_unchanged
from mmcl_lightning.modules.pretrained import PretrainedBackbone
from mmcl_lightning.modules.recording import record_options
from mmcl_lightning.modules.weights import digests
from mmcl_lightning.views import mean_over_views

__all__ = ["FewShotEvaluation"]


class FewShotEvaluation(PretrainedBackbone):
    """Classify images by the nearest mean feature of a few labelled images of their class.

    Run it by ``test``. Each image passes the frozen network once; then episodes are drawn on the features:
    ``way`` classes, and of each ``shots`` labelled images and ``queries`` others, which are classified. The
    published code decodes the images of every episode anew, which comes to the same, as nothing in it is
    random but the draw. The episodes are a function of ``seed`` and the order of the data set alone.

    Source: Ericsson et al., CVPR 2021, arXiv:2011.13377. The baseline of Guo et al., ECCV 2020, on the same
    data fits a classifier in each episode: another number.

    Args:
        checkpoint: Where the backbone's weights come from, as in :class:`PretrainedBackbone`; or
            ``"random"`` for a random start, the floor under all.
        way: Classes of an episode, >= 2.
        shots: Labelled images of each class; published are 5, 20 and 50.
        queries: Further images of each class.
        episodes: How many episodes are drawn.
        seed: The episodes are a function of it.
        backbone: As in :class:`PretrainedBackbone`.
        cifar_stem: As there.
        preprocessing: As there.

    Logs:
        ``few_shot/accuracy``, the mean over the episodes, and ``few_shot/half_width``, half of its 95 %
        interval, over episodes and not over trainings; the text ``few_shot/protocol``.

    Raises:
        ConfigError: If an option is out of range, or the weights do not fit the backbone one by one.
        DataError: At the end of ``test``, if there are too few classes, or too few images of one.
        NumericalError: There, if a feature is not finite, or the backbone is not what it was.
    """

    tag: ClassVar[str] = "few_shot"
    measured_by: ClassVar[str] = "test"  # what the record of a run is of

    def __init__(
        self,
        checkpoint: str | None = None,
        way: int = 5,
        shots: int = 20,
        queries: int = 15,
        episodes: int = 600,
        seed: int = 0,
        backbone: str | dict[str, Any] | None = None,
        cifar_stem: bool | None = None,
        preprocessing: Literal["checkpoint", "data"] = "checkpoint",
    ) -> None:
        self.protocol = FewShotProtocol(way, shots, queries, episodes, seed)  # before a file is read
        super().__init__(checkpoint, backbone, cifar_stem, preprocessing)
        record_options(self)
        replace_hyperparameters(self, to_spec({**self.hparams, "checkpoint": self.checkpoint}))
        self.protocol_texts: dict[str, str] = {}  # for the ledger, by the name of the number
        self.result: FewShotResult | None = None
        self._frozen: dict[str, str] = {}
        self._h: list[Tensor] = []
        self._labels: list[Tensor] = []

    def on_test_start(self) -> None:
        """Remember what the backbone is, and start from nothing."""
        self._frozen = digests(self.backbone.state_dict())
        self._h, self._labels, self.result = [], [], None

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Keep the features of a batch."""
        views, labels = clean_views(batch)
        with explained(self.backbone, views[0]):
            h: Tensor = mean_over_views(self, views)
        self._h.append(h.float())
        self._labels.append(labels.to(self.device))

    def on_test_epoch_end(self) -> None:
        """Draw the episodes on the features of all processes, and log their accuracy."""
        h, labels = self._gathered()
        names = getattr(datamodule_of(self.trainer), "class_names", None)
        self.result = few_shot_accuracy(h, labels, self.protocol, names)
        check_unchanged(self._frozen, digests(self.backbone.state_dict()))
        text = f"{self.protocol.describe()}, frozen backbone, weights {self.checkpoint}"
        if self.preprocessing is not None:
            text += f", images of {self.preprocessing['text']}"
        values = {"accuracy": self.result.accuracy, "half_width": self.result.half_width}
        self.protocol_texts = {f"{self.tag}/{name}": text for name in values}
        self.log_dict({f"{self.tag}/{name}": value for name, value in values.items()}, batch_size=1)
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and self.trainer.is_global_zero:
                logger.experiment.add_text(f"{self.tag}/protocol", text, 0)
        rank_zero_info(f"the backbone is unchanged: {len(self._frozen)} tensors are bit-identical")

    def summary(self) -> list[str]:
        """Return the result in words."""
        if self.result is None:
            return []
        return [
            f"few-shot accuracy: {self.result.accuracy:.4f} ± {self.result.half_width:.4f}, the 95 % "
            "interval over episodes, not over trainings",
            f"protocol:          {self.protocol_texts[f'{self.tag}/accuracy']}",
        ]

    def _gathered(self) -> tuple[Tensor, Tensor]:
        """Return features ``(N, F)`` and labels of all processes, in the order of the data set."""
        if not self._h:
            raise DataError("there are no images to classify: the test loader gave no batch")
        h, labels = torch.cat(self._h), torch.cat(self._labels)
        self._h, self._labels = [], []
        where = layout()
        if where.world_size == 1:
            return h, labels
        # Samplers that share images out give process r the positions r, r + W, ..., and fill up at the end.
        index = torch.arange(len(h), device=h.device) * where.world_size + where.rank
        h, labels = gather_in_order(h, index), gather_in_order(labels, index)
        dataset = getattr(self.trainer.test_dataloaders, "dataset", None)
        size = len(dataset) if isinstance(dataset, Sized) else len(h)
        return h[:size], labels[:size]
