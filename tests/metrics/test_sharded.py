"""Processes that hold a share of the features each say what one process with all of them says."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from mmcl_lightning.distributed import broadcast_object, gather_objects, gather_uneven
from mmcl_lightning.errors import ConfigError, DataError, MMCLError, NumericalError, ShapeError
from mmcl_lightning.metrics import (
    FeatureShard,
    KNNProtocol,
    gather_in_order,
    knn_accuracy,
    sharded_knn_accuracy,
)

CLASSES, BANK, QUERIES = 5, 61, 23
WORLDS = (3, 2)  # the larger first: nobody waits for the others
PROTOCOLS = [
    KNNProtocol(k=7, temperature=0.5),
    KNNProtocol(k=1, temperature=0.07),
    KNNProtocol(k=200, temperature=1.0),
    KNNProtocol(k=20, temperature=2.0, normalize=False),
]


def whole(count: int, seed: int) -> FeatureShard:
    """Small integers of length 2 or 4, so that products and cosines are exact and ties abound."""
    g = torch.Generator().manual_seed(seed)
    long = torch.cat([4 * torch.eye(4), -4 * torch.eye(4)])
    short = torch.tensor([[a, b, c, d] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)])
    features = torch.cat([long, short.float()])[torch.randint(24, (count,), generator=g)]
    labels = torch.randint(-1, CLASSES, (count,), generator=g)
    return FeatureShard(features, labels, torch.arange(count))


def part(shard: FeatureShard, chosen: Tensor) -> FeatureShard:
    return FeatureShard(shard.features[chosen], shard.labels[chosen], shard.index[chosen])


def _owners(count: int, world: int) -> dict[str, Tensor]:
    """Ways to deal the rows out: which process has each."""
    position = torch.arange(count)
    draws = torch.randint(world, (count,), generator=torch.Generator().manual_seed(7))
    return {
        "in turn": position % world,
        "uneven": (position >= count - 3).long() * (world - 1),
        "one has nothing": (position % max(1, world - 1)) + 1 if world > 2 else torch.zeros_like(position),
        "at random": draws,
    }


DEALS = list(_owners(1, 2))


def deal(shard: FeatureShard, name: str, rank: int, world: int) -> FeatureShard:
    return part(shard, (_owners(len(shard.labels), world)[name] == rank).nonzero().squeeze(1))


def unlabelled_at(shard: FeatureShard, rank: int, world: int) -> FeatureShard:
    """The same bank, but one process has no labelled row of it."""
    labels = torch.where(_owners(len(shard.labels), world)["in turn"] == rank, -1, shard.labels)
    return FeatureShard(shard.features, labels, shard.index)


def expected(bank: FeatureShard, query: FeatureShard) -> list[dict[str, float]]:
    sides = (query.features, query.labels, bank.features, bank.labels)
    return [knn_accuracy(*sides, CLASSES, protocol) for protocol in PROTOCOLS]


def _attempt(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except MMCLError as error:
        return error


def _everything(rank: int, world: int) -> dict[str, Any]:
    bank, query = whole(BANK, 0), whole(QUERIES, 1)
    found: dict[str, Any] = {}
    for name in DEALS:
        shares = deal(query, name, rank, world), deal(bank, name, rank, world)
        for chunk_size in (9, 1000):
            key = f"{name}, {chunk_size}"
            found[key] = sharded_knn_accuracy(
                *shares, CLASSES, PROTOCOLS, chunk_size=chunk_size, bank_chunk_size=9
            )
        half = FeatureShard(shares[1].features.half(), shares[1].labels, shares[1].index)
        found[f"{name}, half"] = sharded_knn_accuracy(shares[0], half, None, PROTOCOLS)
        found[f"{name}, in order"] = gather_in_order(shares[1].features, shares[1].index)
    asked, shares = PROTOCOLS[:1], [deal(x, "in turn", rank, world) for x in (query, bank)]
    bare = deal(unlabelled_at(bank, 1, world), "in turn", rank, world)
    found["no label on rank 1"] = sharded_knn_accuracy(shares[0], bare, CLASSES, PROTOCOLS)
    broken = FeatureShard(shares[1].features.clone(), *_rest(shares[1]))
    if rank == 1:
        broken.features[0, 0] = torch.nan
    no_label = FeatureShard(shares[1].features, torch.full_like(shares[1].labels, -1), shares[1].index)
    large = FeatureShard(shares[0].features, shares[0].labels + 4 * (rank == 1), shares[0].index)
    for key, sides in {
        "nan": (shares[0], broken),
        "no bank": (shares[0], no_label),
        "no query": (no_label, shares[1]),
        "large label": (large, shares[1]),
    }.items():
        found[key] = _attempt(lambda sides=sides: sharded_knn_accuracy(*sides, CLASSES, asked))
    found["uneven"] = gather_uneven(torch.full((rank, 2), rank))
    found["nothing"] = gather_uneven(torch.empty(0, 3))
    found["objects"] = gather_objects({"rank": rank}), broadcast_object(["of", rank])
    return found


def _rest(shard: FeatureShard) -> tuple[Tensor, Tensor]:
    return shard.labels, shard.index


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world,
                timeout=datetime.timedelta(seconds=120),
            )  # fmt: skip
            torch.save(_everything(rank, world), f"{folder}/{world}-{rank}.pt")
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Per number of processes, what each of them found."""
    folder: Path = tmp_path_factory.mktemp("processes")
    mp.start_processes(_work, args=(str(folder),), nprocs=max(WORLDS), start_method="fork")
    return {
        world: [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
        for world in WORLDS
    }


every_world = pytest.mark.parametrize("world", WORLDS)


@every_world
@pytest.mark.parametrize("chunk_size", [9, 1000])
@pytest.mark.parametrize("name", DEALS)
def test_equals_one_process_exactly(
    results: dict[int, list[dict[str, Any]]], world: int, name: str, chunk_size: int
) -> None:
    alone = expected(whole(BANK, 0), whole(QUERIES, 1))
    assert len({str(accuracy) for accuracy in alone}) > 2  # they tell the protocols apart
    for found in results[world]:
        assert found[f"{name}, {chunk_size}"] == alone
        assert found[f"{name}, half"] == alone  # these features are exact in half precision


def test_ties_are_broken_by_the_number_of_the_row() -> None:
    """Without the rule, the test above could not tell right from wrong."""
    bank, query = whole(BANK, 0), whole(QUERIES, 1)
    turned = torch.arange(BANK - 1, -1, -1)
    other = expected(FeatureShard(bank.features[turned], bank.labels[turned], bank.index), query)
    assert other != expected(bank, query)


@every_world
def test_one_process_may_have_no_labelled_row(results: dict[int, list[dict[str, Any]]], world: int) -> None:
    alone = expected(unlabelled_at(whole(BANK, 0), 1, world), whole(QUERIES, 1))
    for found in results[world]:
        assert found["no label on rank 1"] == alone


@every_world
@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("nan", NumericalError, rf"1 of {BANK} rows of the bank features hold NaN"),
        ("no bank", DataError, rf"no labelled row \(of {BANK}\)"),
        ("no query", DataError, "None of the k-NN queries is labelled"),
        ("large label", ConfigError, "num_classes=5, but a query has label 8"),
    ],
)
def test_what_is_wrong_on_one_process_is_said_on_all(
    results: dict[int, list[dict[str, Any]]], world: int, key: str, error: type[Exception], message: str
) -> None:
    for found in results[world]:
        with pytest.raises(error, match=message):
            raise found[key]


