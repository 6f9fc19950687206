"""The same values on a GPU as on the CPU; skipped where there is none."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import BASELINES, KERNELS, SOLVERS, make_views, name
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import mmcl, moco, shapes, simclr, trainer, tu

from mmcl_lightning import MMCL, MMCLLoss, NTXentLoss
from mmcl_lightning.callbacks import OnlineKNN, Readouts, Throughput
from mmcl_lightning.datamodules import ShapesDataModule
from mmcl_lightning.deferred import DeferredChecks
from mmcl_lightning.errors import NumericalError
from mmcl_lightning.kernels import Intersection, Kernel
from mmcl_lightning.losses import ContrastiveLoss
from mmcl_lightning.modules import LinearEvaluation
from mmcl_lightning.readouts import KNN, LinearProbe
from mmcl_lightning.svm import Exact, Solver

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def value_and_gradients(loss: ContrastiveLoss, z0: torch.Tensor, z1: torch.Tensor) -> list[torch.Tensor]:
    leaves = [z.detach().clone().requires_grad_() for z in (z0, z1)]
    value = loss(*leaves)
    value.backward()
    return [value.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_loss_equals_that_of_the_cpu(kernel: Kernel, solver: Solver) -> None:
    z0, z1 = make_views(24, 8, seed=3)
    loss = MMCLLoss(kernel, solver, C=10.0, reg=0.5)
    on_cpu = value_and_gradients(loss, z0, z1)
    on_gpu = value_and_gradients(loss, z0.cuda(), z1.cuda())
    for cpu, gpu in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", BASELINES, ids=repr)
def test_baseline_equals_that_of_the_cpu(loss: ContrastiveLoss) -> None:
    z0, z1 = make_views(24, 8, seed=6)
    on_cpu = value_and_gradients(loss, z0, z1)
    on_gpu = value_and_gradients(loss, z0.cuda(), z1.cuda())
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-9, atol=1e-12)


def test_single_precision_on_the_gpu_is_no_worse_than_on_the_cpu() -> None:
    """TF32 would show here: its eleven bits are not enough for the factorisation."""
    z0, z1 = make_views(64, 32, seed=4)
    for loss in (NTXentLoss(), MMCLLoss(), MMCLLoss(solver=Exact())):
        exact = value_and_gradients(loss, z0, z1)[0]
        gpu = value_and_gradients(loss, z0.float().cuda(), z1.float().cuda())[0]
        assert abs(gpu.double() / exact - 1) < 1e-4


def test_intersection_stores_no_array_of_all_pairs_and_dimensions() -> None:
    z0, z1 = (z.float().cuda() for z in make_views(256, 128, seed=5))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value_and_gradients(MMCLLoss(Intersection()), z0, z1)
    n = 512
    assert torch.cuda.max_memory_allocated() - before < 4 * n * n * 128 / 2


@pytest.mark.parametrize(
    "loss",
    [NTXentLoss(), MMCLLoss(), MMCLLoss(form="log"), MMCLLoss(solver=Exact())],
    ids=lambda loss: loss.method,
)
def test_a_loss_waits_for_nothing_and_fits_into_a_cuda_graph(loss: ContrastiveLoss) -> None:
    """A wait within the capture of a graph is an error, and within the debug mode of waits too."""
    first, second = (torch.stack(make_views(32, 16, seed=seed)).float().cuda() for seed in (8, 9))
    views = first.clone().requires_grad_()

    def step() -> torch.Tensor:
        views.grad = None
        value = loss(views[0], views[1])
        value.backward()
        return value

    checks = DeferredChecks()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), checks.collect("before the capture"):
        for _ in range(3):  # handles and workspaces are made before
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    checks.look()
    graph, captured = torch.cuda.CUDAGraph(), DeferredChecks()
    with captured.collect("in the graph"), torch.cuda.graph(graph):
        value = step()
    with torch.no_grad():
        views.copy_(second)
    graph.replay()
    captured.look()  # what the replay computed
    assert views.grad is not None
    expected = value_and_gradients(loss, second[0], second[1])
    torch.testing.assert_close(value.cpu(), expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(views.grad.cpu(), torch.stack(expected[1:]), rtol=1e-3, atol=1e-6)


def test_the_auto_path_of_a_gpu_is_the_fixed_one() -> None:
    z0, z1 = (view.float().cuda() for view in make_views(64, 32, seed=4))
    values = [MMCLLoss(solver=Exact(path=path))(z0, z1).item() for path in ("auto", "fixed", "adaptive")]
    assert values[0] == values[1]
    assert abs(values[0] / values[2] - 1) < 1e-3


def test_a_deferred_check_names_the_step(tmp_path: Path) -> None:
    module = MMCL(backbone="conv4", projection_head="cifar")
    torch.nn.init.constant_(next(module.projection_head.parameters()), float("nan"))
    data = ShapesDataModule(train_size=64, test_size=32, image_size=16, batch_size=16, num_workers=0)
    trainer = Trainer(
        accelerator="cuda", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, limit_val_batches=0, default_root_dir=tmp_path, log_every_n_steps=3,
    )  # fmt: skip
    with pytest.raises(NumericalError, match=r"^training step 0: projections are not finite"):
        trainer.fit(module, data)
    assert trainer.global_step == 3


class NoWaits(Callback):
    """Makes a wait an error, from the start of a step that is not logged to the start of the next step."""

    def __init__(self) -> None:
        self.steps = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step + 1
        strict = step > trainer.log_every_n_steps and step % trainer.log_every_n_steps > 0
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        self.steps += strict

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", [mmcl, simclr, moco])
def test_a_step_between_two_logs_waits_for_nothing(kind: Any, tmp_path: Path) -> None:
    """With the callbacks of a recipe; benchmarks/step_waits.py counts the same without a GPU."""
    guard, readouts = NoWaits(), Readouts(probe=LinearProbe(), knn=KNN(k=5))
    settings = {"accelerator": "cuda", "log_every_n_steps": 4, "max_epochs": 1, "log": True}
    trainer(tmp_path, guard, readouts, Throughput(), **settings).fit(
        kind(), shapes(train_size=64, batch_size=4)
    )
    assert guard.steps == 9  # of 16, but the first 4 and three that are logged


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_training_in_mixed_precision(precision: str) -> None:
    data = ShapesDataModule(train_size=512, test_size=128, batch_size=128, num_workers=0)
    knn = OnlineKNN(k=20)
    trainer = Trainer(
        accelerator="cuda", devices=1, precision=precision, max_epochs=3, callbacks=[knn], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, limit_val_batches=0,
    )  # fmt: skip
    module = MMCL(backbone="conv4", projection_head="cifar", solver=Exact())
    before = copy.deepcopy(module.state_dict())
    trainer.fit(module, data)
    assert all(value.isfinite().all() for value in module.state_dict().values())
    assert any(not torch.equal(before[key], value.cpu()) for key, value in module.state_dict().items())
    assert len(knn.curve) == 4
    problem = module.criterion.last_duals[0].problem
    assert problem is not None
    assert problem.gram.dtype == torch.float32


def test_graphs_resume_exactly_where_sums_have_one_order(tmp_path: Path) -> None:
    """Without ``deterministic`` the GPU adds up edges in any order; see docs/graphs.md."""
    options = {"backbone": "gin:7", "projection_head": "moco", "output_dim": 16}
    settings = {"accelerator": "cuda", "max_epochs": 3, "deterministic": True}
    whole, resumed = mmcl(**options), mmcl(seed=9, **options)
    saver = ModelCheckpoint(tmp_path / "saved", "{epoch}", save_top_k=-1)
    trainer(tmp_path / "a", saver, **settings).fit(whole, tu(tmp_path))
    path = tmp_path / "saved" / "epoch=0.ckpt"
    trainer(tmp_path / "b", **settings).fit(resumed, tu(tmp_path), ckpt_path=path)
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


def test_probe_and_linear_evaluation_train(tmp_path: Path) -> None:
    options = {"train_size": 64, "test_size": 32, "image_size": 32, "batch_size": 16, "num_workers": 0}
    settings = {
        "accelerator": "gpu", "devices": 1, "precision": "bf16-mixed", "max_epochs": 2, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "default_root_dir": tmp_path,
    }  # fmt: skip
    probe = LinearProbe()
    trainer = Trainer(callbacks=[Readouts(probe=probe)], **settings)
    trainer.fit(MMCL(backbone="conv4", projection_head="cifar"), ShapesDataModule(**options))
    assert len(probe.curve) == 2
    assert probe.classifier is not None
    assert probe.classifier.linear.weight.is_cuda
    assert probe.classifier.linear.weight.dtype == torch.float32
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    module = LinearEvaluation(str(tmp_path / "end.ckpt"))
    Trainer(**settings).fit(module, ShapesDataModule(**options, task="classify"))  # checks that it is frozen
    assert [epoch for epoch, *_ in module.curve] == [1, 2]
    assert module.classifier is not None
    assert module.classifier.weight.isfinite().all()
