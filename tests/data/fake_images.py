"""Write small fake data sets in the official on-disk layouts, from random pixels."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_stl10(root: Path, train: int = 20, unlabeled: int = 30, test: int = 20) -> dict[str, str]:
    """Write ``stl10_binary``; return the MD5 sum of each file."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name, count in (("train", train), ("unlabeled", unlabeled), ("test", test)):
        generator.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tofile(folder / f"{name}_X.bin")
        if name != "unlabeled":
            (np.arange(count) % 10 + 1).astype(np.uint8).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(STL10_CLASSES) + "\n")
    return md5_sums(folder)


def write_cifar10(root: Path, per_batch: int = 20, test: int = 20) -> dict[str, str]:
    """Write ``cifar-10-batches-py``; return the MD5 sum of each file."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{index}" for index in range(1, 6)]
    for seed, (name, count) in enumerate([*((name, per_batch) for name in names), ("test_batch", test)]):
        _write_pickle(folder / name, {**_pixels(count, seed), "labels": [i % 10 for i in range(count)]})
    _write_pickle(folder / "batches.meta", {"label_names": list(CIFAR10_CLASSES)})
    return md5_sums(folder)


def write_cifar100(root: Path, train: int = 200, test: int = 100) -> dict[str, str]:
    """Write ``cifar-100-python``; return the MD5 sum of each file."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate((("train", train), ("test", test))):
        _write_pickle(folder / name, {**_pixels(count, seed), "fine_labels": [i % 100 for i in range(count)]})
    _write_pickle(folder / "meta", {"fine_label_names": [f"class{index:03d}" for index in range(100)]})
    return md5_sums(folder)


def write_class_folders(
    folder: Path, classes: int, per_class: int, size: int = 32, suffix: str = "png"
) -> None:
    """Write ``CLASS/0000.suffix`` files."""
    for label in range(classes):
        write_flat(folder / f"class{label}", per_class, size, suffix, seed=label)


def write_flat(folder: Path, count: int, size: int = 32, suffix: str = "png", seed: int = 0) -> None:
    """Write images directly into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for index in range(count):
        pixels = generator.integers(0, 256, (size, size + 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04d}.{suffix}")


def write_tiny_imagenet(root: Path, classes: int = 2, per_class: int = 10, val: int = 10) -> list[str]:
    """Write ``train/WNID/images``, ``val/images`` and their tables, and ``test/images``; return the WNIDs.

    The labels of val go through the classes backwards.
    """
    names = [f"n{1443537 + 100 * index:08d}" for index in range(classes)]
    for seed, name in enumerate(names):
        for index in range(per_class):
            _write_image(
                root / "train" / name / "images" / f"{name}_{index}.JPEG", (64, 64), 100 * seed + index
            )
        boxes = "".join(f"{name}_{index}.JPEG\t0\t10\t63\t58\n" for index in range(per_class))
        (root / "train" / name / f"{name}_boxes.txt").write_text(boxes)
    for split, count in (("val", val), ("test", 3)):
        for index in range(count):
            _write_image(root / split / "images" / f"{split}_{index}.JPEG", (64, 64), 5000 + index)
    rows = [f"val_{index}.JPEG\t{names[-1 - index % classes]}\t0\t32\t44\t62\n" for index in range(val)]
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    (root / "wnids.txt").write_text("\n".join(names))
    (root / "words.txt").write_text("n00001740\tentity\n")
    return names


EUROSAT_CLASSES = ("AnnualCrop", "Forest", "Highway", "River", "SeaLake")
ISIC_CLASSES = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
#: Findings of the rows of ChestX's file, of which three are of no class of their own.
CHESTX_ROWS = (
    "Mass", "No Finding", "Mass|Nodule", "Atelectasis", "Pneumothorax", "Hernia", "Nodule", "Mass",
)  # fmt: skip


def write_eurosat(root: Path, per_class: int = 4) -> None:
    """Write ``eurosat/2750/CLASS/CLASS_1.jpg`` and so on, 64 x 64 pixels."""
    for seed, name in enumerate(EUROSAT_CLASSES):
        for index in range(1, per_class + 1):
            _write_image(
                root / "eurosat" / "2750" / name / f"{name}_{index}.jpg", (64, 64), 10 * seed + index
            )


def write_cropdiseases(root: Path, per_class: int = 2) -> None:
    """Write ``CropDiseases/dataset/train/CLASS/*.JPG`` of 38 classes, and the test folder beside it."""
    for label in range(38):
        name = f"Crop{label:02d}___spot"
        for split, count in (("train", per_class), ("test", 1)):
            for index in range(count):
                path = root / "CropDiseases" / "dataset" / split / name / f"{split}{index}.JPG"
                _write_image(path, (20, 16), label)


def write_isic(root: Path, count: int = 14) -> None:
    """Write ISIC 2018's images of task 3 and their one-hot labels, the last class first."""
    folder = root / "ISIC"
    truth = folder / "ISIC2018_Task3_Training_GroundTruth"
    truth.mkdir(parents=True)
    rows = ["image," + ",".join(ISIC_CLASSES)]
    for index in range(count):
        name = f"ISIC_{24306 + index:07d}"
        _write_image(folder / "ISIC2018_Task3_Training_Input" / f"{name}.jpg", (30, 22), index)
        rows.append(",".join([name, *("1.0" if label == 6 - index % 7 else "0.0" for label in range(7))]))
    (truth / f"{truth.name}.csv").write_text("\n".join(rows) + "\n")
    (folder / "ISIC2018_Task3_Training_Input" / "ATTRIBUTION.txt").write_text("whose they are")


def write_chestx(root: Path) -> None:
    """Write ``ChestX``: grey images and one with alpha, and the file of their findings."""
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for index, finding in enumerate(CHESTX_ROWS):
        name = f"{index:08d}_000.png"
        _write_image(root / "ChestX" / "images" / name, (40, 48), index, "RGBA" if index == 3 else "L")
        rows.append(f"{name},{finding},{index},{index}")
    (root / "ChestX" / "Data_Entry_2017.csv").write_text("\n".join(rows) + "\n")


def _write_image(path: Path, size: tuple[int, int], seed: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if mode == "RGBA":
        image.putalpha(255)
    image.save(path)


def md5_sums(folder: Path) -> dict[str, str]:
    """MD5 sum of each file of a folder by name."""
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _pixels(count: int, seed: int) -> dict[str, np.ndarray]:
    return {"data": np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)}


def _write_pickle(path: Path, content: dict) -> None:
    path.write_bytes(pickle.dumps(content))
