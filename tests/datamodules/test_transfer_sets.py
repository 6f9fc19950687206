"""The eleven transfer sets, read from miniatures in their official layouts."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.datasets as tv
from PIL import Image
from torchvision.transforms import v2

from mmcl_lightning.datamodules import TransferDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_transfer.json").read_text())
OWN = ("aircraft", "cars", "dtd", "flowers", "food", "pets", "sun397", "voc2007")  # written by fake_transfer


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory, fake_transfer: ModuleType) -> Path:
    """All of them below one root, to be read and not changed."""
    root = tmp_path_factory.mktemp("transfer")
    for name in OWN:
        fake_transfer.write(name, root)
    return root


def data(name: str, root: Path, **options: Any) -> TransferDataModule:
    given = {"normalize": "none", "num_workers": 0, "image_size": 24, "task": "classify"}
    return TransferDataModule(name, str(root), **(given | options))


def parts(name: str, root: Path) -> dict[str, Source]:
    """Return training, validation and test images."""
    search, final = (data(name, root, part=part).splits for part in ("search", "final"))
    return {"train": search.pretrain, "val": search.query, "test": final.query}  # type: ignore[dict-item]


def equal(ours: Source, theirs: Any) -> bool:
    assert len(ours) == len(theirs) > 0
    for (image, label), (other, wanted) in zip(ours, theirs, strict=True):
        if label != int(wanted) or image.mode != "RGB" or np.any(np.asarray(image) != np.asarray(other)):
            return False
    return True


CLASSES: dict[str, Any] = {
    "aircraft": (tv.FGVCAircraft, ("train", "val", "test")),
    "dtd": (tv.DTD, ("train", "test")),  # its val lacks a class here, so that torchvision's labels shift
    "flowers": (tv.Flowers102, ("train", "val", "test")),
    "cars": (tv.StanfordCars, ("test",)),
    "food": (tv.Food101, ("test",)),
    "pets": (tv.OxfordIIITPet, ("test",)),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_set_equals_the_class_of_torchvision(
    name: str, official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, splits = CLASSES[name]
    monkeypatch.setattr(tv.Flowers102, "_check_integrity", lambda self: True)  # of the official .mat files
    found = parts(name, official)
    for split in splits:
        theirs = kind(official, split=split)
        assert equal(found[split], theirs), split
        assert data(name, official).class_names == list(theirs.classes)


@pytest.mark.parametrize(("name", "split"), [("cars", "train"), ("food", "train"), ("pets", "trainval")])
def test_a_fifth_of_the_training_images_of_torchvision_is_for_validation(
    name: str, split: str, official: Path
) -> None:
    theirs = CLASSES[name][0](official, split=split)
    order = list(range(len(theirs)))
    np.random.RandomState(0).shuffle(order)
    held = order[: len(order) // 5]
    found, final = parts(name, official), data(name, official)
    assert equal(found["val"], [theirs[index] for index in held])
    assert equal(found["train"], [theirs[index] for index in sorted(order[len(held) :])])
    assert equal(final.splits.pretrain, theirs)
    assert final.validation_rows is not None
    assert final.validation_rows.tolist() == held


@pytest.mark.parametrize("name", OWN)
def test_parts_are_disjoint_and_rgb(name: str, official: Path) -> None:
    found = parts(name, official)
    paths = [part.path(index) for part in found.values() for index in range(len(part))]
    assert len(set(paths)) == len(paths)
    assert all(Path(str(path)).is_file() for path in paths)
    for part in found.values():
        assert all(part.item(index).mode == "RGB" for index in range(len(part)))
    final = data(name, official)
    assert len(final.splits.pretrain) == len(found["train"]) + len(found["val"])
    assert final.validation_rows is not None
    rows = final.splits.pretrain.subset(final.validation_rows)
    assert [rows.path(i) for i in range(len(rows))] == [
        found["val"].path(i) for i in range(len(found["val"]))
    ]


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("aircraft", "0000002.jpg", "F/A-18"),
        ("cars", "00002.jpg", "Acura RL Sedan 2012"),
        ("dtd", "dotted_1000.jpg", "dotted"),
        ("flowers", "image_00003.jpg", "globe thistle"),
        ("food", "waffles/1.jpg", "waffles"),
        ("pets", "american_bulldog_1.jpg", "American Bulldog"),
        ("sun397", "a/apse/indoor/sun_00001.jpg", "apse/indoor"),
        ("voc2007", "000001.jpg", "bicycle + bottle"),
    ],
)
def test_a_named_file_has_its_class(name: str, file: str, expected: str, official: Path) -> None:
    module = data(name, official, predict_split="train")
    rows = module.rows(range(len(module.splits.pretrain)))
    (found,) = [c for path, c in zip(rows["path"], rows["class"], strict=True) if path.endswith(f"/{file}")]
    if name == "flowers":  # image 3: (3 * 7) % 102 + 1 is class 22 counted from 1
        expected = tv.Flowers102.classes[21]
    assert found == expected


def test_images_of_several_classes(official: Path) -> None:
    module = data("voc2007", official)
    theirs = tv.VOCDetection(str(official), year="2007", image_set="test")
    query = module.splits.query
    assert query is not None
    assert [query.path(i) for i in range(len(query))] == theirs.images
    assert query.targets[:2].tolist() == [2**0 + 2**3, 2**1 + 2**4], "difficult ones count as negative"
    assert module.metric == "map_11point"
    pretraining = data("voc2007", official, task="pretrain").splits
    assert pretraining.bank is None
    assert pretraining.pretrain.targets.tolist() == [-1] * 48
    with pytest.raises(ConfigError, match="images of voc2007 have several: leave it out"):
        data("voc2007", official, train_subset=10)


def test_cifar_is_enlarged(cifar10_root: Path) -> None:
    module = data("cifar10", cifar10_root)
    with pytest.warns(UserWarning, match="published with 50000, 10000 images, so values do not"):
        module.setup()
    assert module.description() == (
        "CIFAR-10: 100 training, 20 test images, 10 classes, 20 of the training for validation"
    )
    assert module.validation_rows is not None
    assert module.validation_rows[:5].tolist() == GOLDEN["validation_split"]["sets"]["hundred"]["first_val"]
    image = tv.CIFAR10(cifar10_root, train=False)[3][0]
    image = v2.functional.resize(image, 224, v2.InterpolationMode.BICUBIC)
    (found, _), *_ = torch.utils.data.DataLoader(
        data("cifar10", cifar10_root, image_size=224, eval_batch_size=20).test_dataloader().dataset,
        batch_size=20,
    )
    assert torch.equal(found[3], v2.functional.pil_to_tensor(image).float().div(255))


def test_a_subset_keeps_its_validation_images(cifar10_root: Path) -> None:
    module = data("cifar10", cifar10_root, train_subset=50)
    whole = data("cifar10", cifar10_root)
    assert module.validation_rows is not None
    assert whole.validation_rows is not None
    bank = module.splits.bank
    assert set(bank.indices[module.validation_rows]) <= set(whole.validation_rows)  # type: ignore[union-attr]
    assert 0 < len(module.validation_rows) < 20


def test_caltech_has_the_published_training_images(tmp_path: Path, fake_transfer: ModuleType) -> None:
    fake_transfer.write("caltech101", tmp_path)
    module = data("caltech101", tmp_path)
    source, golden = module.splits.pretrain, GOLDEN["caltech101_split"]
    names = ["/".join(str(source.path(index)).split("/")[-2:]) for index in range(len(source))]
    assert (len(names), len(module.splits.query or [])) == (golden["train"], golden["test"])
    assert names[: len(golden["first_train"])] == golden["first_train"]
    lines = "\n".join(sorted(names))
    assert hashlib.sha256(lines.encode()).hexdigest() == golden["sha256_of_sorted_train_lines"]
    assert module.class_names == list(golden["images_per_class"])
    assert source.targets[0] == 0
    assert source.item(0).mode == "RGB"
    held = GOLDEN["validation_split"]["sets"]["caltech101"]
    assert module.validation_rows is not None
    assert module.validation_rows[:5].tolist() == held["first_val"]
    folder = tmp_path / "caltech101" / "101_ObjectCategories"
    (folder / "beaver" / "image_0046.jpg").unlink()
    with pytest.raises(DataError, match=r"beaver is not as published \(45 files .* published are 46\)"):
        data("caltech101", tmp_path).setup()
    shutil.rmtree(folder / "beaver")
    with pytest.raises(DataError, match=r"beaver is missing; --data\.download true fetches it"):
        data("caltech101", tmp_path).setup()


def test_the_records_are_the_published_sets() -> None:
    found = [(n, s.classes, s.metric, sum(k or 0 for k in s.sizes)) for n, s in TRANSFER_SETS.items()]
    assert found == [
        ("aircraft", 100, "mean_per_class", 10000),
        ("caltech101", 102, "mean_per_class", 9144),
        ("cars", 196, "top1", 16185),
        ("cifar10", 10, "top1", 60000),
        ("cifar100", 100, "top1", 60000),
        ("dtd", 47, "top1", 5640),
        ("flowers", 102, "mean_per_class", 8189),
        ("food", 101, "top1", 101000),
        ("pets", 37, "mean_per_class", 7349),
        ("sun397", 397, "top1", 39700),
        ("voc2007", 20, "map_11point", 9963),
    ]


def test_normalisation_is_that_of_the_weights_or_asked_for(official: Path) -> None:
    module = data("dtd", official, normalize=None)
    with pytest.raises(ConfigError, match=r"set --data.normalize to none \(images in \[0, 1\]"):
        module.test_dataloader()
    statistics = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    weights = Preprocessing.of(EvalTransform(32, 32, *statistics), (32, 32), None, 3)
    with pytest.warns(UserWarning, match=r"judged on images of 32 x 32 pixels .* these are of 24 x 24"):
        module.take_over(weights)
    transform = module.test_dataloader().dataset.transform
    assert (transform.resize, transform.crop, transform.mean, transform.std) == (24, 24, *statistics)
    with pytest.warns(UserWarning, match=r"the weights were trained on images .*0\.5"):
        data("dtd", official, normalize="imagenet").take_over(weights)
    unknown = Preprocessing(None, None, None, 3)
    with pytest.raises(ConfigError, match="nobody says"):
        data("dtd", official, normalize=None).take_over(unknown)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"one of aircraft, caltech101, .*'flower'; did you mean flowers\?"):
        TransferDataModule("flower")
    with pytest.raises(ConfigError, match=r"dataset must be one of .*; got None$"):
        TransferDataModule()
    for option, value in {"part": "test", "normalize": "mean", "image_size": 0, "download": 1}.items():
        with pytest.raises(ConfigError, match=f"{option} must be"):
            TransferDataModule("dtd", **{option: value})
    with pytest.raises(ConfigError, match=r"--data\.part search is"):
        TransferDataModule("dtd", validation_subset=10)


MISSING = {
    "aircraft": r"Aircraft: .*variants.txt is missing; --data.download true fetches it$",
    "caltech101": r"Caltech-101: .*BACKGROUND_Google is missing; --data.download true fetches it$",
    "cars": r"Cars: .*cars_meta.mat is missing; its source is gone: bring devkit",
    "cifar10": "cifar-10-batches-py is missing; --data.download true fetches it",
    "dtd": r"DTD: .*train1.txt is missing; --data.download true fetches it$",
    "flowers": r"imagelabels.mat is missing; --data.download true fetches it$",
    "food": r"train.json is missing; --data.download true fetches it$",
    "pets": r"trainval.txt is missing; --data.download true fetches it$",
    "sun397": r"ClassName.txt is missing; --data.download true fetches it; Training_01.txt and .* a second",
    "voc2007": r"train.txt is missing; --data.download true fetches it$",
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_said_with_the_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=MISSING[name]):
        data(name, tmp_path).setup()


def broken(name: str, fake_transfer: ModuleType, root: Path, file: str, old: str, new: str) -> None:
    fake_transfer.write(name, root)
    path = root / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


AIR, PETS = "fgvc-aircraft-2013b/data/images_variant_val.txt", "oxford-iiit-pet/annotations/test.txt"
VOC = "VOCdevkit/VOC2007/ImageSets/Main/cat_val.txt"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("aircraft", AIR, "0001002", "0009", r"images_variant_val.txt, line 3: there is no image .*0009.jpg"),
        ("aircraft", AIR, "An-12", "An-13", "line 2: there is no class 'An-13' among the 4 of the set"),
        ("pets", PETS, "Abyssinian_100 1 ", "Abyssinian_100 0 ", "line 1: there is no class -1 among the 3"),
        ("pets", PETS, "Abyssinian_100 1 ", "Abyssinian_100 ? ", r"test.txt is not as published \(line 1 is"),
        ("food", "food-101/meta/test.json", "{", "[", "test.json is not as published"),
        ("voc2007", VOC, "001000", "001999", "cat_val.txt is not as published .line 1 is '001999 -1'"),
    ],
)
def test_damaged_lists_are_told(
    name: str, file: str, old: str, new: str, message: str, tmp_path: Path, fake_transfer: ModuleType
) -> None:
    broken(name, fake_transfer, tmp_path, file, old, new)
    with pytest.raises(DataError, match=message):
        data(name, tmp_path).setup()


def test_damaged_files_are_told(tmp_path: Path, fake_transfer: ModuleType) -> None:
    for name in ("dtd", "cars"):
        fake_transfer.write(name, tmp_path)
    (tmp_path / "stanford_cars" / "devkit" / "cars_meta.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match=r"cars_meta.mat is not as published"):
        data("cars", tmp_path).setup()
    picture = tmp_path / "dtd" / "dtd" / "images" / "banded" / "banded_0000.jpg"
    picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(DataError, match=r"banded_0000.jpg cannot be read .*the set is not whole, unpack"):
        data("dtd", tmp_path).splits.pretrain.item(0)
    for split in ("train", "val", "test"):
        (tmp_path / "dtd" / "dtd" / "labels" / f"{split}1.txt").write_text("woven/woven_0002.jpg\n")
    with pytest.raises(DataError, match="DTD: all training images are of one class"):
        data("dtd", tmp_path).setup()


def test_without_scipy_the_extra_is_named(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("cars", "flowers"):
        with pytest.raises(ConfigError, match=r'SciPy: pip install "mmcl-lightning\[transfer\]"'):
            data(name, official).setup()


def test_download_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(root: str, **options: Any) -> None:
        asked.append((root, options))
        raise RuntimeError("no network")

    monkeypatch.setattr(tv, "DTD", refuse)
    data("dtd", tmp_path).prepare_data()
    assert asked == []
    with pytest.raises(DataError, match=r"DTD: the download failed \(no network\)"):
        data("dtd", tmp_path, download=True).prepare_data()
    assert asked == [(str(tmp_path), {"download": True})]
    data("cars", tmp_path, download=True).prepare_data()  # says what to do when it is read


def test_transparency_and_grey_are_read_as_published(official: Path) -> None:
    pets = {
        Path(str(part.path(index))).name: part.item(index)
        for part in parts("pets", official).values() for index in range(len(part))
    }  # fmt: skip
    for name in ("american_bulldog_1.jpg", "Egyptian_Mau_2.jpg"):
        with Image.open(official / "oxford-iiit-pet" / "images" / name) as image:
            assert image.format in ("PNG", "GIF")
            assert np.array_equal(np.asarray(pets[name]), np.asarray(image.convert("RGB")))