@every_world
def test_gathering(results: dict[int, list[dict[str, Any]]], world: int) -> None:
    for found in results[world]:
        for name in DEALS:
            assert torch.equal(found[f"{name}, in order"], whole(BANK, 0).features)
        assert [x.tolist() for x in found["uneven"]] == [[[rank] * 2] * rank for rank in range(world)]
        assert [x.shape for x in found["nothing"]] == [(0, 3)] * world
        assert found["objects"] == ([{"rank": rank} for rank in range(world)], ["of", 0])


@pytest.mark.parametrize("chunk_size", [3, 1000])
def test_alone_it_is_knn_accuracy(chunk_size: int) -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, CLASSES, (300,), generator=g)
    features = torch.randn(CLASSES + 1, 8, generator=g)[labels] + torch.randn(300, 8, generator=g)
    query, bank = (
        FeatureShard(features[i], labels[i], torch.arange(150)) for i in (slice(150), slice(150, 300))
    )
    assert sharded_knn_accuracy(query, bank, None, PROTOCOLS, chunk_size=chunk_size) == expected(bank, query)


def test_wrong_shapes_and_options() -> None:
    bank, query = whole(6, 0), whole(3, 1)
    with pytest.raises(ShapeError, match=r"labels \(n,\) and index \(n,\), got \(6, 4\), \(6,\) and \(5,\)"):
        FeatureShard(bank.features, bank.labels, bank.index[:5])
    narrow = FeatureShard(query.features[:, :2], query.labels, query.index)
    with pytest.raises(ShapeError, match=r"got \(3, 2\) and \(6, 4\)"):
        sharded_knn_accuracy(narrow, bank, CLASSES, PROTOCOLS)
    with pytest.raises(ConfigError, match="chunk_size must be an integer >= 1"):
        sharded_knn_accuracy(query, bank, CLASSES, PROTOCOLS, chunk_size=0)
    with pytest.raises(ConfigError, match="num_classes=2, but the bank has label"):
        sharded_knn_accuracy(query, bank, 2, PROTOCOLS)
