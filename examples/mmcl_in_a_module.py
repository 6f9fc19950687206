"""MMCL as a part of another LightningModule, which has a task of its own.

python examples/mmcl_in_a_module.py
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional as F

from mmcl_lightning import MMCL
from mmcl_lightning.datamodules import ShapesDataModule


class Both(LightningModule):
    """Learns labels and, by the same backbone, a contrast."""

    def __init__(self) -> None:
        super().__init__()
        self.mmcl = MMCL(backbone="conv4", projection_head="cifar")
        self.classifier = nn.Linear(256, 10)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the sum of both losses."""
        views, labels = batch
        contrast, h = self.mmcl.loss_of_views(views)
        label = F.cross_entropy(self.classifier(h), labels.repeat(2))  # h has no gradient, as a probe's
        self.log_dict({"contrast": contrast, "label": label})
        return contrast + label

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train everything."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = ShapesDataModule(train_size=128, test_size=32, batch_size=32, num_workers=0)
trainer = Trainer(max_steps=4, logger=False, enable_checkpointing=False, accelerator="cpu")
trainer.fit(Both(), data.train_dataloader())
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
