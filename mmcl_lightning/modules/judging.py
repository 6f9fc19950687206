"""What evaluations that are trained share: the backbone that they judge, and what they write down."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Literal

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from mmcl_lightning._lightning import replace_hyperparameters
from mmcl_lightning._log_number import log_number
from mmcl_lightning._options import check_choice
from mmcl_lightning._specs import to_spec
from mmcl_lightning.callbacks.progress import brings_a_bar
from mmcl_lightning.distributed import mean_over_processes
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules.preprocessing import take_over
from mmcl_lightning.modules.resumable import ResumableModule, restoring
from mmcl_lightning.modules.weights import backbone_from, given_weights

__all__ = ["JudgingModule", "check_same_classes"]


class JudgingModule(ResumableModule):
    """A module that judges a pretrained backbone, and says of which weights, images and protocol it is.

    Its constructor calls :meth:`judged_backbone` after
    :func:`~mmcl_lightning.modules.recording.record_options`.
    """

    tag = "judged"
    """What the names of its metrics begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.described = ""  # the protocol as it is run, in words
        self.protocol_texts: dict[str, str] = {}  # the same for the ledger, by the names of the numbers

    def judged_backbone(
        self,
        checkpoint: str | None,
        backbone: str | nn.Module | dict[str, Any] | None,
        cifar_stem: bool | None,
        preprocessing: Literal["checkpoint", "data"],
    ) -> nn.Module:
        """Build the backbone, and keep what its checkpoint says of its origin and its images.

        Args:
            checkpoint: Where the weights come from; see
                :func:`~mmcl_lightning.modules.weights.backbone_from`.
            backbone: As there.
            cifar_stem: As there.
            preprocessing: Whether images are made as those of the weights, ``"checkpoint"``, or as the data
                module has it, ``"data"``.

        Raises:
            ConfigError: If no weights are given, or they do not fit the backbone one by one.
        """
        check_choice("preprocessing", preprocessing, ("checkpoint", "data"))
        checkpoint = given_weights(checkpoint)
        file = "random" if restoring.get() else checkpoint
        module, source, report = backbone_from(file, backbone, cifar_stem)
        self.preprocessing = source.pop("preprocessing")
        self.keep_data = preprocessing == "data"
        if not restoring.get():
            rank_zero_info(report)
            checkpoint = source["checkpoint"]
        self.checkpoint = checkpoint  # the ledger says with it what pretraining was judged
        replace_hyperparameters(self, to_spec({**self.hparams, **source, "checkpoint": checkpoint}))
        return module

    def setup(self, stage: str) -> None:
        """Make images as those of the weights were."""
        take_over(self, keep_data=self.keep_data)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Refuse, where a subclass has no representations to write."""
        raise ConfigError(
            f"predict writes representations, and {type(self).__name__} has none: `mmcl embed --checkpoint "
            "FILE` writes those of its backbone"
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the origin of the weights."""
        super().on_load_checkpoint(checkpoint)
        self.checkpoint = checkpoint.get("hyper_parameters", {}).get("checkpoint", self.checkpoint)
        replace_hyperparameters(self, {**self.hparams, "checkpoint": self.checkpoint})

    def _log_step(self, loss: Tensor, count: int) -> None:
        """Log the loss of a training step, of all processes, and the learning rate.

        Args:
            loss: That of this process.
            count: Its images.
        """
        shown = mean_over_processes(loss)
        self.log("train/loss", shown, prog_bar=not brings_a_bar(self.trainer), batch_size=count)
        log_number(self, "train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], batch_size=count)

    def _log_measured(self, values: Mapping[str, float]) -> None:
        """Log what was measured of held-out images, the same on every process.

        Args:
            values: By the names of the numbers.
        """
        named = {f"{self.tag}/{name}": value for name, value in values.items()}
        # Their maximum over the processes is exact, which their mean is not.
        self.log_dict(named, batch_size=1, reduce_fx="max", sync_dist=True)

    def _describe(self, text: str, *names: str) -> None:
        """Write down what is run, and how its images are made, as the protocol of some numbers."""
        images = "" if self.preprocessing is None else f", images of {self.preprocessing['text']}"
        self.described = text + images
        self.protocol_texts |= {f"{self.tag}/{name}": self.described for name in names}
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and self.trainer.is_global_zero:
                logger.experiment.add_text(f"{self.tag}/protocol", self.described, self.global_step)


def check_same_classes(before: list[str] | None, now: list[str] | None) -> None:
    """Refuse data whose classes have other names, or another order, than those that were learnt.

    Args:
        before: Names of the classes that were learnt; None if unknown.
        now: Those of the data.

    Raises:
        ConfigError: If they differ.
    """
    if before is None or now is None or before == now:
        return
    first = next((old, new) for old, new in zip_longest(before, now) if old != new)
    raise ConfigError(
        f"the classifier has learnt {len(before)} classes, and the data's {len(now)} are others, or in "
        f"another order: the first that differs was {first[0]!r}, and is {first[1]!r}"
    )
