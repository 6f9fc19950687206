"""Mixed precision: the network in half, the loss in single; failed factorisations are repeated, counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from mmcl_lightning import MMCL, MMCLLoss, SimCLR
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.modules import ContrastiveModule
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, Solver


class Seen(Callback):
    """What the loss was given and gave."""

    def __init__(self, module: ContrastiveModule) -> None:
        self.inputs: list[torch.dtype] = []
        self.losses: list[torch.Tensor] = []
        module.criterion.register_forward_hook(self.look)

    def look(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self.inputs.append(inputs[0].dtype)
        self.losses.append(output.detach())


def train(module: ContrastiveModule, path: Path, **options: object) -> Trainer:
    data = ShapesDataModule(train_size=64, test_size=16, batch_size=16, num_workers=0)
    trainer = Trainer(
        accelerator="cpu", max_steps=4, logger=False, enable_checkpointing=False, limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=path, log_every_n_steps=1,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    trainer.fit(module, data)
    return trainer


@pytest.mark.parametrize(
    "solver", [None, Inverse(), Exact(), ProjectedGradient()], ids=lambda s: type(s).__name__
)
def test_loss_is_single_precision_under_bf16_mixed(solver: Solver | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"backbone": "conv4", "projection_head": "cifar", "output_dim": 16}
    module = SimCLR(**options) if solver is None else MMCL(solver=solver, **options)
    seen = Seen(module)
    train(module, tmp_path, precision="bf16-mixed")
    assert seen.inputs == [torch.bfloat16] * 4
    assert {loss.dtype for loss in seen.losses} == {torch.float32}
    assert torch.stack(seen.losses).isfinite().all()
    assert all(p.isfinite().all() for p in module.parameters())
    if isinstance(module.criterion, MMCLLoss):
        assert module.criterion.last_duals[0].problem.gram.dtype == torch.float32


def test_failed_factorisations_are_repeated_counted_and_said(tmp_path: Path) -> None:
    """A network that maps all images to one point, without a ridge: the kernel matrix is singular."""

    class Constant(torch.nn.Module):
        num_features = 4

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.expand(len(x), 4)

    module = MMCL(backbone=Constant(), projection_head=torch.nn.Identity(), reg=0.0, C=1.0)
    with pytest.warns(UserWarning, match="could not be factorised at step 1"):
        trainer = train(module, tmp_path)
    assert trainer.callback_metrics["svm/retries"] >= 4
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
