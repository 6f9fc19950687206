"""A folder of pictures as shards of WebDataset: ``mmcl shards``."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from test_cli import complaint

from mmcl_lightning import _shards
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules.shard_writing import ShardPlan, write_shards

pytest.importorskip("webdataset")

NAMES = [f"{name}/{number}.b.jpg" for name in ("cat", "dog") for number in range(5)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten photos of two classes to train on, and one of each held out."""
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate([*(f"train/{name}" for name in NAMES), "test/cat/x.png", "test/dog/y.png"]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30 + index, 20), (20 * index, 0, 0)).save(path)
    return tmp_path / "photos"


def write(*options: str, out: str = "out") -> None:
    main(["shards", "photos", f"--out={out}", "--samples=4", "--workers=2", *options])


def samples(path: str | Path) -> list[dict[str, bytes]]:
    """The members of each sample by their ending, in the order of the shard."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as file:
        for member in file:
            key, _, end = member.name.partition(".")
            content = file.extractfile(member)
            assert content is not None
            found.setdefault(key, {})[end] = content.read()
    return list(found.values())


def whole(out: str = "out", split: str = "train") -> list[dict[str, bytes]]:
    return [sample for path in sorted(Path(out).glob(f"{split}-*.tar")) for sample in samples(path)]


def tars(out: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(out).glob("*.tar")}


def test_files_are_copied_with_class_and_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert "Wrote 4 shards of 12 pictures to out" in capsys.readouterr().out
    train = whole()
    assert {json.loads(sample["json"])["file"] for sample in train} == {f"train/{name}" for name in NAMES}
    for sample in [*train, *whole(split="test")]:
        path = folder / json.loads(sample["json"])["file"]
        assert sample[path.suffix[1:]] == path.read_bytes()
        assert sample["cls"] == (b"0" if path.parent.name == "cat" else b"1")
    assert json.loads(Path("out/index.json").read_text()) == {
        "wids_version": 1,
        "shardlist": [
            {"url": "train-000000.tar", "nsamples": 4, "split": "train"},
            {"url": "train-000001.tar", "nsamples": 4, "split": "train"},
            {"url": "train-000002.tar", "nsamples": 2, "split": "train"},
            {"url": "test-000000.tar", "nsamples": 2, "split": "test"},
        ],
        "classes": ["cat", "dog"],
        "options": {"samples": 4, "size": None, "seed": 0, "holdout": 0.1},
    }
    assert {path.name for path in Path("out").iterdir()} == {*tars("out"), "index.json"}


def test_the_order_is_a_function_of_the_seed() -> None:
    for out, options in (("one", []), ("two", ["--workers=1"]), ("three", ["--data.seed=1"])):
        write(*options, out=out)
    assert tars("one") == tars("two")
    assert tars("one") != tars("three")
    names = [json.loads(sample["json"])["file"] for sample in whole("one")]
    assert names != sorted(names)


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    before = tars("out")
    said = complaint(["shards", "photos", "--out=out"], capsys, 1)
    assert "out exists and is not empty: give another folder to --out" in said
    assert tars("out") == before


def test_what_was_broken_off_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []

    def broken(plans: Sequence[ShardPlan], *others: Any) -> Iterator[Any]:
        for number, plan in enumerate(plans):
            if number == 2 and not written:
                written.extend(path.name for path in Path("out").glob("*.tar"))
                raise OSError(28, "No space left on device", plan.path)
            yield from write_shards([plan], *others)

    monkeypatch.setattr(_shards, "write_shards", broken)
    with pytest.raises(SystemExit):
        write()
    assert sorted(written) == ["train-000000.tar", "train-000001.tar"]
    assert not Path("out/index.json").exists()
    times = {name: (Path("out") / name).stat().st_mtime_ns for name in written}
    capsys.readouterr()
    said = complaint(["shards", "photos", "--out=out", "--samples=4", "--data.seed=1"], capsys, 1)
    assert "out holds shards that were begun with other options or pictures" in said
    write()
    write(out="fresh")
    assert tars("out") == tars("fresh")
    assert times == {name: (Path("out") / name).stat().st_mtime_ns for name in written}


@pytest.mark.parametrize("moved", [False, True])
def test_classes_alone_and_pictures_without_labels(folder: Path, moved: bool) -> None:
    """Without splits a tenth is held out, at least one of each class; without classes there are no labels."""
    for number, path in enumerate(sorted((folder / "train").rglob("*.jpg"))):
        target = folder / (f"{number}.jpg" if moved else f"{path.parent.name}/{number}.jpg")
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    for split in ("train", "test"):
        for path in sorted((folder / split).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (folder / split).rmdir()
    write()
    held, train = whole(split="test"), whole()
    assert (len(train), len(held)) == ((9, 1) if moved else (8, 2))
    assert {sample.get("cls") for sample in [*train, *held]} == ({None} if moved else {b"0", b"1"})
    assert json.loads(Path("out/index.json").read_text())["classes"] == (None if moved else ["cat", "dog"])


def test_larger_pictures_are_made_smaller_and_damaged_ones_copied(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train" / "cat" / "0.b.jpg").write_bytes(b"none")
    Image.new("RGB", (8, 6)).save(folder / "train" / "cat" / "1.b.jpg")
    Image.new("RGBA", (40, 80)).save(folder / "train" / "cat" / "noending", "PNG")
    write("--size=10")
    assert "1 pictures cannot be read and were copied as they are" in capsys.readouterr().out
    found = {}
    for sample in [*whole(), *whole(split="test")]:
        (kind,) = {"jpg", "png"} & sample.keys()
        found[json.loads(sample["json"])["file"]] = kind, sample[kind]
    assert found.pop("train/cat/0.b.jpg") == ("jpg", b"none")
    assert found.pop("train/cat/1.b.jpg")[1] == (folder / "train" / "cat" / "1.b.jpg").read_bytes()
    sizes = {name: Image.open(io.BytesIO(content)).size for name, (_, content) in found.items()}
    assert sizes["train/cat/2.b.jpg"] == (16, 10)  # of 32 x 20
    assert sizes["train/cat/noending"] == (10, 20)
    assert {min(size) for size in sizes.values()} == {10}
    kinds = {name[-3:]: kind for name, (kind, _) in found.items()}
    assert kinds == {"jpg": "jpg", "png": "png", "ing": "png"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples=0"], "samples"),
        (["--size=0"], "size"),
        (["--workers=0"], "workers"),
        (["--data.batch_size=3"], "batch_size"),
    ],
)
def test_options_out_of_range(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shards", "photos", "--out=out", *options])
    assert said in capsys.readouterr().err
    assert not Path("out").exists()
