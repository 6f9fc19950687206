"""Shards of WebDataset: written from folders, and streamed so that no sample comes twice or is lost."""

from __future__ import annotations

import ast
import functools
import http.server
import importlib.util
import io
import itertools
import json
import shutil
import socket
import tarfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from runs import Recorder, simclr, trainer

import mmcl_lightning
from mmcl_lightning.callbacks import ResumableCheckpoint
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import StreamDataModule
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.datamodules.shards import Shard, find_shards, read_shard
from mmcl_lightning.datamodules.stream_order import StreamOrder
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform, SimCLRTransform

pytest.importorskip("webdataset")

TRAIN, TEST = 90, 12  # pictures; the first have their number as red, in three classes


def write_folder(root: Path) -> Path:
    """Write ``train/CLASS/NUMBER.v1.png`` whose red is their number, and whose class is it modulo 3."""
    for split, numbers in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        for number in numbers:
            path = root / split / "abc"[number % 3] / f"{number:03d}.v1.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (number, 20, 30)).save(path)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine shards of ten pictures to train on, and two of ten and two held out."""
    out = tmp_path_factory.mktemp("written") / "shards"
    main(["shards", str(folder), f"--out={out}", "--samples=10", "--workers=2"])
    return out


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards to damage."""
    return Path(shutil.copytree(shards, tmp_path / "shards"))


def stream(root: Path | str, world: int = 1, rank: int = 0, **changes: Any) -> StreamDataModule:
    """A data module whose two views are the picture itself."""
    options: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 0,
        "buffer": 16,
        "train_transform": EvalTransform(16),
        "eval_transform": EvalTransform(16),
    }
    data = StreamDataModule(str(root), **(options | changes))
    data.trainer = SimpleNamespace(world_size=world, global_rank=rank)  # type: ignore[assignment]
    return data


def numbers(batches: Any) -> list[list[int]]:
    """The pictures of each batch, whose labels are checked besides."""
    found = []
    for views, targets in batches:
        reds = (views[0][:, 0, 0, 0] * 255).round().long()
        assert torch.equal(views[0], views[1])
        assert torch.equal(targets, reds % 3)
        found.append(reds.tolist())
    return found


def epoch(data: StreamDataModule, number: int = 0) -> list[list[int]]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
    found = numbers(loader)
    assert len(found) == len(loader)
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


# Who reads what


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_no_sample_comes_twice_and_none_is_lost(shards: Path, world: int, workers: int) -> None:
    parts = [epoch(stream(shards, world, rank, num_workers=workers)) for rank in range(world)]
    assert [len(part) for part in parts] == [TRAIN // (4 * world)] * world
    seen = [number for part in parts for number in flat(part)]
    assert len(seen) == len(set(seen)) == TRAIN // (4 * world) * 4 * world  # 88, 88, 84
    assert set(seen) <= set(range(TRAIN))


@pytest.mark.parametrize("batch_size", [2, 3, 5])
def test_all_samples_come_where_they_fill_batches(shards: Path, batch_size: int) -> None:
    seen = [flat(epoch(stream(shards, 3, rank, num_workers=2, batch_size=batch_size))) for rank in range(3)]
    assert sorted(itertools.chain.from_iterable(seen)) == list(range(TRAIN))


@pytest.mark.parametrize(
    ("counts", "world", "workers"),
    [([7, 0, 31, 1, 12], 3, 2), ([50], 3, 4), ([1] * 40, 2, 3), ([0, 9], 2, 1), ([5, 4], 1, 64)],
)
def test_uneven_empty_and_few_shards_give_equally_many_batches(
    counts: list[int], world: int, workers: int
) -> None:
    for buffer, at in itertools.product((1, 8), (0, 1)):
        orders = [StreamOrder(counts, 2, world, rank, workers, buffer) for rank in range(world)]
        parts = [order.positions(at) for order in orders]
        whole = sum(counts) // (2 * world) * 2
        assert [len(part) for part in parts] == [whole] * world
        assert len(np.unique(np.concatenate(parts))) == whole * world
        assert orders[0].left_out == sum(counts) - whole * world


def test_an_epoch_is_reproducible_and_another_one_is_in_another_order(shards: Path) -> None:
    first, again, next_one = epoch(stream(shards)), epoch(stream(shards)), epoch(stream(shards), 1)
    assert first == again
    assert first != next_one
    assert first != epoch(stream(shards, seed=1))
    left = [set(range(TRAIN)) - set(flat(part)) for part in (first, next_one)]
    assert [len(part) for part in left] == [2, 2]
    assert left[0] != left[1]


def test_the_buffer_mixes_shards_and_one_keeps_their_order(shards: Path) -> None:
    order = StreamOrder([10] * 9, 5, buffer=1)
    assert [set(part // 10) for part in np.split(order.positions(0), 9)] == [
        {owner} for owner in order.positions(0)[::10] // 10
    ]
    mixed = StreamOrder([10] * 9, 5, buffer=40).positions(0)
    assert len(set(mixed[:10] // 10)) > 2
    assert sorted(mixed) == list(range(90))


def test_the_views_depend_on_seed_epoch_and_position_alone(shards: Path) -> None:
    def views(workers: int, augment: str) -> dict[int, torch.Tensor]:
        changes = {"train_transform": SimCLRTransform.cifar(16), "augment": augment}
        loader = stream(shards, num_workers=workers, batch_size=9, **changes).train_dataloader()
        keys = [position for _, position in loader.sampler]
        found = [batch[0] if augment == "worker" else batch[0].make() for batch in loader]
        pairs = [row for batch in found for row in torch.stack(list(batch), dim=1)]
        return dict(zip(keys, pairs, strict=True))

    alone, shared = views(0, "worker"), views(2, "worker")
    assert list(alone) != list(shared)
    assert alone.keys() == shared.keys()
    assert all(torch.equal(alone[key], shared[key]) for key in alone)


# Resuming


@pytest.mark.parametrize(("workers", "done"), [(0, 1), (0, 10), (1, 4), (2, 1), (2, 10)])
def test_an_epoch_goes_on_with_the_next_batch(shards: Path, workers: int, done: int) -> None:
    whole = epoch(stream(shards, num_workers=workers))
    loader = stream(shards, num_workers=workers).train_dataloader()
    for _ in zip(range(done), loader, strict=False):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    again = stream(shards, num_workers=workers).train_dataloader()
    again.load_state_dict(state)
    assert numbers(again) == whole[done:]
    again.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert numbers(again) == epoch(stream(shards, num_workers=workers), 1)


def test_an_epoch_goes_on_with_other_numbers_of_workers(shards: Path) -> None:
    """Two workers give 5 batches, three give 7, one gives the other 10."""
    seen: list[list[int]] = []
    state: dict[str, Any] | None = None
    for workers, count in ((2, 5), (3, 7), (1, 99)):
        loader = stream(shards, num_workers=workers).train_dataloader()
        if state is not None:
            loader.load_state_dict(state)
        taken = list(itertools.islice(numbers_of(loader), count))
        seen += taken
        state = loader.state_dict()
    assert [len(seen), len(set(flat(seen)))] == [22, 88]
    assert state is not None
    assert state["passes"] == [(2, 5), (3, 7), (1, 10)]


def numbers_of(loader: Any) -> Iterator[list[int]]:
    for batch in loader:
        yield from numbers([batch])


def test_other_processes_within_an_epoch_are_warned_of(shards: Path) -> None:
    loader = stream(shards).train_dataloader()
    state = loader.state_dict() | {"epoch": 0, "batches": 3, "processes": 2, "passes": [[1, 3]]}
    with pytest.warns(UserWarning, match="read with processes 2, now 1: .* come twice or not at all"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="within an epoch that was read from no shards"):
        loader.load_state_dict({"epoch": 0, "batches": 3})  # of a run on a folder
    assert len(numbers(loader)) == 22 - 3


@pytest.mark.parametrize("changes", [{"buffer": 3}, {"seed": 5}, {"batch_size": 8}])
def test_another_plan_within_an_epoch_is_warned_of(shards: Path, changes: dict[str, Any]) -> None:
    loader = stream(shards).train_dataloader()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = stream(shards, **changes).train_dataloader()
    with pytest.warns(UserWarning, match=f"{next(iter(changes))} .*, now .* come twice or not at all"):
        again.load_state_dict(state)


def test_seen_samples_are_not_decoded_and_their_shards_not_opened(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def noting(shard: Shard) -> Iterator[Any]:
        opened.append(shard.url)
        return read_shard(shard)

    data = stream(shards, buffer=1)
    state = data.train_dataloader().state_dict() | {"epoch": 0, "batches": 17, "passes": [[1, 17]]}
    loader = data.train_dataloader()
    loader.load_state_dict(state)
    monkeypatch.setattr("mmcl_lightning.datamodules.streaming.read_shard", noting)
    read, decoded = PictureReader.__call__, list[str]()

    def counting(self: PictureReader, path: Any) -> Any:
        decoded.append(str(path))
        return read(self, path)

    monkeypatch.setattr(PictureReader, "__call__", counting)
    assert len(numbers(loader)) == 5
    assert [len(opened), len(decoded)] == [3, 20]  # of 9 shards those of samples 68 to 88


def fit(root: Path, folder: Path, *callbacks: Any, resume: Path | None = None) -> Recorder:
    recorder = Recorder()
    data = stream(root, train_transform=SimCLRTransform.cifar(16), batch_size=8, num_workers=1)
    data.trainer = None
    trainer(folder, recorder, *callbacks, max_epochs=2).fit(simclr(), data, ckpt_path=resume)
    return recorder


def test_a_run_that_is_broken_off_goes_on_as_if_it_had_not_been(shards: Path, tmp_path: Path) -> None:
    whole = fit(shards, tmp_path / "whole")
    assert len(whole.loss) == 2 * 11

    class Break(Recorder):
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            if trainer.global_step == 15:
                raise RuntimeError("killed")

    saving = ResumableCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=14, save_top_k=-1)
    with pytest.raises(RuntimeError, match="killed"):
        fit(shards, tmp_path / "broken", saving, Break())
    (saved,) = (tmp_path / "saved").glob("*step=14.ckpt")
    rest = fit(shards, tmp_path / "rest", resume=saved)
    assert rest.loss == whole.loss[14:]


class Seen(Callback):
    """Writes down which pictures each process trains on in each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        with open(self.folder / f"{trainer.current_epoch}-{trainer.global_rank}", "a") as file:
            file.write("".join(f"{number} " for number in flat(numbers([batch]))))


