"""The loss in lightly's SimCLR example, in place of its own: one line differs.

pip install lightly && python examples/loss_in_lightly.py
"""

import torch
import torchvision
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from torch import nn
from torch.utils.data import DataLoader

from mmcl_lightning import MMCLLoss


class SimCLR(nn.Module):
    """As in lightly's documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
        self.projection_head = SimCLRProjectionHead(512, 512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the projections of images."""
        return self.projection_head(self.backbone(x).flatten(start_dim=1))


dataset = torchvision.datasets.FakeData(32, (3, 32, 32), transform=SimCLRTransform(input_size=32))
model, criterion = SimCLR(), MMCLLoss(form="log", temperature=0.2)  # was: NTXentLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
for (x0, x1), *_ in DataLoader(dataset, batch_size=16, drop_last=True):
    loss = criterion(model(x0), model(x1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
