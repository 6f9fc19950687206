"""Several processes with a share of the batch each equal one process with all of it."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import BASELINES, KERNELS, WEIGHTED, make_views, name, randn
from torch import Tensor, nn

from mmcl_lightning.distributed import Layout, gather_with_gradient, layout
from mmcl_lightning.errors import MMCLError, NumericalError
from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import ContrastiveLoss, MMCLLoss
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient

IMAGES, FEATURES = 12, 7  # images are shared evenly by 2 and by 3
WORLDS = (2, 3)


def _losses() -> dict[str, Callable[[], ContrastiveLoss]]:
    losses: dict[str, Callable[[], ContrastiveLoss]] = {
        repr(loss): lambda loss=loss: copy.deepcopy(loss) for loss in (*BASELINES, *WEIGHTED)
    }
    solvers = (Inverse(), Exact(tol=1e-8, max_steps=5000), ProjectedGradient(tol=1e-8, max_steps=5000))
    for solver in (*solvers, ProjectedGradient(max_steps=5)):
        label = name(solver) + ("-5-steps" if getattr(solver, "max_steps", 0) == 5 else "")
        for negatives in ("both", "one"):
            for symmetric in (False, True):
                losses[f"{label}-{negatives}{'-symmetric' * symmetric}"] = (
                    lambda options=(solver, negatives, symmetric): MMCLLoss(
                        solver=options[0], negatives=options[1], symmetric=options[2]
                    )
                )
    for kernel in KERNELS:
        for solver in solvers:
            losses[f"{name(solver)}-{kernel}"] = (
                lambda options=(kernel, solver): MMCLLoss(*options, C=10.0, reg=0.5)  # Tanh needs both
            )
    losses["median"] = lambda: MMCLLoss(RBF(gamma="median"))
    losses["drop_at_bound"] = lambda: MMCLLoss(solver=Exact(tol=1e-8), C=0.3, drop_at_bound=True)
    return losses


LOSSES = _losses()


def _together(act: Callable[[], Tensor]) -> Tensor:
    """Act; if one process fails at it, all stop here instead of waiting for it in the backward pass."""
    outcome = _attempt(act)
    if layout().world_size > 1:
        failures: list[Any] = [None] * layout().world_size
        dist.all_gather_object(failures, outcome if isinstance(outcome, Exception) else None)
        outcome = next((failure for failure in failures if failure is not None), outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _run(
    build: Callable[[], ContrastiveLoss], rank: int, world: int, *, gather: bool = True
) -> dict[str, Any]:
    """Loss and gradients of this process's share, as DistributedDataParallel would leave them."""
    share = slice(rank * IMAGES // world, (rank + 1) * IMAGES // world)
    head = nn.Linear(FEATURES, 5).double()
    with torch.no_grad():
        head.weight.copy_(randn(5, FEATURES, seed=51))
        head.bias.copy_(randn(5, seed=52))
    views = [view[share] for view in make_views(IMAGES, FEATURES, seed=50)]
    projections = [head(view) for view in views]
    for z in projections:
        z.retain_grad()
    loss = build()
    loss.gather = gather
    torch.manual_seed(0)  # what Shuffled draws
    value = _together(lambda: loss(*projections))
    value.backward()
    duals = getattr(loss, "last_duals", ())
    return {
        "loss": value.item(),
        "views": [z.grad / world for z in projections],  # type: ignore[operator]
        "head": torch.cat([p.grad.flatten() for p in head.parameters()]),  # type: ignore[union-attr]
        "alpha": [dual.solution.alpha for dual in duals],
    }


def _attempt(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (MMCLError, RuntimeError) as error:
        return error


def _gather_beside_a_parameter(rank: int) -> dict[str, Tensor]:
    """A sum with another tensor: autograd hands both the same gradient tensor."""
    x = torch.full((2, 3), float(rank), dtype=torch.float64, requires_grad=True)
    other = torch.zeros(2 * dist.get_world_size(), 3, dtype=torch.float64, requires_grad=True)
    weight = torch.arange(6.0 * dist.get_world_size(), dtype=torch.float64).view_as(other) * (rank + 1)
    grad_x, grad_other = torch.autograd.grad(((gather_with_gradient(x) + other) * weight).sum(), (x, other))
    return {"x": grad_x, "other": grad_other, "weight": weight}


def _everything(rank: int, world: int) -> dict[str, Any]:
    results: dict[str, Any] = {"layout": layout()}
    results["order"] = gather_with_gradient(torch.tensor([[rank, 0.0], [rank, 1.0]]))
    results["shared"] = _gather_beside_a_parameter(rank)
    for key, build in LOSSES.items():
        results[key] = _attempt(lambda build=build: _run(build, rank, world))
    results["local"] = _attempt(lambda: _run(LOSSES["Inverse-both"], rank, world, gather=False))
    results["uneven"] = _attempt(lambda: MMCLLoss()(*make_views(2 + rank, 4)))
    broken = [view if rank else torch.full_like(view, torch.nan) for view in make_views(3, 4)]
    results["nan"] = _attempt(lambda: MMCLLoss()(*broken))
    return results


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world,
                timeout=datetime.timedelta(seconds=300),
            )  # fmt: skip
            torch.save(_everything(rank, world), f"{folder}/{world}-{rank}.pt")
            dist.destroy_process_group()
    if rank < 2:  # last, since a process that waits for the other here would lose it
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/last", rank=rank, world_size=2,
            timeout=datetime.timedelta(seconds=30),
        )  # fmt: skip
        error = _attempt(lambda: MMCLLoss()(*make_views(1 + rank, 4)))
        torch.save(error, f"{folder}/last-{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Per number of processes, what each of them found."""
    folder: Path = tmp_path_factory.mktemp("processes")
    mp.spawn(_work, args=(str(folder),), nprocs=max(WORLDS))
    found = {
        world: [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
        for world in WORLDS
    }
    found[0] = [torch.load(folder / f"last-{rank}.pt", weights_only=False) for rank in range(2)]
    return found


every_world = pytest.mark.parametrize("world", WORLDS)


@every_world
@pytest.mark.parametrize("key", LOSSES)
def test_equals_one_process(results: dict[int, list[dict[str, Any]]], world: int, key: str) -> None:
    alone = _run(LOSSES[key], 0, 1)
    ranks = [found[key] for found in results[world]]
    for rank in ranks:
        if isinstance(rank, Exception):
            raise rank
    assert sum(rank["loss"] for rank in ranks) / world == pytest.approx(alone["loss"], rel=1e-9)
    for view in (0, 1):
        gradient = torch.cat([rank["views"][view] for rank in ranks])
        torch.testing.assert_close(gradient, alone["views"][view], rtol=1e-7, atol=1e-9)
    averaged = torch.stack([rank["head"] for rank in ranks]).mean(0)
    torch.testing.assert_close(averaged, alone["head"], rtol=1e-7, atol=1e-9)


@every_world
@pytest.mark.parametrize("key", [key for key in LOSSES if key not in map(repr, (*BASELINES, *WEIGHTED))])
def test_alpha_does_not_depend_on_the_number_of_processes(
    results: dict[int, list[dict[str, Any]]], world: int, key: str
) -> None:
    alone = _run(LOSSES[key], 0, 1)["alpha"]
    for rank, found in enumerate(results[world]):
        if isinstance(found[key], Exception):
            raise found[key]
        assert len(found[key]["alpha"]) == len(alone) > 0
        for mine, everyone in zip(found[key]["alpha"], alone, strict=True):
            rows = torch.arange(rank * IMAGES // world, (rank + 1) * IMAGES // world)
            if len(everyone) == 2 * IMAGES:  # both roles at once
                rows = torch.cat([rows, rows + IMAGES])
            torch.testing.assert_close(mine, everyone[rows], rtol=1e-9, atol=1e-10)


@every_world
def test_without_gathering_each_process_is_alone(
    results: dict[int, list[dict[str, Any]]], world: int
) -> None:
    for rank, found in enumerate(results[world]):
        expected = _run(LOSSES["Inverse-both"], rank, world)  # no process group is up here
        assert found["local"]["loss"] == pytest.approx(expected["loss"], rel=1e-12)
        torch.testing.assert_close(found["local"]["head"], expected["head"])
        assert found["local"]["alpha"][0].shape == (IMAGES // world, 2 * IMAGES // world)
        assert found["Inverse-both"]["alpha"][0].shape == (IMAGES // world, 2 * IMAGES)


@every_world
def test_rows_come_in_the_order_of_the_ranks(results: dict[int, list[dict[str, Any]]], world: int) -> None:
    expected = torch.tensor([[rank, row] for rank in range(world) for row in (0.0, 1.0)])
    for rank, found in enumerate(results[world]):
        assert found["layout"] == Layout(rank, world)
        assert torch.equal(found["order"], expected)


@every_world
def test_the_gather_leaves_the_gradients_of_others_alone(
    results: dict[int, list[dict[str, Any]]], world: int
) -> None:
    total = sum(found["shared"]["weight"] for found in results[world])
    for rank, found in enumerate(results[world]):
        torch.testing.assert_close(found["shared"]["x"], total[2 * rank : 2 * rank + 2])
        torch.testing.assert_close(found["shared"]["other"], found["shared"]["weight"])


@every_world
def test_uneven_shares_raise_on_every_process(results: dict[int, list[dict[str, Any]]], world: int) -> None:
    for found in results[world]:
        with pytest.raises(
            MMCLError, match=rf"same number of rows, got \[2, 3{', 4' * (world - 2)}\].*drop_last"
        ):
            raise found["uneven"]


@every_world
def test_bad_projections_of_one_process_raise_on_every_process(
    results: dict[int, list[dict[str, Any]]], world: int
) -> None:
    for found in results[world]:
        with pytest.raises(NumericalError, match=rf"3 of {3 * world} rows of view 0"):
            raise found["nan"]


def test_a_share_of_one_image_beside_larger_ones_raises_on_every_process(
    results: dict[int, list[dict[str, Any]]],
) -> None:
    for error in results[0]:
        with pytest.raises(MMCLError, match=r"same number of rows, got \[1, 2\].*drop_last"):
            raise error


def test_without_a_process_group() -> None:
    x = randn(3, 2)
    assert gather_with_gradient(x) is x
    assert layout() == Layout(0, 1)
