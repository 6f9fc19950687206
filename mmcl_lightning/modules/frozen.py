"""Evaluations of a frozen backbone: nothing may change it, and at the end that is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from mmcl_lightning._lightning import callbacks_of
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.modules.classifier import ClassifierModule
from mmcl_lightning.modules.judging import JudgingModule
from mmcl_lightning.modules.weights import digests

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FrozenBackbone", "FrozenClassifier", "check_unchanged"]


class FrozenBackbone(JudgingModule):
    """A module with a backbone that stays what it is, bit for bit, batch norm included, or the run fails.

    Its constructor calls :meth:`freeze_backbone` once the backbone is there.

    Raises:
        NumericalError: At the end of a fit, if the backbone is not what it was.
    """

    backbone: nn.Module
    bn_train = False

    def freeze_backbone(self) -> None:
        """Let no gradient reach the backbone."""
        self.backbone.requires_grad_(False)
        self._frozen: dict[str, str] = {}  # what the backbone was at the start of the first fit

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the backbone, which stays in evaluation mode unless ``bn_train``."""
        super().train(mode)
        if not self.bn_train:
            self.backbone.eval()
        return self

    def mode(self) -> str:
        """Say in words what happens to the backbone."""
        return "frozen weights, batch norm in training mode" if self.bn_train else "frozen backbone"

    def remember_frozen(self) -> None:
        """Remember what the backbone is, at the start of a fit."""
        self.train()
        if self._frozen:  # the checkpoint of an earlier part of this run says what it was
            self._check_frozen()
        self._frozen = self._digests()

    def on_train_end(self) -> None:
        """Check that the backbone is what it was."""
        self._check_frozen()
        rank_zero_info(f"the backbone is unchanged: {len(self._frozen)} tensors are bit-identical")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the backbone was."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["frozen"] = dict(self._frozen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what the backbone was."""
        super().on_load_checkpoint(checkpoint)
        self._frozen = dict(checkpoint.get("frozen", {}))

    def _digests(self) -> dict[str, str]:
        named = self.backbone.named_parameters() if self.bn_train else self.backbone.state_dict().items()
        return digests(dict(named))

    def _check_frozen(self) -> None:
        check_unchanged(self._frozen, self._digests())


class FrozenClassifier(FrozenBackbone, ClassifierModule):
    """A classifier on a frozen backbone.

    Args:
        *args: As of :class:`ClassifierModule`.
        **kwargs: As there.

    Raises:
        ConfigError: Before a fit, if a callback cannot work on such a module.
    """

    refused: ClassVar[dict[type, str]] = {}  # callbacks that cannot work on it, and why

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.freeze_backbone()

    def setup(self, stage: str) -> None:
        """Refuse callbacks that cannot work on it, and make the classifier."""
        for callback in callbacks_of(self) if stage == "fit" else []:
            for kind, why in self.refused.items():
                if isinstance(callback, kind):
                    name = type(callback).__name__
                    raise ConfigError(f"{name} {why}: leave it out of trainer.callbacks")
        super().setup(stage)


def check_unchanged(before: dict[str, str], now: dict[str, str]) -> None:
    """Compare what a frozen backbone was with what it is.

    Args:
        before: Digests of its tensors by name.
        now: The same of now.

    Raises:
        NumericalError: If they differ.
    """
    changed = [name for name, digest in before.items() if now.get(name) != digest]
    if changed:
        raise NumericalError(
            f"the frozen backbone has changed: {len(changed)} of {len(now)} tensors, the first being "
            f"{changed[0]}. The result is not that of its features: find the callback, optimizer or "
            "hook that writes to the backbone"
        )
