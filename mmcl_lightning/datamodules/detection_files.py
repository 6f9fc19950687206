"""Images with boxes around objects, in the layout of PASCAL VOC; its XML may be a stranger's."""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmcl_lightning.datamodules.pictures import PictureReader, is_picture
from mmcl_lightning.datamodules.sources import ImageSource
from mmcl_lightning.datamodules.transfer_files import PublishedFiles
from mmcl_lightning.errors import DataError
from mmcl_lightning.transforms.images import PixelImage

__all__ = ["DetectionSource", "Objects", "labelled", "list_objects", "read_annotation"]

_LONGEST = 2**20  # bytes of an annotation; one of VOC has a few thousand
_SHOWN = 50  # characters of a name in a message
_FARTHEST = 1e6  # pixels
#: A declaration, such as DOCTYPE or ENTITY, by which XML grows or names other files; comments are none.
_DECLARATION = re.compile(r"<!(?!--|\[CDATA\[)")


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one image, as its annotation has them.

    Attributes:
        image: File of the image.
        annotation: File of the annotation.
        size: Width and height that the annotation says the image has, or None.
        boxes: ``(n, 4)``, float32: left, top, right and bottom edges in pixels, from 0.
        difficult: ``(n,)``, bool.
        names: Name of the class of each.
        labels: ``(n,)``, int64: the classes, counted from 1; -1 until :func:`labelled` knows them.
    """

    image: str
    annotation: str
    size: tuple[int, int] | None
    boxes: np.ndarray
    difficult: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray


class DetectionSource(ImageSource):
    """Images, and beside them their objects.

    Args:
        objects: Those of each image.
    """

    def __init__(self, objects: Sequence[Objects]) -> None:
        self.objects = list(objects)
        self.targets = np.full(len(self.objects), -1)
        self._read = PictureReader()

    def item(self, index: int) -> PixelImage:
        """Return image ``index``."""
        return self._read(self.objects[index].image)

    def pair(self, index: int) -> tuple[Image.Image, Objects]:
        """Return image ``index`` in mode RGB, and its objects, which lie in it."""
        image, objects = self.item(index), self.objects[index]
        assert isinstance(image, Image.Image)
        width, height = image.size
        if objects.size not in (None, image.size):
            turned = " as it is shown upright" if objects.size == image.size[::-1] else ""
            raise DataError(
                f"{objects.annotation} is of an image of {objects.size[0]} x {objects.size[1]} pixels, and "
                f"{objects.image} has {width} x {height}{turned}: its boxes are not of this image"
            )
        sides = objects.boxes[:, 2:] - objects.boxes[:, :2]
        inside = np.clip(objects.boxes, 0, np.array([width, height] * 2, dtype=np.float32))
        outside = 2 * np.prod(inside[:, 2:] - inside[:, :2], axis=1) < np.prod(sides, axis=1)
        if outside.any():
            box = ", ".join(f"{value:g}" for value in objects.boxes[outside.argmax()])
            raise DataError(
                f"{objects.annotation}: the box of object {int(outside.argmax()) + 1}, ({box}) from 0 on, "
                f"lies by more than half outside of its image of {width} x {height} pixels"
            )
        return image, objects

    def digest(self, index: int) -> bytes:
        """Return size and pixels of image ``index``, and its objects."""
        own = self.objects[index]
        return super().digest(index) + b"".join(v.tobytes() for v in (own.boxes, own.labels, own.difficult))

    def path(self, index: int) -> str:
        """Return the file of image ``index``."""
        return self.objects[index].image

    def subset(self, indices: Any) -> DetectionSource:
        """Return the images at ``indices``."""
        return DetectionSource([self.objects[index] for index in indices])


def list_objects(root: Path, year: int, split: str) -> list[Objects]:
    """List the images of a split, each with its objects, from ``root/VOCdevkit/VOCyear``.

    Args:
        root: The folder with ``VOCdevkit``.
        year: Number of the folder in it.
        split: Name of a list in ``ImageSets/Main``.

    Raises:
        DataError: If a folder or file is missing, or an annotation is none.
    """
    files = PublishedFiles(
        f"VOC{year}", root / "VOCdevkit" / f"VOC{year}",
        "set --data.root to the folder that has VOCdevkit, and --data.years to the years in it",
    )  # fmt: skip
    table = f"ImageSets/Main/{split}.txt"
    lines = files.lines(table)
    if not lines:
        raise files.damaged(table, "it lists no image")
    try:
        names = sorted(
            os.listdir(files.folder / "JPEGImages"), key=lambda name: (name.endswith(".jpg"), name)
        )
    except OSError:
        raise files.missing("JPEGImages") from None
    pictures = {Path(name).stem: name for name in names}  # of several endings .jpg counts
    found, again = [], Counter(name for _, name in lines)
    for where, name in lines:
        place = f"VOC{year}: {files.folder / table}, {where}"
        path = files.folder / "JPEGImages" / pictures.get(name, "")
        if name not in pictures or not is_picture(str(path)):
            raise DataError(f"{place}: there is no image {name[:_SHOWN]!r} in {files.folder / 'JPEGImages'}")
        if again[name] > 1:
            raise DataError(f"{place}: the image {name!r} is listed {again[name]} times")
        annotation = files.folder / "Annotations" / f"{name}.xml"
        if not os.path.isfile(annotation):
            raise files.missing(f"Annotations/{name}.xml")
        found.append(read_annotation(annotation, path))
    return found


def labelled(parts: Sequence[Sequence[Objects]], classes: Sequence[str]) -> list[DetectionSource]:
    """Return the images of some splits with the labels of their objects.

    Args:
        parts: Images of each split.
        classes: Names of the classes from label 1 on.

    Raises:
        DataError: If an object is of no such class.
    """
    known = {name: label for label, name in enumerate(classes, 1)}
    everyone = [objects for part in parts for objects in part]
    named = {name for objects in everyone for name in objects.names}
    if strange := named - known.keys():
        first = next(o for o in everyone if strange & set(o.names))
        name = next(name for name in first.names if name in strange)
        shown = [one[:_SHOWN] for one in sorted(named)[:30]]
        raise DataError(
            f"{first.annotation}: there is no class {name[:_SHOWN]!r} among {', '.join(classes)}: set "
            f"--data.class_names to those of your data, which names {', '.join(shown)}"
        )
    return [
        DetectionSource([
            replace(own, labels=np.array([known[name] for name in own.names], dtype=np.int64)) for own in part
        ])
        for part in parts
    ]  # fmt: skip


def read_annotation(path: Path, image: Path) -> Objects:
    """Read one annotation; of what it says of files nothing is opened.

    Corners of VOC count pixels from 1, the last one included: left and top become one less. XML with
    declarations, by which it can grow or name other files, is refused.

    Args:
        path: The file.
        image: File of its image.

    Raises:
        DataError: If it is no annotation, or a box in it is none.
    """
    root = _parsed(path)
    boxes, names, difficult = [], [], []
    for number, part in enumerate(root.findall("object"), 1):
        where = f"{path}, object {number}"
        name, hard = (part.findtext("name") or "").strip(), (part.findtext("difficult") or "0").strip()
        if not name or hard not in ("0", "1"):
            got = f"{name[:_SHOWN]!r} and {hard[:_SHOWN]!r}"
            raise DataError(f"{where}: expected a name, and difficult as 0 or 1, got {got}")
        left, top, right, bottom = (
            _number(part, f"bndbox/{key}", where) for key in ("xmin", "ymin", "xmax", "ymax")
        )
        if right < left or bottom < top:  # the last pixel is part of the box
            raise DataError(
                f"{where}: the box is empty or inverted, from ({left:g}, {top:g}) to ({right:g}, {bottom:g})"
            )
        boxes.append((left - 1, top - 1, right, bottom))
        names.append(name)
        difficult.append(hard == "1")
    size = None
    if root.find("size") is not None:
        size = int(_number(root, "size/width", path)), int(_number(root, "size/height", path))
    return Objects(
        str(image), str(path), size, np.array(boxes, dtype=np.float32).reshape(-1, 4),
        np.array(difficult, dtype=bool), tuple(names), np.full(len(names), -1),
    )  # fmt: skip


def _parsed(path: Path) -> ET.Element:
    """Return the root of an annotation. A text, so that no other encoding hides a declaration."""
    try:
        with open(path, "rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise DataError(f"the annotation {path} cannot be read ({error.strerror})") from error
    if len(content) > _LONGEST:
        raise DataError(f"the annotation {path} has more than {_LONGEST:,} bytes, and is not read")
    text = content.decode("utf-8-sig", errors="replace")
    if _DECLARATION.search(text):
        raise DataError(
            f"the annotation {path} has a declaration such as DOCTYPE or ENTITY, by which XML can grow or "
            "open other files, and is not read: remove it"
        )
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DataError(f"the annotation {path} is no XML ({error})") from error
    if root.tag != "annotation":
        raise DataError(f"the annotation {path} is not of VOC: it begins with <{root.tag[:_SHOWN]}>")
    return root


def _number(part: ET.Element, key: str, where: object) -> float:
    """Return a coordinate, in pixels; some of VOC have digits after the point."""
    text = (part.findtext(key) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= _FARTHEST:
        raise DataError(f"{where}: expected {key} as a number of pixels, got {text[:_SHOWN]!r}")
    return value
