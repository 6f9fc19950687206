"""The loss in a training loop of one's own: PyTorch alone.

python examples/loss_in_a_loop.py
"""

import torch
from torch import nn

from mmcl_lightning import MMCLLoss

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 64), nn.ReLU(), nn.Linear(64, 32))
criterion = MMCLLoss(form="log", temperature=0.2, symmetric=True)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
images = torch.rand(128, 3, 16, 16)


def view(images: torch.Tensor) -> torch.Tensor:
    """Draw a view: here noise and a flip; in earnest a transform of mmcl_lightning.transforms."""
    noisy = images + 0.1 * torch.randn_like(images)
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, noisy.flip(3), noisy)


losses = []
for _ in range(20):
    loss = criterion(network(view(images)), network(view(images)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {criterion.last_stats}")
assert losses[-1] < losses[0]
