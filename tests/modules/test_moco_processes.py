"""MoCo in two processes with half a batch each equals one process with the whole batch."""

from __future__ import annotations

import datetime
import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from runs import FlatNet, moco, shapes, trainer
from torch import Tensor, nn

from mmcl_lightning import MoCo
from mmcl_lightning.errors import NumericalError
from mmcl_lightning.losses import HardNegativeMixing
from mmcl_lightning.losses.queue import unit_rows

IMAGES = 12


def flat(**changes: Any) -> MoCo:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    sgd = functools.partial(torch.optim.SGD, lr=0.5)
    return moco(backbone=FlatNet(), projection_head=head, optimizer=sgd, queue_size=40, **changes)


def train(folder: Path, batch_size: int, changes: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    run = trainer(folder, max_epochs=2, max_steps=3, **options)
    run.fit(flat(**changes), shapes(batch_size=batch_size))
    run.save_checkpoint(folder / "end.ckpt")
    return torch.load(folder / "end.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"symmetric": True}, {"mixing": HardNegativeMixing(20, 16, 8), "mixing_start": 1}],
    ids=["one-sided", "symmetric", "mixing"],
)
def test_training_gives_the_same_weights_and_queue(changes: dict[str, Any], tmp_path: Path) -> None:
    one = train(tmp_path / "one", 16, changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(tmp_path / "two", 8, changes, devices=2, strategy="ddp_fork")
    two = torch.load(tmp_path / "two" / "end.ckpt", weights_only=True)["state_dict"]
    start = flat().state_dict()
    assert two["keys_seen"] == 3 * 16 * (1 + changes.get("symmetric", False))  # past the end of the queue
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5)
    moved = {name for name, value in one.items() if (value - start[name]).abs().max() > 1e-3}
    assert moved == set(one)


def share(rank: int, world: int) -> list[Tensor]:
    """Views of this process's images; a pixel holds the number of the image."""
    generator = torch.Generator().manual_seed(3)
    both = [torch.rand(IMAGES, 3, 16, 16, generator=generator, dtype=torch.float64) for _ in range(2)]
    for view in both:
        view[:, 0, 0, 0] = torch.arange(IMAGES)
    return [view[rank::world] for view in both]  # as samplers deal them out


def step(rank: int, world: int) -> dict[str, Any]:
    """Loss, gradients and keys of this process, and which images its encoders saw."""
    module, seen = flat().double(), {"backbone": [], "key_backbone": []}
    for name, images in seen.items():
        module.get_submodule(name).register_forward_hook(
            lambda _module, inputs, _output, images=images: images.extend(inputs[0][:, 0, 0, 0].tolist())
        )
    loss, _ = module.loss_of_views(share(rank, world))
    loss.backward()
    trained = [*module.backbone.parameters(), *module.projection_head.parameters()]
    return {"loss": loss.item(), "grad": [p.grad for p in trained], "keys": module._new_keys, "seen": seen}


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
        timeout=datetime.timedelta(seconds=20),
    )  # fmt: skip
    results = step(rank, 2)
    broken = share(rank, 2)
    if rank == 1:
        broken[0][:] = torch.nan
    try:
        flat().double().loss_of_views(broken)
    except NumericalError as error:
        results["nan"] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    mp.start_processes(_work, args=(str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_loss_gradient_and_keys_equal_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    alone = step(0, 1)
    assert sum(rank["loss"] for rank in ranks) / 2 == pytest.approx(alone["loss"], rel=1e-12)
    for index, gradient in enumerate(alone["grad"]):
        averaged = (ranks[0]["grad"][index] + ranks[1]["grad"][index]) / 2
        torch.testing.assert_close(averaged, gradient, rtol=1e-9, atol=1e-12)
    module, (_, view1) = flat().double(), share(0, 1)
    keys = unit_rows(module.key_projection_head(module.key_backbone(view1)))
    for rank in (alone, *ranks):  # all keys, in the order of the whole batch, on every process
        torch.testing.assert_close(rank["keys"], keys, rtol=1e-12, atol=1e-14)


def test_keys_are_encoded_among_images_of_both_processes(ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        own = list(range(rank, IMAGES, 2))
        assert found["seen"]["backbone"] == own
        assert len(found["seen"]["key_backbone"]) == 6
        assert sorted(found["seen"]["key_backbone"]) != own
    assert sorted(ranks[0]["seen"]["key_backbone"] + ranks[1]["seen"]["key_backbone"]) == list(range(IMAGES))
    assert step(0, 1)["seen"]["key_backbone"] == list(range(IMAGES))  # no shuffle in one process


def test_bad_projections_of_one_process_raise_on_every_process(ranks: list[dict[str, Any]]) -> None:
    assert [found["nan"].split(".")[0] for found in ranks] == [
        "projections are not finite: 6 of 12 queries and 0 of 12 keys"
    ] * 2
