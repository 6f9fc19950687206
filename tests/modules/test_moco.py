"""MoCo: the key encoder, the queue, the shuffle; checkpoints, precision and the command line."""

from __future__ import annotations

import copy
import itertools
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from runs import FlatNet, Recorder, moco, shapes, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmcl_lightning import MoCo
from mmcl_lightning.callbacks import OnlineKNN
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.losses import HardNegativeMixing, InfoNCELoss
from mmcl_lightning.losses.queue import unit_rows
from mmcl_lightning.metrics import KNN_PROTOCOLS, knn_accuracy
from mmcl_lightning.models import ProjectionHead

pytestmark = pytest.mark.filterwarnings("ignore:MoCo. batch norm sees:UserWarning")

KEY_PREFIXES = ("key_backbone.", "key_projection_head.")


def views(images: int = 8, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(images, 3, 16, 16, generator=generator) for _ in range(2)]


def flat(**changes: Any) -> MoCo:
    """Without batch norm."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return moco(backbone=FlatNet(), projection_head=head, **changes)


def fitted(folder: Path, module: MoCo, *callbacks: Callback, **changes: Any) -> Trainer:
    run = trainer(folder, *callbacks, **changes)
    run.fit(module, shapes())
    return run


def pairs(module: MoCo) -> list[tuple[Tensor, Tensor]]:
    """Weights that are trained, each beside its copy in the key encoder."""
    named = dict(module.named_parameters())
    return [(named[name.removeprefix("key_")], p) for name, p in named.items() if name.startswith("key_")]


class Moves(Callback):
    """What the weights were before and after every batch."""

    def __init__(self) -> None:
        self.expected: list[list[Tensor]] = []
        self.found: list[list[Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        keep = pl_module.momentum if batch_idx % trainer.accumulate_grad_batches == 0 else 1.0
        self.expected.append([keep * k.clone() + (1 - keep) * q.clone() for q, k in pairs(pl_module)])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.found.append([k.clone() for _, k in pairs(pl_module)])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_key_encoder_moves_once_per_optimizer_step(accumulate: int, tmp_path: Path) -> None:
    moves, module = Moves(), moco(momentum=0.7)
    fitted(tmp_path, module, moves, precision="64-true", accumulate_grad_batches=accumulate)
    for found, expected in zip(moves.found, moves.expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)
    assert len(moves.found) == 4
    assert any((a - b).abs().max() > 1e-4 for a, b in zip(moves.found[0], moves.found[-1], strict=True))


def test_the_key_encoder_has_no_gradient_and_no_optimizer(tmp_path: Path) -> None:
    module = moco(symmetric=True)
    start = copy.deepcopy(module.state_dict())
    keys = [p for name, p in module.named_parameters() if name.startswith(KEY_PREFIXES)]
    trained = [*module.backbone.parameters(), *module.projection_head.parameters()]
    assert len(keys) == len(trained)
    loss, _ = module.loss_of_views(views())
    loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in keys)
    assert all(p.grad is not None for p in trained)
    run = fitted(tmp_path, module, limit_train_batches=1)
    (optimizer,) = run.optimizers
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held.isdisjoint(map(id, keys))
    assert len(held) == len(keys)
    weights = {name for name, _ in module.named_parameters()}
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, start[name])}
    assert not {name for name in moved & weights if name.startswith("key_")}  # they were alike in step 1
    assert moved >= {"backbone.blocks.0.weight", "queue", "keys_seen"}


def test_batch_norm_of_the_key_encoder_sees_its_own_view() -> None:
    module = moco()
    twin, (view0, view1) = copy.deepcopy(module.backbone), views()
    module.loss_of_views([view0, view1])
    twin(view1)
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(module.key_backbone.get_buffer(name), buffer)
    assert not torch.allclose(module.backbone.blocks[2].running_mean, twin.blocks[2].running_mean)


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_is_that_of_queries_keys_and_the_queue_before(symmetric: bool) -> None:
    module = flat(symmetric=symmetric)
    with torch.no_grad():
        for p in module.key_backbone.parameters():
            p.mul_(1.5)
    before, (view0, view1) = module.queue.clone(), views()
    loss, _ = module.loss_of_views([view0, view1])

    def side(a: Tensor, b: Tensor) -> Tensor:
        query = module.projection_head(module.backbone(a))
        return InfoNCELoss(0.2)(query, module.key_projection_head(module.key_backbone(b)), before)

    expected = (side(view0, view1) + side(view1, view0)) / 2 if symmetric else side(view0, view1)
    torch.testing.assert_close(loss, expected)
    assert torch.equal(module.queue, before)


def test_the_queue_is_a_ring() -> None:
    module, rows = flat(queue_size=5), [0.0] * 5
    module.queue.zero_()
    count = 0
    for size in (3, 3, 1, 5, 12, 2):  # across the end, a whole turn, more than fit
        keys = torch.arange(count + 1.0, count + size + 1)
        for key in keys.tolist():
            rows[count % 5] = key
            count += 1
        module._enqueue(keys[:, None].expand(-1, 4))
        assert module.queue.tolist() == [[row] * 4 for row in rows]
        assert module.keys_seen == count
        assert sorted(rows) == [max(0.0, float(i)) for i in range(count - 4, count + 1)]  # the newest


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_run_fills_the_queue_with_unit_keys(symmetric: bool, tmp_path: Path) -> None:
    module = moco(symmetric=symmetric)
    start = module.queue.clone()
    torch.testing.assert_close(start.norm(dim=1), torch.ones(20))
    assert start.std(dim=0).min() > 0.1  # random directions
    torch.manual_seed(5)
    assert torch.equal(moco(seed=7).queue, start)  # alike in every process
    fitted(tmp_path, module, max_steps=3)
    assert module.keys_seen == 24 * (1 + symmetric)
    torch.testing.assert_close(module.queue.norm(dim=1), torch.ones(20))
    assert (module.queue - start).abs().amax(dim=1).min() > 0
    assert module._new_keys is not None
    last = (torch.arange(8) - 8 + module.keys_seen) % 20
    assert torch.equal(module.queue[last], module._new_keys[-8:])


def test_chunks_of_keys_hold_other_images_than_chunks_of_queries() -> None:
    module, seen = moco(chunk_size=4), {"backbone": [], "key_backbone": []}
    (view0, view1), number = views(12), torch.arange(12.0)
    view0[:, 0, 0, 0] = view1[:, 0, 0, 0] = number

    for name, calls in seen.items():
        module.get_submodule(name).register_forward_hook(
            lambda _module, inputs, _output, calls=calls: calls.append(inputs[0][:, 0, 0, 0].tolist())
        )
    module.loss_of_views([view0, view1])
    assert seen["backbone"] == number.view(3, 4).tolist()
    assert [len(chunk) for chunk in seen["key_backbone"]] == [4, 4, 4]
    assert sorted(itertools.chain(*seen["key_backbone"])) == number.tolist()
    assert all(sorted(chunk) not in seen["backbone"] for chunk in seen["key_backbone"])
    with torch.no_grad():  # as in validation, where it would cost and change nothing
        module.loss_of_views([view0, view1])
    assert seen["key_backbone"][3:] == number.view(3, 4).tolist()


def test_the_order_of_the_keys_is_restored_and_new_in_every_step() -> None:
    module, (view0, view1) = flat(chunk_size=3), views(12)
    seen: list[Tensor] = []
    module.key_backbone.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    for _ in range(2):
        module.loss_of_views([view0, view1])
        expected = unit_rows(module.key_projection_head(FlatNet.forward(module.key_backbone, view1)))
        torch.testing.assert_close(module._new_keys, expected.detach())
        module._enqueue(module._new_keys)
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradient_in_chunks_equals_that_of_one_pass(symmetric: bool) -> None:
    whole, chunked = flat(symmetric=symmetric).double(), flat(symmetric=symmetric, chunk_size=3).double()
    for module in (whole, chunked):
        module.loss_of_views([view.double() for view in views(10)])[0].backward()
    for a, b in zip(whole.backbone.parameters(), chunked.backbone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    assert whole._new_keys is not None
    torch.testing.assert_close(whole._new_keys, chunked._new_keys, rtol=1e-12, atol=1e-14)


def test_validation_changes_nothing(tmp_path: Path) -> None:
    module = moco(chunk_size=4)
    fitted(tmp_path, module, limit_train_batches=2)
    before = copy.deepcopy(module.state_dict())
    trainer(tmp_path, limit_val_batches=1.0).validate(module, shapes(), verbose=False)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class NoisyPairs(Dataset[Any]):
    """Two views of random coarse images that differ by noise."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(count, 3, 4, 4, generator=generator)
        self.images = nn.functional.interpolate(coarse, scale_factor=4)
        self.noise = 0.2 * torch.randn(2, count, 3, 16, 16, generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return [self.images[index] + self.noise[view, index] for view in (0, 1)], 0


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    recorder, module = Recorder(), moco(queue_size=64)
    run = trainer(tmp_path, recorder, max_epochs=10)
    run.fit(module, DataLoader(NoisyPairs(128), batch_size=32))
    early, late = recorder.loss[2:8], recorder.loss[-8:]  # the queue is full of keys after two steps
    assert max(late) < 0.8 * min(early)
    assert run.callback_metrics["train/contrast_top1"] > 0.4


def test_readout_and_prediction_read_the_trained_backbone(tmp_path: Path) -> None:
    module, knn, data = moco(), OnlineKNN(k=5), shapes()
    trainer(tmp_path, knn, max_epochs=2).fit(module, data)
    module.eval()
    features, labels = [], []
    with torch.no_grad():
        for loader in data.knn_dataloaders():
            batches = list(loader)
            images = torch.cat([batch[0] for batch in batches])
            assert not torch.allclose(module.backbone(images), module.key_backbone(images))
            features.append(module.backbone(images))
            labels.append(torch.cat([batch[1] for batch in batches]))
        out = module.predict_step((images, labels[-1]), 0)
    assert torch.equal(out["h"], features[-1])
    assert torch.equal(out["z"], module.projection_head(features[-1]))
    protocol = KNN_PROTOCOLS["mmcl_paper"]
    protocol = type(protocol)(**(vars(protocol) | {"k": 5}))
    expected = knn_accuracy(features[1], labels[1], features[0], labels[0], 10, protocol)["top1"]
    assert knn.curve[-1] == (2, pytest.approx(expected))


def test_checkpoint_rebuilds_the_module_and_trains_on(tmp_path: Path) -> None:
    module = moco(symmetric=True, temperature=0.3, momentum=0.8, chunk_size=4)
    run = fitted(tmp_path, module, limit_train_batches=3)
    run.save_checkpoint(tmp_path / "module.ckpt")
    weights = torch.load(tmp_path / "module.ckpt", weights_only=True)["state_dict"]
    assert {name.partition(".")[0] for name in weights} == {
        "backbone", "projection_head", "key_backbone", "key_projection_head", "queue", "keys_seen",
    }  # fmt: skip
    loaded = MoCo.load_from_checkpoint(tmp_path / "module.ckpt")
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    assert (loaded.symmetric, loaded.momentum, loaded.chunk_size) == (True, 0.8, 4)
    assert loaded.criterion.temperature == 0.3
    assert not any(p.requires_grad for p in loaded.key_backbone.parameters())
    fitted(tmp_path, loaded, limit_train_batches=1)
    assert loaded.keys_seen == 4 * 16


def test_defaults_are_those_of_moco_v2(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = MoCo(backbone="conv4")
    assert module.queue.shape == (65536, 128)
    assert (module.momentum, module.criterion.temperature, module.symmetric) == (0.999, 0.2, False)
    linear = module.projection_head.layers[::2]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(256, 256), (256, 128)]
    assert module.hparams["lr_schedule"] == "cosine"
    run = fitted(tmp_path, module, limit_train_batches=2)
    optimizer = run.optimizers[0]
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.03, 0.9)
    assert optimizer.defaults["weight_decay"] == 1e-4


