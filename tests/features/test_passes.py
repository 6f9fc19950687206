"""One pass over any loader, by one process or shared by several."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from mmcl_lightning.batches import images_and_labels
from mmcl_lightning.distributed import layout
from mmcl_lightning.errors import DataError, NumericalError, ShapeError
from mmcl_lightning.features import FeaturePass, feature_pass
from mmcl_lightning.features._sharing import share_batches
from mmcl_lightning.metrics import gather_in_order

ROWS, BATCH = 11, 2
WORLDS = (3, 2)  # the larger first: nobody waits for the others
IMAGES = torch.rand(ROWS, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(ROWS) % 4 - 1  # every fourth has none


class Negate(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return -h


class Mean(LightningModule):
    """h is the mean colour, z its negative."""

    def __init__(self) -> None:
        super().__init__()
        self.projection_head = Negate()

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(IMAGES, LABELS, strict=True))


class Batches(Dataset[Any]):
    """A data set that makes its batches itself."""

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows = slice(BATCH * index, BATCH * (index + 1))
        return IMAGES[rows], LABELS[rows]


class Odd(DataLoader[Any]):
    """A loader that iterates in a way of its own."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield {"image": batch[0], "label": batch[1], "path": "somewhere"}


def without_black(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """A collate function that leaves an image out."""
    kept = [sample for sample in samples if not torch.equal(sample[0], IMAGES[3])]
    return [torch.stack(x) for x in zip(*kept, strict=True)] if kept else [IMAGES[:0], LABELS[:0]]


def loaders(rank: int, world: int) -> dict[str, Any]:
    data: Any = TensorDataset(IMAGES, LABELS)
    sampler = DistributedSampler(data, world, rank, shuffle=True)  # repeats images to make even shares
    return {
        "plain": DataLoader(data, BATCH),
        "shuffled": DataLoader(data, BATCH, shuffle=True),
        "subset": DataLoader(data, BATCH, sampler=SubsetRandomSampler([1, 2, 3, 5, 8])),
        "distributed sampler": DataLoader(data, BATCH, sampler=sampler),
        "distributed batches": DataLoader(data, batch_sampler=BatchSampler(sampler, BATCH, False)),
        "batch sampler": DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, True)),
        "workers": DataLoader(data, BATCH, num_workers=1),
        "collate": DataLoader(data, BATCH, collate_fn=without_black),
        "own batches": DataLoader(Batches(), batch_size=None),
        "stream": DataLoader(Stream(), BATCH),
        "odd": Odd(data, BATCH),
        "list": [(IMAGES[i : i + BATCH], LABELS[i : i + BATCH]) for i in range(0, ROWS, BATCH)],
        "one batch": DataLoader(data, 20),
    }


NAMES = list(loaders(0, 1))
#: Positions that a loader has, where they are not all in order.
POSITIONS = {"batch sampler": range(9), "collate": [i for i in range(ROWS) if i != 3]}


def run(loader: Any, **options: Any) -> FeaturePass:
    trainer: Any = SimpleNamespace(precision_plugin=Precision())
    return feature_pass(trainer, Mean(), loader, **({"kinds": ("h", "z")} | options))


def everything(found: FeaturePass) -> dict[str, Any]:
    """The whole in order, what this process has, and evenly spaced rows."""
    whole = {kind: gather_in_order(rows, found.index) for kind, rows in found.features.items()}
    device = torch.device("cpu")
    return {
        **whole,
        "labels": gather_in_order(found.labels, found.index),
        "own": len(found.index),
        "some": found.evenly_spaced(found.features["h"], 4, device),
        "size": (found.size, found.labelled),
    }


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world,
                timeout=datetime.timedelta(seconds=120),
            )  # fmt: skip
            found: dict[str, Any] = {}
            torch.manual_seed(rank)  # the processes do not agree on random numbers
            before = torch.get_rng_state()
            for name, loader in loaders(rank, world).items():
                found[name] = everything(run(loader))
                found[f"{name}, thinned"] = everything(run(loader, limit=4))
            found["state"] = torch.equal(torch.get_rng_state(), before)
            try:
                run([])
            except DataError as error:
                found["empty"] = error
            torch.save(found, f"{folder}/{world}-{rank}.pt")
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


def check(found: dict[str, Any], name: str) -> None:
    """Every image once, h and z and label of the same image, all in the order of the loader."""
    means = IMAGES.mean(dim=(2, 3))
    place = (found["h"][:, None] - means).abs().sum(2).argmin(1)
    assert torch.equal(found["h"], means[place])
    assert torch.equal(found["z"], -means[place])
    assert torch.equal(found["labels"], LABELS[place])
    assert found["size"] == (len(place), int((found["labels"] >= 0).sum()))
    if name == "subset":
        assert sorted(place.tolist()) == [1, 2, 3, 5, 8]
    elif name == "shuffled":
        assert sorted(place.tolist()) == list(range(ROWS))
    else:
        assert place.tolist() == list(POSITIONS.get(name, range(ROWS)))
    every = -(-len(place) // 4)
    assert torch.equal(found["some"], found["h"][::every])


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("distributed")])
def test_one_process_has_all(name: str) -> None:
    found = everything(run(loaders(0, 1)[name]))
    assert found["own"] == len(found["h"])
    check(found, name)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_processes_share_every_loader(
    results: dict[int, list[dict[str, Any]]], name: str, world: int
) -> None:
    shares = [found[name]["own"] for found in results[world]]
    for found in results[world]:
        check(found[name], name)
        assert found["state"]
        assert torch.equal(found[name]["h"], results[world][0][name]["h"])
    assert sum(shares) == len(results[world][0][name]["h"])
    assert max(shares) - min(shares) <= (ROWS if name == "one batch" else 3)


