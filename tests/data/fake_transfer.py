"""Write miniatures of the eleven transfer sets in their official layouts, from random pixels."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

COUNT = 12  # images of a part, more or less


def write(name: str, root: Path) -> None:
    """Write a set; CIFAR is that of ``fake_images``."""
    globals()[f"write_{name}"](root)


def picture(path: Path, seed: int, mode: str = "RGB", kind: str = "JPEG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (18, 21, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, format=kind)


def table(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    names = ["707-320", "An-12", "F/A-18", "Boeing 717"]  # with a slash, and with a space
    table(data / "variants.txt", names)
    for part, split in enumerate(("train", "val", "test")):
        ids = [f"{1000 * part + index:07d}" for index in range(COUNT)]
        table(data / f"images_variant_{split}.txt", [f"{i} {names[int(i) % 4]}" for i in ids])
        for image in ids:
            picture(data / "images" / f"{image}.jpg", int(image))


def write_caltech101(root: Path) -> None:
    """As many files as the official ones, all of them the same picture."""
    folder = root / "caltech101" / "101_ObjectCategories"
    golden = Path(__file__).parents[1] / "golden" / "reference_transfer.json"
    counts = json.loads(golden.read_text())["caltech101_split"]["images_per_class"]
    buffer = io.BytesIO()
    Image.new("L", (9, 7), 99).save(buffer, format="JPEG")  # some are grey
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(1, count + 1):
            (folder / name / f"image_{index:04d}.jpg").write_bytes(buffer.getvalue())
    (folder / "BACKGROUND_Google" / "tmp").write_text("a stray file of the archive")


def write_cars(root: Path) -> None:
    folder = root / "stanford_cars"
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    (folder / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Audi TT 2011"], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names[None]})
    for split, file in (
        ("train", "devkit/cars_train_annos.mat"),
        ("test", "cars_test_annos_withlabels.mat"),
    ):
        notes = np.array([(1, i % 3 + 1, f"{i + 1:05d}.jpg") for i in range(COUNT)], dtype=kind)
        savemat(folder / file, {"annotations": notes[None]})
        for index in range(COUNT):
            picture(folder / f"cars_{split}" / f"{index + 1:05d}.jpg", index, "L" if index == 2 else "RGB")


def write_dtd(root: Path) -> None:
    folder = root / "dtd" / "dtd"
    for part, split in enumerate(("train", "val", "test")):
        names = ["banded", "dotted", "woven"]
        if split == "val":
            names.remove("banded")  # torchvision would number the others from 0
        files = [f"{names[i % len(names)]}/{names[i % len(names)]}_{part}{i:03d}.jpg" for i in range(COUNT)]
        table(folder / "labels" / f"{split}1.txt", files)
        for index, file in enumerate(files):
            picture(folder / "images" / file, 100 * part + index)


def write_flowers(root: Path) -> None:
    folder = root / "flowers-102"
    numbers = np.arange(1, 3 * COUNT + 1)
    folder.mkdir(parents=True)
    savemat(folder / "imagelabels.mat", {"labels": (numbers * 7 % 102 + 1)[None]})
    parts = {"trnid": numbers[2::3][None], "valid": numbers[::3][None], "tstid": numbers[1::3][None]}
    savemat(folder / "setid.mat", parts)
    for number in numbers:
        picture(folder / "jpg" / f"image_{number:05d}.jpg", int(number))


def write_food(root: Path) -> None:
    folder = root / "food-101"
    for part, split in enumerate(("train", "test")):
        listed = {
            name: [f"{name}/{100 * part + 10 * k + i}" for i in range(4)]
            for k, name in enumerate(("waffles", "apple_pie", "ramen"))  # not in the order of their names
        }
        (folder / "meta").mkdir(parents=True, exist_ok=True)
        (folder / "meta" / f"{split}.json").write_text(json.dumps(listed))
        for seed, image in enumerate(image for images in listed.values() for image in images):
            picture(folder / "images" / f"{image}.jpg", 50 * part + seed)


def write_pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    names = ["Abyssinian", "american_bulldog", "Egyptian_Mau"]
    for part, split in enumerate(("trainval", "test")):
        rows = [(f"{names[i % 3]}_{100 * part + i}", i % 3 + 1) for i in range(COUNT)]
        table(folder / "annotations" / f"{split}.txt", [f"{image} {k} 1 1" for image, k in rows])
        for index, (image, _) in enumerate(rows):
            kind, mode = ("PNG", "RGBA") if index == 1 else ("GIF", "P") if index == 2 else ("JPEG", "RGB")
            picture(folder / "images" / f"{image}.jpg", 100 * part + index, mode, kind)


def write_sun397(root: Path) -> None:
    folder = root / "SUN397"
    names = ["/a/abbey", "/a/apse/indoor", "/z/zen_garden"]
    table(folder / "ClassName.txt", names)
    for part, file in enumerate(("Training_01.txt", "Testing_01.txt")):
        images = [f"{names[i % 3]}/sun_{part}{i:04d}.jpg" for i in range(COUNT)]
        table(folder / file, images)
        for index, image in enumerate(images):
            picture(folder / image[1:], 100 * part + index)


VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
)


def write_voc2007(root: Path) -> None:
    """Image i is of class i modulo 20, of the next but two, and has a difficult one of class i + 1."""
    folder = root / "VOCdevkit" / "VOC2007"
    for part, split in enumerate(("train", "val", "test")):
        ids = [f"{1000 * part + index:06d}" for index in range(2 * COUNT)]
        table(folder / "ImageSets" / "Main" / f"{split}.txt", ids)
        for k, name in enumerate(VOC.split()):
            values = [{0: 1, 3: 1, 1: 0}.get((k - int(i)) % 20, -1) for i in ids]
            lines = [f"{image} {value:2d}" for image, value in zip(ids, values, strict=True)]
            table(folder / "ImageSets" / "Main" / f"{name}_{split}.txt", lines)
        for image in ids:
            picture(folder / "JPEGImages" / f"{image}.jpg", int(image))
    table(folder / "ImageSets" / "Main" / "trainval.txt", [])