def test_single_precision_loss_and_queue_under_bf16_mixed(tmp_path: Path) -> None:
    module, inputs = moco(), []
    module.criterion.register_forward_hook(
        lambda _module, given, output: inputs.append((given[0].dtype, given[2].dtype, output.dtype))
    )
    fitted(tmp_path, module, precision="bf16-mixed")
    assert inputs == [(torch.bfloat16, torch.float32, torch.float32)] * 4
    torch.testing.assert_close(module.queue.norm(dim=1), torch.ones(20))
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in module.parameters())
    assert any(not torch.equal(q, k) for q, k in pairs(module))


def test_weights_in_half_precision_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rounds away: train with precision bf16-mixed or 32-true"):
        fitted(tmp_path, moco(), precision="bf16-true")


def test_the_leak_of_batch_norm_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"tells a query's key from the queue: set chunk_size"):
        fitted(tmp_path, moco(), limit_train_batches=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="MoCo")
        fitted(tmp_path, moco(chunk_size=4), limit_train_batches=1)
        fitted(tmp_path, flat(), limit_train_batches=1)
        moco()._warn_of_leak(devices=2)
        synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(moco())
        with pytest.raises(UserWarning, match="leave sync_batchnorm off, or set chunk_size"):
            synchronised._warn_of_leak(devices=2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queue_size": 0}, "queue_size must be an integer >= 1, got 0"),
        ({"momentum": 1.0}, r"momentum must be a finite number in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must be a finite number in \[0, 1\), got -0.1"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0"),
        ({"chunk_size": 0}, "chunk_size must be an integer >= 1"),
    ],
)
def test_wrong_options_are_named_at_construction(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        moco(**options)


def test_not_finite_projections_name_the_step(tmp_path: Path) -> None:
    class Spoil(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 2:
                next(pl_module.projection_head.parameters()).data.fill_(torch.nan)

    with pytest.raises(NumericalError, match=r"training step 2: projections are not finite: 8 of 8 queries"):
        fitted(tmp_path, moco(), Spoil())


def test_a_head_without_batch_norm_as_wide_as_the_representation() -> None:
    head = ProjectionHead.moco(96, output_dim=7)
    shapes = [(type(layer).__name__, getattr(layer, "out_features", None)) for layer in head.layers]
    assert shapes == [("Linear", 96), ("ReLU", None), ("Linear", 7)]
    assert all(layer.bias is not None for layer in head.layers[::2])
    assert ProjectionHead.moco(96, 5).layers[0].out_features == 5


def test_by_its_bare_name_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "model": "MoCo", "model.backbone": "conv4", "model.queue_size": 20, "model.momentum": 0.5,
        "model.output_dim": 8, "model.symmetric": True, "model.chunk_size": 4, "data": "ShapesDataModule",
        "data.train_size": 16, "data.test_size": 10, "data.image_size": 16, "data.batch_size": 8,
        "data.num_workers": 0, "trainer.max_steps": 2, "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": False,
    }  # fmt: skip
    main(["fit", *[f"--{name}={value}" for name, value in options.items()]])
    path = next(tmp_path.rglob("last.ckpt"))
    loaded = MoCo.load_from_checkpoint(path)
    assert (loaded.momentum, loaded.symmetric, loaded.chunk_size) == (0.5, True, 4)
    assert loaded.queue.shape == (20, 8)
    assert loaded.keys_seen == 32
    assert loaded.lr_schedule == "cosine"
    assert loaded.optimizer([nn.Parameter(torch.ones(2, 2))]).defaults["lr"] == 0.03


def test_bare_names_are_found_by_a_fresh_process() -> None:
    command = [sys.executable, "cli.py", "fit", "--model=MoCo", "--data=ShapesDataModule", "--print_config"]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^  class_path: mmcl_lightning\.(modules\.)?MoCo$", result.stdout, re.MULTILINE)
    assert "queue_size: 65536\n" in result.stdout


# Mixing of hard negatives


class Negatives(Callback):
    """How many negatives each training step had."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        number = pl_module.criterion.last_stats["negatives"].item()
        self.seen.append((trainer.current_epoch, number))


def test_mixing_begins_after_its_epochs_and_is_in_the_checkpoint(tmp_path: Path) -> None:
    mixing, seen = HardNegativeMixing(hardest=8, pairs=6, with_query=3), Negatives()
    module = flat(queue_size=24, mixing=mixing, mixing_start=1)
    run = fitted(tmp_path, module, seen, max_epochs=2)
    assert {number for epoch, number in seen.seen if epoch == 0} == {24}
    assert {number for epoch, number in seen.seen if epoch == 1} == {24 + 6 + 3}
    run.save_checkpoint(tmp_path / "end.ckpt")
    again = MoCo.load_from_checkpoint(
        tmp_path / "end.ckpt", backbone=module.backbone, projection_head=module.projection_head
    )
    assert (again.mixing, again.mixing_start) == (mixing, 1)


def test_a_resumed_run_draws_what_the_whole_run_draws(tmp_path: Path) -> None:
    options = {"queue_size": 24, "mixing": HardNegativeMixing(8, 6, 3), "mixing_start": 0}
    options["lr_schedule"] = "constant"
    whole = flat(**options)
    fitted(tmp_path, whole, max_epochs=2)
    first = fitted(tmp_path, flat(**options), max_epochs=1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    second = flat(**options)
    torch.manual_seed(99)
    trainer(tmp_path, max_epochs=2).fit(second, shapes(), ckpt_path=tmp_path / "half.ckpt")
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, rtol=1e-6, atol=1e-6)


def test_a_queue_too_small_for_mixing_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="the 1024 hardest negatives, and queue_size is 24: lower"):
        flat(queue_size=24, mixing=HardNegativeMixing())