@pytest.mark.parametrize("world", [1, *WORLDS])
@pytest.mark.parametrize("name", ["plain", "distributed sampler", "batch sampler", "workers"])
def test_a_thinned_pass_has_the_evenly_spaced_rows(
    results: dict[int, list[dict[str, Any]]], name: str, world: int
) -> None:
    if world == 1:
        whole, thinned = run(loaders(0, 1)["plain"]), run(loaders(0, 1)["plain"], limit=4)
        found = {name: everything(whole), f"{name}, thinned": everything(thinned)}
    else:
        found = results[world][1]
    assert torch.equal(found[f"{name}, thinned"]["h"], found[name]["some"])
    assert torch.equal(found[f"{name}, thinned"]["some"], found[name]["some"])
    assert len(found[name]["some"]) in (3, 4)


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_to_read_is_said_on_every_process(
    results: dict[int, list[dict[str, Any]]], world: int
) -> None:
    for found in results[world]:
        with pytest.raises(DataError, match="gave no batch"):
            raise found["empty"]


def test_the_loader_itself_is_used_where_there_is_one_process() -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), BATCH)
    assert layout().world_size == 1
    assert share_batches(loader)[0] is loader
    assert share_batches(loader)[1] == ROWS


@pytest.mark.parametrize("known", [True, False])
def test_rows_take_their_memory_once_where_their_number_is_known(known: bool) -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), BATCH)
    found = run(loader if known else iter(loader), dtype=torch.float16).features["h"]
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), IMAGES.mean(dim=(2, 3)), rtol=1e-3, atol=0)
    assert (found.untyped_storage().nbytes() == found.nbytes) == known


IMAGE = torch.rand(2, 3, 4, 4)


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGE, torch.tensor([3, -1])),
        [IMAGE, torch.tensor([3, -1]), ["a.png", "b.png"]],
        (IMAGE, [3, -1]),
        (IMAGE, np.array([3, -1], dtype=np.int32)),
        (IMAGE, torch.tensor([[3], [-1]], dtype=torch.int16)),
        {"image": IMAGE, "label": torch.tensor([3, -1])},
        {"x": IMAGE, "targets": torch.tensor([3, -1]), "index": 7},
    ],
)
def test_batches_of_any_kind(batch: Any) -> None:
    images, labels = images_and_labels(batch)
    assert images is IMAGE
    assert (labels.tolist(), labels.dtype) == ([3, -1], torch.int64)


@pytest.mark.parametrize("batch", [IMAGE, [IMAGE], {"image": IMAGE}])
def test_batches_without_labels(batch: Any) -> None:
    assert images_and_labels(batch)[1].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"pixels": IMAGE}, DataError, r"one tensor of images, got keys \['pixels'\]"),
        (([IMAGE, IMAGE], torch.zeros(2)), DataError, "one tensor of images, got 2 views"),
        ((IMAGE, torch.zeros(2)), DataError, "labels must be integers, got torch.float32"),
        ((IMAGE, ["cat", "dog"]), DataError, "labels must be integers, got list"),
        ((IMAGE, torch.zeros(3, dtype=torch.long)), ShapeError, r"expected labels \(2,\), got \(3,\)"),
    ],
)
def test_wrong_batches(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        images_and_labels(batch)


def test_features_must_be_one_vector_per_image() -> None:
    class Maps(Mean):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :, : self.rows, : self.rows]

    module, trainer = Maps(), SimpleNamespace(precision_plugin=Precision())
    module.rows = 1  # pooled, but not flattened
    found = feature_pass(trainer, module, [(IMAGE, torch.zeros(2, dtype=torch.long))])
    assert torch.equal(found.features["h"], IMAGE[:, :, 0, 0])
    module.rows = 2
    with pytest.raises(
        ShapeError, match=r"Expected features \(2, F\) of 2 images from Maps, got \(2, 3, 2, 2\)"
    ):
        feature_pass(trainer, module, [(IMAGE, torch.zeros(2, dtype=torch.long))])


def test_several_views_are_averaged() -> None:
    module, trainer = Mean(), SimpleNamespace(precision_plugin=Precision())
    one, other = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4)
    labels = torch.tensor([1, 0])
    expected = (one.mean(dim=(2, 3)) + other.mean(dim=(2, 3))) / 2
    found = feature_pass(trainer, module, [([one, other], labels)], ["h", "thumbnail"])
    torch.testing.assert_close(found.features["h"], expected)
    assert found.labels.tolist() == [1, 0]
    same = feature_pass(trainer, module, [([one] * 4, labels)]).features["h"]
    assert torch.equal(same, feature_pass(trainer, module, [(one, labels)]).features["h"])
    assert torch.equal(found.features["thumbnail"], pictures(one))
    with pytest.raises(ShapeError, match=r"must have one shape, got \(2, 3, 4, 4\), \(1, 3, 4, 4\)"):
        feature_pass(trainer, module, [([one, other[:1]], labels)])


def pictures(images: Tensor) -> Tensor:
    return nn.functional.interpolate(images, (32, 32), mode="bilinear", antialias=True)


def test_rows_that_halves_do_not_hold_are_refused() -> None:
    module, trainer = Mean(), SimpleNamespace(precision_plugin=Precision())
    batches = [(IMAGE * 1e-12, torch.zeros(2, dtype=torch.long))]
    assert feature_pass(trainer, module, batches).features["h"].abs().max() > 0
    with pytest.raises(
        NumericalError, match=r"2 of 2 rows of features are zeros in torch\.float16: .*set readouts"
    ):
        feature_pass(trainer, module, batches, dtype=torch.float16)
