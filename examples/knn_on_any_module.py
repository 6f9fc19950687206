"""The k-NN readout on somebody else's module: any LightningModule whose forward gives features.

python examples/knn_on_any_module.py
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmcl_lightning.callbacks import OnlineKNN


class Autoencoder(LightningModule):
    """Has nothing to do with this package."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape ``(B, 8)``."""
        return self.encoder(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the error of the reconstruction."""
        return (self.decoder(self(batch[0])) - batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train everything."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


labels = torch.arange(200) % 4
data = TensorDataset(torch.randn(200, 64) + 3 * torch.nn.functional.one_hot(labels, 64), labels)
loader = DataLoader(data, batch_size=50)
knn = OnlineKNN(k=5, bank_loader=loader, query_loader=DataLoader(data, batch_size=50))
trainer = Trainer(max_epochs=3, callbacks=[knn], logger=False, enable_checkpointing=False, accelerator="cpu")
trainer.fit(Autoencoder(), loader)
print(f"k-NN top-1: {float(trainer.callback_metrics['knn/top1']):.2f}")