def test_two_processes_train_on_every_sample_once(shards: Path, tmp_path: Path) -> None:
    data = stream(shards, batch_size=5, num_workers=1)
    data.trainer = None
    running = trainer(tmp_path, Seen(tmp_path), max_epochs=2, devices=2, strategy="ddp_fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running.fit(simclr(), data)
    for at in (0, 1):
        parts = [[*map(int, (tmp_path / f"{at}-{rank}").read_text().split())] for rank in (0, 1)]
        assert [len(part) for part in parts] == [45, 45]
        assert sorted(parts[0] + parts[1]) == list(range(TRAIN))


# What is held in memory


def test_the_bank_is_of_training_samples_and_the_queries_are_held_out(shards: Path) -> None:
    data = stream(shards, bank_size=40, heldout_size=10)
    loaders = data.knn_dataloaders()
    assert loaders is not None
    bank, query = (
        [round(float(red) * 255) for images, _ in loader for red in images[:, 0, 0, 0]] for loader in loaders
    )
    assert (len(bank), len(query)) == (40, 10)
    assert max(bank) < TRAIN <= min(query)
    assert data.class_names == ["a", "b", "c"]
    held = flat(numbers(data.val_dataloader()))
    assert len(held) == 8  # two batches of 4
    assert set(held) < set(query)
    assert data.description().split("\n") == [
        "9 shards to train on, 2 held out",
        "  train          90 samples",
        "  held out       10 images of 12",
        "  k-NN bank      40 images",
        "  3 classes",
    ]


def test_a_labelled_folder_gives_bank_and_queries(shards: Path, folder: Path, tmp_path: Path) -> None:
    data = stream(shards, labelled=str(folder))
    assert data.splits.bank is not None
    assert data.splits.query is not None
    assert (len(data.splits.pretrain), len(data.splits.bank), len(data.splits.query)) == (90, 90, 12)
    Image.new("RGB", (16, 16)).save(tmp_path / "z.png")
    (tmp_path / "z").mkdir()
    (tmp_path / "z.png").rename(tmp_path / "z" / "z.png")
    with pytest.raises(
        ConfigError, match=r"classes of .* are \['z'\], and those of the shards \['a', 'b', 'c'\]"
    ):
        stream(shards, labelled=str(tmp_path)).setup()


def test_without_held_out_shards_there_is_no_readout(shards: Path) -> None:
    data = stream(f"{shards}/train-{{000000..000003}}.tar")
    assert len(data.splits.pretrain) == 40
    assert data.knn_dataloaders() is None
    assert data.val_dataloader() == []
    assert "no k-NN readout: it needs labels and held-out images" in data.description()


# Which shards


def test_patterns_folders_and_foreign_shards(copy: Path) -> None:
    wild = find_shards(f"{copy}/train-*.tar", f"{copy}/test-{{000000..000001}}.tar")
    assert [len(wild.train), len(wild.heldout), wild.class_names] == [9, 2, ["a", "b", "c"]]
    (copy / "index.json").unlink()
    counted = find_shards(str(copy), f"{copy}/test-*.tar")
    assert [shard.count for shard in counted.train] == [10] * 9
    assert [shard.count for shard in counted.heldout] == [10, 2]
    assert stream(copy, heldout=f"{copy}/test-*.tar").class_names == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"url": "pipe:touch made; cat train-000000.tar", "nsamples": 1},
            "expected names of files beside it",
        ),
        ({"url": "../train-000000.tar", "nsamples": 1}, "expected names of files beside it"),
        ({"url": "http://elsewhere/x.tar", "nsamples": 1}, "expected names of files beside it"),
        ({"url": "new.tar", "nsamples": 1, "split": "val"}, "the split 'val', expected train or test"),
        ({"url": "new.tar", "nsamples": float("inf")}, "no index of shards"),
        (None, "more than once"),
    ],
)
def test_an_index_names_files_beside_it_and_runs_nothing(
    entry: dict[str, Any] | None, said: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    index = json.loads((copy / "index.json").read_text())
    index["shardlist"].append(index["shardlist"][0] if entry is None else entry)
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=said):
        stream(copy).setup()
    assert not (copy / "made").exists()


