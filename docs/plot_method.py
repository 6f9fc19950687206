"""Draw ``docs/images/method.png``: one machine in the plane, for three widths of the kernel."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from mmcl_lightning.kernels import RBF
from mmcl_lightning.svm import Exact, max_margin_dual


def draw(axis: plt.Axes, gamma: float, points: torch.Tensor) -> None:
    """Draw the machine of point 0 against all others."""
    kernel = RBF(gamma)
    problem = max_margin_dual(kernel(points, points), torch.tensor([0]), C=100.0, reg=0.1)
    alpha = Exact()(problem).alpha[0]
    line = torch.linspace(-2.1, 2.1, 200)
    y, x = torch.meshgrid(line, line, indexing="ij")
    grid = torch.stack([x.flatten(), y.flatten()], dim=1)
    value = alpha.sum() * kernel(grid, points[:1])[:, 0] - kernel(grid, points) @ alpha
    value = value.reshape(x.shape)
    top = value.abs().max()
    axis.contourf(x, y, value, levels=20, cmap="RdBu", vmin=-top, vmax=top, alpha=0.5)
    axis.contour(x, y, value, levels=[0.0], colors="black", linewidths=1.2)
    found = alpha > 0
    axis.scatter(*points[1:].T, s=14, color="#b2182b", zorder=3)
    axis.scatter(
        *points[found].T,
        s=40 + 260 * alpha[found] / alpha.max(),
        facecolors="none",
        edgecolors="black",
        zorder=4,
    )
    axis.scatter(*points[0], marker="P", s=120, color="#2166ac", edgecolors="white", zorder=5)
    axis.set(
        title=f"gamma = {gamma:g}: {int(found.sum())} support vectors", xticks=[], yticks=[], aspect="equal"
    )


def main() -> None:
    """Draw and save."""
    torch.manual_seed(3)
    negatives = torch.cat([0.45 * torch.randn(20, 2) + torch.tensor(c) for c in ([1.0, -0.6], [-0.9, 0.9])])
    points = torch.cat([torch.tensor([[0.7, 0.9]]), negatives.clamp(-2, 2)])
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
    for axis, gamma in zip(axes, (0.1, 1.0, 10.0), strict=True):
        draw(axis, gamma, points)
    figure.savefig(Path(__file__).parent / "images" / "method.png", dpi=110)


if __name__ == "__main__":
    main()
