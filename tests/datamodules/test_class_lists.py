"""Some class folders of a data set, by a list; and ImageNet as its archives unpack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.datamodules.class_lists import read_class_list
from mmcl_lightning.errors import ConfigError, DataError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for part, count in (("train", 3), ("val", 2)):
        for place, name in enumerate(("n01", "n02", "n03")):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (8, 8), (50 * place, index, 0))
                image.save(tmp_path / "data" / part / name / f"{index}.JPEG")
    return tmp_path / "data"


def test_the_list_of_imagenet100() -> None:
    names = read_class_list("imagenet100")
    assert len(set(names)) == 100
    assert (names[0], min(names), max(names)) == ("n02869837", "n01558993", "n13040303")


def test_only_these_are_read(root: Path) -> None:
    Path("two.txt").write_text("# my classes\nn03  # the last\n\nn01\n")
    data = ImageFolderDataModule(str(root), class_list="two.txt")
    data.setup()
    assert data.class_names == ["n01", "n03"]
    assert np.bincount(data.splits.pretrain.targets).tolist() == [3, 3]
    assert data.splits.query is not None
    assert np.bincount(data.splits.query.targets).tolist() == [2, 2]
    assert data.splits.pretrain.path(3) == str(root / "train" / "n03" / "0.JPEG")
    assert data._scan().ignored["class folders that class_list does not have"] == 2  # one of each split


def test_lists_that_cannot_be_used(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"class_list must be imagenet100, or a file .* no file n\.txt"):
        ImageFolderDataModule(str(root), class_list="n.txt").setup()
    Path("n.txt").write_text("n01\nn01\n")
    with pytest.raises(DataError, match=r"n\.txt has n01 twice"):
        ImageFolderDataModule(str(root), class_list="n.txt").setup()
    Path("n.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match=r"n\.txt has no name"):
        ImageFolderDataModule(str(root), class_list="n.txt").setup()
    Path("n.txt").write_text("n01\nn07\nn09\n")
    with pytest.raises(
        DataError, match=r"train lacks 2 of the 3 class folders of data\.class_list, such as n07"
    ):
        ImageFolderDataModule(str(root), class_list="n.txt").setup()
    with pytest.raises(ConfigError, match="class_list chooses class folders, and labels is 'none'"):
        ImageFolderDataModule(str(root), class_list="n.txt", labels="none").setup()


def test_a_flat_validation_folder_of_imagenet_is_refused(root: Path) -> None:
    for path in sorted((root / "val").rglob("*.JPEG")):
        path.rename(root / "val" / f"ILSVRC2012_val_{path.parent.name}{path.stem}.JPEG")
    for folder in [path for path in (root / "val").iterdir() if path.is_dir()]:
        folder.rmdir()
    with pytest.raises(
        DataError, match=r"val has 6 pictures of ImageNet's validation and no class folders: move"
    ):
        ImageFolderDataModule(str(root)).setup()
