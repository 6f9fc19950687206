"""Find, read and cache image files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmcl_lightning.datamodules.sources import ArraySource, ImageSource
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["EXTENSIONS", "FileSource", "ImageTree", "cache_images", "read_image", "scan_tree"]

EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_TEST_FOLDERS = ("test", "val", "validation")
_CACHE_LIMIT = 4 * 2**30  # bytes


def read_image(path: Path) -> Image.Image:
    """Read one image in mode RGB.

    Raises:
        DataError: If the file is missing, truncated or no image.
    """
    try:
        with Image.open(path) as image:
            if image.mode.startswith("I;16"):  # convert would clip 16 bits at 255
                return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
            rgb: Image.Image = image.convert("RGB")
            return rgb
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"the image {path} cannot be read ({error}); repair or remove it") from error


class FileSource(ImageSource):
    """Images that are read from their files every time.

    Args:
        paths: The files.
        targets: Class indices, shape ``(N,)``, or None for unlabelled images.
    """

    def __init__(self, paths: Sequence[Path], targets: object = None) -> None:
        # An array of bytes, not a list of objects: forked workers would copy the latter page by page.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.targets = np.full(len(paths), -1) if targets is None else np.asarray(targets, dtype=np.int64)

    def image(self, index: int) -> Image.Image:
        """Read image ``index`` in mode RGB."""
        return read_image(Path(os.fsdecode(bytes(self._paths[index]))))


class _ListSource(ImageSource):
    """Decoded images of differing sizes."""

    def __init__(self, images: list[np.ndarray], targets: object) -> None:
        self._images = images
        self.targets = np.asarray(targets, dtype=np.int64)

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self._images[index])


@dataclass(frozen=True)
class ImageTree:
    """What a folder holds.

    Attributes:
        train: Training images.
        test: Held-out images, or None.
        class_names: Sorted names of the class folders, or None without labels.
    """

    train: ImageSource
    test: ImageSource | None
    class_names: list[str] | None


def scan_tree(root: str, holdout: float, seed: int) -> ImageTree:
    """List the images of a folder in one of the layouts of ImageFolderDataModule.

    Args:
        root: The folder.
        holdout: Fraction held out where the folder has no test images.
        seed: The held-out images are a function of it.

    Raises:
        DataError: If the folder is missing, holds no image, or mixes layouts.
    """
    folder = Path(root).expanduser().absolute()
    if folder.is_file():
        raise DataError(f"{folder} is a file; set --data.root to a folder with images")
    if not folder.is_dir():
        raise DataError(f"the image folder {folder} does not exist; set --data.root to a folder with images")
    train_folder = folder / "train" if (folder / "train").is_dir() else folder
    train, names = _scan_classes(train_folder)
    test_folder = next((folder / name for name in _TEST_FOLDERS if (folder / name).is_dir()), None)
    if train_folder != folder and test_folder is not None:
        test, test_names = _scan_classes(test_folder, names)
        if (names is None) != (test_names is None):
            raise DataError(f"one of {train_folder} and {test_folder} has class folders, the other has none")
        return ImageTree(train, test, names)
    beside = [child.name for child in sorted(folder.iterdir()) if child.is_dir() and _images_below(child)]
    if train_folder != folder and beside != ["train"]:
        raise DataError(
            f"{folder} has a folder train and, beside it, folders of images ({', '.join(beside[:3])}, ...) "
            f"but no {' or '.join(_TEST_FOLDERS)}: if train is a class, rename it; if it is the training "
            "split, move the others away"
        )
    return _hold_out(train, names, holdout, seed)


def cache_images(source: ImageSource) -> ImageSource:
    """Decode every image once.

    Raises:
        ConfigError: If the decoded images need more than 4 GiB.
        DataError: If an image is damaged.
    """
    images, size = [], 0
    for index in range(len(source)):
        images.append(np.array(source.image(index)))
        size += images[-1].nbytes
        if size > _CACHE_LIMIT:
            raise ConfigError(
                f"cache needs more than {_CACHE_LIMIT >> 30} GiB ({index + 1} of {len(source)} images"
                " decoded); set cache to false, or make the images smaller"
            )
    if len({image.shape for image in images}) == 1:
        return ArraySource(np.stack(images), source.targets)
    return _ListSource(images, source.targets)


def _scan_classes(folder: Path, known: list[str] | None = None) -> tuple[FileSource, list[str] | None]:
    """List the images of one split; class indices refer to ``known`` where given."""
    loose = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_image(path)]
    classes = {child.name: _images_below(child) for child in sorted(folder.iterdir()) if child.is_dir()}
    classes = {name: paths for name, paths in classes.items() if paths and not name.startswith(".")}
    if loose and classes:
        raise DataError(
            f"{folder} holds both images ({loose[0].name}, ...) and folders of images ({next(iter(classes))},"
            " ...); move the images into a class folder, or the folders away"
        )
    if loose:
        return FileSource(loose), None
    if not classes:
        raise DataError(f"no image was found in {folder}; looked for {', '.join(EXTENSIONS)} in it and below")
    names = sorted(classes) if known is None else known
    unknown = sorted(set(classes) - set(names))
    if unknown:
        raise DataError(
            f"{folder} has the class folder {unknown[0]!r}, which the training images do not have"
        )
    paths = [path for name in names for path in classes.get(name, [])]
    targets = [target for target, name in enumerate(names) for _ in classes.get(name, [])]
    return FileSource(paths, targets), names


def _images_below(folder: Path) -> list[Path]:
    # followlinks: an ImageNet-100 tree is commonly made of links into the full one.
    images, seen = [], set()
    for base, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(base))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(base, name)) not in seen]
        images += [path for path in (Path(base, file) for file in files) if _is_image(path)]
    return sorted(images)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


def _hold_out(source: ImageSource, names: list[str] | None, holdout: float, seed: int) -> ImageTree:
    """Hold out a fraction of each class, rounded; classes of one image stay in training."""
    generator = np.random.default_rng(seed)
    held = np.zeros(len(source), dtype=bool)
    for label in np.unique(source.targets):
        members = generator.permutation(np.flatnonzero(source.targets == label))
        count = max(1, round(holdout * len(members))) if holdout > 0 and len(members) > 1 else 0
        held[members[: min(count, len(members) - 1)]] = True
    if not held.any():
        return ImageTree(source, None, names)
    return ImageTree(source.subset(np.flatnonzero(~held)), source.subset(np.flatnonzero(held)), names)
