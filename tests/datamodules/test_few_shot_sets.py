"""FewShotDataModule: each data set from a miniature in its official layout."""

from __future__ import annotations

import collections
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import EuroSAT

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import FewShotDataModule, ImageFolderDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform, StretchedCrop


def opened(root: Path, dataset: str, **options: Any) -> FewShotDataModule:
    data = FewShotDataModule(dataset, str(root), num_workers=0, **options)
    data.setup("test")
    return data


def labels(data: FewShotDataModule) -> dict[str, str]:
    """Names of the classes by those of the files."""
    source = data.splits.query
    assert source is not None
    return {Path(str(source.path(i))).name: data.class_names[source.targets[i]] for i in range(len(source))}


def test_eurosat_equals_torchvision(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_eurosat(tmp_path)
    data, official = opened(tmp_path, "eurosat"), EuroSAT(str(tmp_path))
    source = data.splits.query
    assert data.class_names == official.classes == list(fake.EUROSAT_CLASSES)
    assert source.targets.tolist() == official.targets
    assert [source.path(i) for i in range(len(source))] == [path for path, _ in official.samples]
    for index in (0, 7, 19):
        assert np.array_equal(np.array(source.item(index)), np.array(official[index][0]))
    images, targets = next(iter(data.test_dataloader()))
    assert (images.shape, targets.tolist()) == ((20, 3, 224, 224), official.targets)
    assert torch.equal(images[3], StretchedCrop()(official[3][0]))
    assert data.folder == "eurosat"


def test_cropdiseases_is_its_train_folder(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_cropdiseases(tmp_path)
    data = opened(tmp_path, "cropdiseases")
    assert (data.num_classes, len(data.splits.query)) == (38, 76)
    assert {Path(str(data.splits.query.path(i))).name for i in range(76)} == {"train0.JPG", "train1.JPG"}


def test_isic_reads_one_hot_labels(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_isic(tmp_path)
    data = opened(tmp_path, "isic")
    assert data.class_names == ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
    found = labels(data)
    named = ("ISIC_0024306.jpg", "ISIC_0024311.jpg", "ISIC_0024319.jpg")
    assert [found[name] for name in named] == ["VASC", "NV", "MEL"]
    assert len(found) == 14
    assert "Training_GroundTruth.csv does not name: 1" in data.description()


def test_chestx_has_the_images_of_one_of_seven_findings(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_chestx(tmp_path)
    data = opened(tmp_path, "chestx")
    assert data.class_names == [
        "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumothorax",
    ]  # fmt: skip
    found = labels(data)
    assert [found[f"{i:08d}_000.png"] for i in (0, 3, 6)] == ["Mass", "Atelectasis", "Nodule"]
    assert collections.Counter(found.values()) == {
        "Mass": 2,
        "Atelectasis": 1,
        "Nodule": 1,
        "Pneumothorax": 1,
    }
    assert "images of no class of its own: 3" in data.description()
    with Image.open(tmp_path / "ChestX" / "images" / "00000000_000.png") as image:
        small = image.resize((256, 256), Image.Resampling.BICUBIC).convert("RGB")
    assert np.array_equal(np.array(data.splits.query.item(0)), np.array(small))
    assert data.splits.query.item(1).mode == "RGB", "of an image with alpha"
    assert len(set(data.fingerprint()["query"])) > 1


def test_a_folder_is_one_set_whatever_its_splits(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_class_folders(tmp_path / "train", 3, 5)
    fake.write_class_folders(tmp_path / "test", 3, 2)
    data = opened(tmp_path, "folder")
    assert np.bincount(data.splits.query.targets).tolist() == [7, 7, 7]
    assert np.bincount(opened(tmp_path / "test", "folder").splits.query.targets).tolist() == [2, 2, 2]
    assert data.folder == tmp_path.name


def test_size_mean_and_std_come_with_the_weights(
    tmp_path: Path, fake: ModuleType, recwarn: pytest.WarningsRecorder
) -> None:
    fake.write_class_folders(tmp_path, 2, 2)
    statistics = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    found = Preprocessing.of(EvalTransform(36, 32, *statistics), (32, 32), (32, 32), 3)
    data = opened(tmp_path, "folder")
    data.take_over(found)
    expected = StretchedCrop(32, mean=statistics[0], std=statistics[1])
    assert str(data.preprocessing()) == str(Preprocessing.of(expected, (32, 32), None, 3))
    image = data.splits.query.item(0)
    assert torch.equal(data.preprocessing().transform(image), expected(image))
    assert not recwarn.list, "another way of resizing is the protocol's"
    with pytest.warns(UserWarning, match="the weights were judged on images of 32 x 32"):
        opened(tmp_path, "folder", image_size=48).take_over(found)
    with pytest.raises(ConfigError, match="std 1, 1, 1: leave mean, std"):
        opened(tmp_path, "folder", mean=(0.1,) * 3, std=(1.0,) * 3).take_over(found)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"one of folder, .*chestx, got 'EuroSat'; did you mean eurosat\?"):
        FewShotDataModule("EuroSat")
    with pytest.raises(
        ConfigError, match="download fetches eurosat alone, and dataset is 'isic': fetch it by"
    ):
        FewShotDataModule("isic", download=True)
    with pytest.raises(
        ConfigError, match="labels says how a folder is read, and dataset is 'isic': leave it"
    ):
        FewShotDataModule("isic", labels="none")
    with pytest.raises(TypeError, match="holdout"):
        FewShotDataModule(holdout=0.5)
    assert ImageFolderDataModule(holdout=0.5).holdout == 0.5


@pytest.mark.parametrize(
    ("dataset", "missing", "remedy"),
    [
        ("eurosat", "folder .*eurosat/2750", "--data.download true fetches it"),
        ("cropdiseases", "folder .*CropDiseases/dataset/train", "it has to be fetched by hand"),
        ("isic", "folder .*ISIC2018_Task3_Training_Input", "it has to be fetched by hand"),
        ("chestx", "folder .*ChestX/images", "it has to be fetched by hand"),
    ],
)
def test_what_is_missing_is_said(dataset: str, missing: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=rf"{dataset}: the {missing} is missing; set --data\.root, or {remedy}"
    ):
        opened(tmp_path, dataset)


def test_damaged_files_of_labels_are_said(tmp_path: Path, fake: ModuleType) -> None:
    fake.write_chestx(tmp_path)
    fake.write_isic(tmp_path)
    (tmp_path / "ChestX" / "images" / "00000003_000.png").unlink()
    with pytest.raises(DataError, match=r"1 of 5 images of Data_Entry_2017\.csv are not in .*00000003_000"):
        opened(tmp_path, "chestx")
    file = tmp_path / "ChestX" / "Data_Entry_2017.csv"
    file.write_text("Image Index,Finding Labels\na.png,Hernia\n")
    with pytest.raises(DataError, match="names no image of Atelectasis, Cardiomegaly"):
        opened(tmp_path, "chestx")
    file.write_text("Image,Label\na.png,Mass\n")
    with pytest.raises(
        DataError, match="is not the official file of labels: it has no column 'Finding Labels'"
    ):
        opened(tmp_path, "chestx")
    file.unlink()
    with pytest.raises(DataError, match=r"the file .*Data_Entry_2017\.csv is missing"):
        opened(tmp_path, "chestx")
    file = next((tmp_path / "ISIC").rglob("*.csv"))
    for cells, why in (
        ("1.0,1.0,0,0,0,0,0", "ISIC_1 has 2 classes, not one"),
        ("x,0,0,0,0,0,0", "could not convert string to float"),
    ):
        file.write_text(f"image,{','.join(fake.ISIC_CLASSES)}\nISIC_1,{cells}\n")
        with pytest.raises(DataError, match=f"is not the official file of labels: {why}"):
            opened(tmp_path, "isic")
    fake.write_flat(tmp_path / "loose", 3)
    with pytest.raises(DataError, match="none of the 3 images has a label, and episodes are drawn by class"):
        opened(tmp_path / "loose", "folder")


def test_the_recipe_and_its_report(
    tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fake.write_eurosat(tmp_path / "data")
    for path in (tmp_path / "data").rglob("Forest_*.jpg"):  # something to tell
        Image.new("RGB", (64, 64), (0, 90, 0)).save(path)
    options = [
        "--model.backbone=conv4", "--model.shots=2", "--model.queries=2", "--model.episodes=5",
        "--data.dataset=eurosat", "--data.root=data", "--data.image_size=16", "--data.num_workers=0",
        "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
    ]  # fmt: skip
    main(["test", "--config=few_shot", "--model.checkpoint=random", *options])
    said = capsys.readouterr()
    assert "few_shot/accuracy" in said.out
    assert "few-shot accuracy: 0." in said.out
    assert "by StretchedCrop(size=16, enlarge=1.15), in [0, 1]" in said.out
    assert "no --ckpt_path" not in said.err
    main(["report", "runs/few_shot", "--out", "r.md"])
    text = (tmp_path / "r.md").read_text()
    assert "## Few-shot eurosat, 20 images\n" in text
    assert "| few-shot classification of a random start | 1 | 0." in text
    assert "few-shot accuracy" in text
    main(
        [
            "test",
            "--config=few_shot",
            "--model.checkpoint=random",
            *options,
            "--model.shots=3",
            "--model.queries=1",
        ]
    )
    assert "fewer" in complaint(capsys, ["--model.checkpoint=random", *options, "--model.shots=4"])
    assert "an evaluation needs weights" in complaint(capsys, options)
    random = ["--model.checkpoint=random", *options]
    for command in ("fit", "validate"):
        assert "FewShotEvaluation trains nothing: `test` gives its number" in complaint(
            capsys, random, command
        )
    assert "give --model.checkpoint x.ckpt, and leave ckpt_path" in complaint(capsys, ["--ckpt_path=x.ckpt"])
    main(["report", "runs/few_shot", "--out", "r.md"])
    assert "5-way 3-shot" in (tmp_path / "r.md").read_text(), "in a column of its own"


def complaint(capsys: pytest.CaptureFixture[str], options: list[str], command: str = "test") -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([command, "--config=few_shot", *options])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said
