"""How images were made travels with the weights, and evaluations take it over or refuse another way."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from lightning.pytorch import Trainer
from PIL import Image

from mmcl_lightning.datamodules import ImageFolderDataModule, ShapesDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import LinearEvaluation, SimCLR, export_backbone
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.transforms import CentralCrop, EvalTransform, ImageTransform, SimCLRTransform

MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.5, 0.25)


class Unkept(ImageTransform):
    """A transform of somebody who does not keep its argument."""

    def __init__(self, side: int) -> None:
        self._side = side

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.zeros(3, self._side, self._side)


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    for index in range(20):
        path = tmp_path / "pictures" / ("train" if index < 12 else "test") / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), np.uint8)).save(path)
    return str(tmp_path / "pictures")


def folder(root: str, **options: Any) -> ImageFolderDataModule:
    return ImageFolderDataModule(root, **({"batch_size": 4, "num_workers": 0} | options))


def run(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(**(quiet | {"max_steps": 1, "enable_model_summary": False} | options))


def pretrained(path: Path, data: Any) -> str:
    trainer = run()
    trainer.fit(SimCLR(backbone="conv4", projection_head="cifar"), data)
    trainer.save_checkpoint(path)
    return str(path)


def judge(checkpoint: str, data: Any, **options: Any) -> LinearEvaluation:
    module = LinearEvaluation(checkpoint, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        run().fit(module, data)
    return module


@pytest.mark.parametrize("exported", [False, True])
def test_an_evaluation_makes_images_as_the_pretraining_did(
    exported: bool, pictures: str, tmp_path: Path
) -> None:
    data = folder(pictures, image_size=24, eval_resize=28, mean=MEAN, std=STD)
    path = pretrained(tmp_path / "a.ckpt", data)
    if exported:
        export_backbone(path, str(tmp_path / "b.pt"))
        path = str(tmp_path / "b.pt")
    judged = folder(pictures, task="classify")
    module = judge(path, judged)  # the export says of which network it is
    images = next(iter(judged.test_dataloader()))[0]
    assert torch.equal(images, next(iter(data.heldout_dataloader()))[0][: len(images)])
    views, _ = next(iter(judged.train_dataloader()))
    assert views.shape == (4, 3, 24, 24)
    assert views.min() < -0.5  # normalised as well
    assert (
        "images of 24 x 24 pixels by EvalTransform(resize=28, crop=24), mean 0.5, 0.25, 0.125"
        in module.described
    )


def test_an_export_is_a_plain_state_dict(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24))
    export_backbone(path, str(tmp_path / "b.pt"))
    weights = torch.load(tmp_path / "b.pt", weights_only=True)
    assert build_backbone("conv4").load_state_dict(weights)
    assert read_backbone(str(tmp_path / "b.pt")).options["backbone"] == "conv4"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"mean": STD, "std": STD},
            r"normalised by mean 0\.5, 0\.25, 0\.125, std .*--model\.preprocessing data",
        ),
        (
            {"eval_transform": CentralCrop(24)},
            r"eval_transform makes images in \[0, 1\]: leave mean, std and eval",
        ),
        ({"train_transform": SimCLRTransform(24)}, "train_transform makes images in"),
        (
            {"channels": 1},
            r"trained on images of 3 channels, and those of the data have 1: set data\.channels",
        ),
    ],
)
def test_another_way_is_refused(options: dict[str, Any], match: str, pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    with pytest.raises(ConfigError, match=match):
        judge(path, folder(pictures, task="classify", **options))


def test_the_data_module_may_keep_its_own_way(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    data = folder(pictures, task="classify", image_size=16)
    module = judge(path, data, preprocessing="data")
    assert "images of 16 x 16 pixels by EvalTransform(resize=16, crop=16), in [0, 1]" in module.described


def test_another_size_is_warned_of_and_keeps_mean_and_std(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    data = folder(pictures, task="classify", image_size=(16, 20))
    with pytest.warns(UserWarning, match="judged on images of 24 x 24 pixels, these have 16 x 20"):
        run().fit(LinearEvaluation(path), data)
    assert next(iter(data.test_dataloader()))[0].shape[2:] == (16, 20)
    assert data.eval_transform.mean == data.train_transform.mean == MEAN


def test_weights_of_one_data_set_are_judged_on_another(pictures: str, tmp_path: Path) -> None:
    """Rendered shapes have the size of their files; the pictures of a folder are made of that size."""
    shapes = ShapesDataModule(train_size=12, test_size=8, image_size=16, batch_size=4, num_workers=0)
    path = pretrained(tmp_path / "a.ckpt", shapes)
    data = folder(pictures, task="classify")
    judge(path, data)
    assert next(iter(data.test_dataloader()))[0].shape[2:] == (16, 16)
    back = ShapesDataModule(train_size=12, test_size=8, task="classify", batch_size=4, num_workers=0)
    judge(pretrained(tmp_path / "b.ckpt", folder(pictures, image_size=24)), back)
    assert next(iter(back.test_dataloader()))[0].shape[2:] == (24, 24)  # of 32


def test_an_evaluations_own_file_says_it_too(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    trainer = run()
    trainer.fit(LinearEvaluation(path), folder(pictures, task="classify"))
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    module = LinearEvaluation.load_from_checkpoint(tmp_path / "linear.ckpt")
    data = folder(pictures, task="classify")
    run().test(module, data)
    assert tuple(data.eval_transform.mean) == MEAN
    assert data.eval_transform.pixels == (24, 24)


def test_a_pretraining_that_starts_from_other_images_says_so(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    module = SimCLR(backbone="conv4", projection_head="cifar", init_from=path)
    with pytest.warns(
        UserWarning, match=r"a\.ckpt were trained on images of .*std 0\.5, 0\.5, 0\.25; these are of"
    ):
        run().fit(module, folder(pictures, image_size=24))


def test_it_survives_plain_data() -> None:
    transform = EvalTransform(28, (24, 20), MEAN, STD)
    found = Preprocessing(transform, (24, 20), (16, 16), 3, {"bands": [0, 1, 2]})
    again = Preprocessing.from_plain(found.to_plain())
    assert (again.pixels, again.view_pixels, again.channels, again.reader) == (
        (24, 20), (16, 16), 3, {"bands": [0, 1, 2]},
    )  # fmt: skip
    assert again.transform.options() == {"resize": 28, "crop": [24, 20], "mean": [*MEAN], "std": [*STD]}
    unkept = Preprocessing.from_plain(Preprocessing(Unkept(8), (8, 8), None, 3).to_plain())
    assert unkept.transform is None
    assert unkept.normalised_as(transform)


def test_published_weights_bring_their_own(monkeypatch: pytest.MonkeyPatch, pictures: str) -> None:
    state = torchvision.models.resnet18().state_dict()  # in place of a download
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: state)
    module = LinearEvaluation("pretrained", backbone="resnet18")
    assert torch.equal(module.backbone.conv1.weight, state["conv1.weight"])
    assert module.preprocessing["text"] == (
        "224 x 224 pixels by EvalTransform(resize=256, crop=224), mean 0.485, 0.456, 0.406, "
        "std 0.229, 0.224, 0.225"
    )
    with pytest.raises(ConfigError, match="pretrained weights are those of a network by name"):
        LinearEvaluation("pretrained", backbone=build_backbone("conv4"))


@pytest.mark.parametrize(
    ("backbone", "size", "match"),
    [
        (
            {"name": "resnet18", "in_channels": 4},
            24,
            r"have 3 channels, and the backbone's first layer takes 4: set",
        ),
        (
            "conv4",
            8,
            "conv4 takes images of 16 pixels or more along each side, got 8 x 8: set data.image_size",
        ),
        ("timm:vit_tiny_patch16_224", 32, r"does not take images of 32 x 32 pixels .*img_size: 32"),
    ],
)
def test_images_that_do_not_fit_the_network_are_a_sentence(
    backbone: Any, size: int, match: str, pictures: str
) -> None:
    with pytest.raises(ShapeError, match=match) as wrong:
        run().fit(SimCLR(backbone=backbone, projection_head="cifar"), folder(pictures, image_size=size))
    assert len(str(wrong.value)) < 300


def test_options_of_a_network() -> None:
    net = build_backbone({"name": "timm:vit_tiny_patch16_224", "img_size": 32, "in_channels": 2})
    assert net(torch.zeros(2, 2, 32, 32)).shape == (2, 192)
    with pytest.raises(ConfigError, match="backbone 'conv4' has no option 'img_size': there are cifar_stem"):
        build_backbone({"name": "conv4", "img_size": 32})
    with pytest.raises(ConfigError, match="timm does not build 'vit_tiny_patch16_224' with imgsize=3"):
        build_backbone({"name": "timm:vit_tiny_patch16_224", "imgsize": 3})