@pytest.mark.parametrize("content", ["", '{"shardlist": []}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(content: str, copy: Path) -> None:
    (copy / "index.json").write_text(content)
    with pytest.raises(DataError, match=r"index\.json (is no index of shards|names no shard)"):
        stream(copy).setup()


def test_a_count_of_zero_is_checked(copy: Path) -> None:
    index = json.loads((copy / "index.json").read_text())
    index["shardlist"][0]["nsamples"] = 0
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="says 0: write the index again"):
        stream(copy).setup()


def test_a_shard_cut_between_members_is_refused_without_an_index_too(copy: Path) -> None:
    (copy / "index.json").unlink()
    path = sorted(copy.glob("train-*.tar"))[0]
    with tarfile.open(path) as file:
        end = file.getmembers()[3].offset
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(DataError, match="is cut off: copy it again"):
        stream(copy).setup()


def test_held_out_shards_that_are_not_there_are_an_error(copy: Path) -> None:
    with pytest.raises(DataError, match=r"no held-out shard is at .*nope-\*\.tar: correct --data.heldout"):
        stream(copy, heldout=str(copy / "nope-*.tar")).setup()
    with pytest.raises(DataError, match="is a command: give shards as a folder"):
        stream(f"pipe:touch {copy}/made; cat {copy}/train-000000.tar").setup()
    assert not (copy / "made").exists()
    with pytest.raises(DataError, match="is no pattern of shards"):
        stream(str(copy / "train-{000000..000001.tar")).setup()


def add(path: Path, **members: bytes) -> None:
    """Write a shard with one sample for each argument ``KEY__KIND``."""
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def png(red: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (red, 20, 30)).save(file, "PNG")
    return file.getvalue()


def test_an_empty_shard_is_said_and_a_missing_one_refused(copy: Path) -> None:
    (copy / "index.json").unlink()
    add(copy / "train-000004.tar")
    data = stream(copy, heldout=f"{copy}/test-*.tar")
    assert "without a sample: 1 shard" in data.description()
    assert len(set(flat(epoch(data)))) == 80
    (copy / "train-000004.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"train-000004\.tar is cut off: copy it again"):
        find_shards(str(copy), None)
    with pytest.raises(DataError, match=r"train-000009\.tar is missing: copy it there"):
        find_shards(f"{copy}/train-{{000000..000009}}.tar", None)


@pytest.mark.parametrize("root", ["nothing", "nothing/train-*.tar"])
def test_no_shard_is_refused(tmp_path: Path, root: str) -> None:
    with pytest.raises(DataError, match=r"no shard to train on is at .*: set --data\.root to a folder"):
        stream(tmp_path / root).setup()


def test_a_shard_that_is_cut_off_or_not_that_of_the_index_is_refused(copy: Path) -> None:
    shard = copy / "train-000003.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:6000])
    with pytest.raises(DataError, match=r"train-000003\.tar is cut off: copy it again"):
        epoch(stream(copy, on_bad_image="skip"))
    shard.write_bytes(content[:6000] + bytes(1024))  # with the end of a whole one
    with pytest.raises(DataError, match=r"train-000003\.tar (cannot be read after \d of 10|has \d) samples"):
        epoch(stream(copy, on_bad_image="skip"))
    add(shard, a__png=png(3), a__cls=b"0")
    with pytest.raises(DataError, match=r"has 1 samples, and index\.json says 10: copy it again"):
        epoch(stream(copy))
    (copy / "index.json").write_text("[1]")
    with pytest.raises(DataError, match="is no index of shards, which has a shardlist of url and nsamples"):
        stream(copy).setup()


def damaged(folder: Path) -> Path:
    """Six samples, of which one is no picture, one has none, and one a label that is no number."""
    folder.mkdir()
    good = {f"{red}__{kind}": part for red in (0, 3, 6) for kind, part in (("png", png(red)), ("cls", b"0"))}
    bad = {"a__png": b"none", "a__cls": b"0", "b__txt": b"words", "c__png": png(9), "c__cls": b"cat"}
    add(folder / "x-0.tar", **good, **bad)
    return folder


def test_damaged_samples_are_errors_or_skipped(tmp_path: Path) -> None:
    root = damaged(tmp_path / "x")
    with pytest.raises(DataError, match=r"--data\.on_bad_image skip goes on without it"):
        epoch(stream(root, batch_size=2))
    data = stream(root, batch_size=2, on_bad_image="skip")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        seen = flat(epoch(data))
    assert len(seen) == 6
    assert set(seen) == {0, 3, 6}
    assert data.skipped_images() == [f"{root}/x-0.tar:{index}" for index in (3, 4, 5)]
    texts = "\n".join(str(one.message) for one in said)
    assert f"the image a in {root}/x-0.tar (png) cannot be read" in texts
    assert f"the sample b in {root}/x-0.tar holds no picture, but txt" in texts
    assert f"the sample c in {root}/x-0.tar has the class b'cat', expected an index" in texts


@pytest.fixture
def server(shards: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None: ...

    handler = functools.partial(Quiet, directory=str(shards))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


@pytest.mark.skipif(shutil.which("curl") is None, reason="WebDataset fetches URLs with curl")
def test_shards_are_read_from_a_server(server: str, shards: Path) -> None:
    assert epoch(stream(server, num_workers=2)) == epoch(stream(shards, num_workers=2))
    data = stream(f"{server}/train-{{000000..000003}}.tar")
    assert len(set(flat(epoch(data)))) == 40
    with pytest.raises(
        DataError, match=r"how many samples .*/none\.tar holds is not known: put an index\.json"
    ):
        stream(f"{server}/none.tar").setup()
    with pytest.raises(DataError, match=r"no index\.json that names shards is at .*/nowhere: put it there"):
        stream(f"{server}/nowhere").setup()
    with pytest.raises(DataError, match="is of a kind of URL that WebDataset cannot open"):
        stream("s3000://bucket/shards").setup()
    Path(shards / "train-000001.tar").unlink()
    with pytest.raises(
        DataError, match=r"train-000001\.tar cannot be read after 0 .*(an error|nothing came)"
    ):
        epoch(stream(server))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DataError, match=r"index\.json cannot be fetched: the server refused the connection"):
        stream(place).setup()


# Options


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "classify"}, "task is 'classify', and shards are read as a whole"),
        ({"train_subset": 10}, "train_subset is 10, and shards"),
        ({"validation_subset": 10}, "validation_subset is 10, and shards"),
        ({"predict_split": "all"}, "of shards held-out images alone are predicted"),
        ({"buffer": 0}, "buffer"),
        ({"bank_size": 0}, "bank_size"),
    ],
)
def test_options_that_are_not_for_streams(shards: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stream(shards, **changes)


def test_without_webdataset_the_command_that_brings_it_is_named(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "webdataset" else find(name, *more)
    )
    with pytest.raises(
        ConfigError, match=r'StreamDataModule needs WebDataset: pip install "mmcl-lightning\[str'
    ):
        StreamDataModule("nowhere")
    with pytest.raises(SystemExit):
        main(["shards", str(folder), f"--out={tmp_path / 'x'}"])
    assert 'mmcl shards needs WebDataset: pip install "mmcl-lightning[stream]"' in capsys.readouterr().err


def test_webdataset_is_imported_where_shards_are_read_alone() -> None:
    for path in Path(mmcl_lightning.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # what an import of the module runs
            assert "webdataset" not in ast.dump(node) or not isinstance(node, ast.Import | ast.ImportFrom)
