"""How images were made travels with the weights, and evaluations take it over or refuse another way."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import timm
import torch
import torchvision
from lightning.pytorch import Trainer
from PIL import Image
from torchvision.transforms import v2

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
    with pytest.warns(UserWarning, match="judged on images of 24 x 24 pixels by .*; these are of 16 x 20"):
        run().fit(LinearEvaluation(path), data)
    assert next(iter(data.test_dataloader()))[0].shape[2:] == (16, 20)
    train, evaluation = data._transforms()
    assert train.mean == evaluation.mean == MEAN


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
    assert data._transforms()[1].mean == MEAN
    assert data._transforms()[1].pixels == (24, 24)


def test_a_pretraining_that_starts_from_other_images_says_so(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, mean=MEAN, std=STD))
    module = SimCLR(backbone="conv4", projection_head="cifar", init_from=path)
    with pytest.warns(
        UserWarning, match=r"a\.ckpt were trained on images of .*std 0\.5, 0\.5, 0\.25; these are of"
    ):
        run().fit(module, folder(pictures, image_size=24))


def test_it_survives_plain_data() -> None:
    transform = EvalTransform(28, (24, 20), np.array(MEAN), STD)
    found = Preprocessing.of(transform, (24, 20), (16, 16), 3)
    found = dataclasses.replace(found, reader={"bands": (0, 1, 2), "value_range": None})
    again = Preprocessing.from_plain(found.to_plain())
    assert again.transform.options() == transform.options()
    assert dataclasses.replace(again, transform=found.transform) == found
    assert again.text == (
        "24 x 20 pixels by EvalTransform(resize=28, crop=(24, 20)), mean 0.5, 0.25, 0.125, std 0.5, 0.5, 0.25"
    )


@pytest.mark.parametrize("transform", [Unkept(8), CentralCrop(8, mean=MEAN, std=STD), "compose", "unknown"])
def test_what_is_known_of_a_transform_that_cannot_be_stored(transform: Any) -> None:
    known = v2.Compose([v2.Resize(8), v2.Normalize(MEAN, STD)])
    transform = {"compose": known, "unknown": v2.Resize(8)}.get(transform, transform)
    again = Preprocessing.from_plain(Preprocessing.of(transform, (8, 8), None, 3).to_plain())
    assert (again.transform is None) == (not isinstance(transform, CentralCrop))
    expected = {Unkept: (), CentralCrop: (MEAN, STD), v2.Compose: (MEAN, STD), v2.Resize: None}
    assert again.statistics == expected[type(transform)]
    assert "8 x 8 pixels by" in again.text


@pytest.mark.parametrize(
    "damage",
    [
        {"channels": None}, {"channels": "three"}, {"channels": 0}, {"pixels": [5]}, {"pixels": 5},
        {"pixels": [-1, 4]}, {"reader": []}, {"statistics": [[0.5]]}, {"statistics": [["a"], ["b"]]},
        {"statistics": [[float("nan")] * 3, [1.0] * 3]}, {"text": 5}, {"view_pixels": "ab"},
    ],
)  # fmt: skip
def test_a_tampered_one_is_a_sentence(damage: dict[str, Any]) -> None:
    plain = Preprocessing.of(EvalTransform(8, 8), (8, 8), None, 3).to_plain()
    with pytest.raises(ConfigError, match="does not say in a known form how its images were made"):
        Preprocessing.from_plain({**plain, **damage})
    for spec in (
        {"class_path": 5},
        {"class_path": "torch.nn.Linear"},
        {"class_path": ""},
        {"init_args": {}},
        7,
    ):
        assert Preprocessing.from_plain({**plain, "transform": spec}).transform is None


def images_of(module: Any, data: Any, run_: str = "test", **options: Any) -> torch.Tensor:
    """The first batch that a run sees."""
    seen: list[torch.Tensor] = []
    hook = module.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    getattr(run(), run_)(module, data, **options)
    hook.remove()
    return seen[0]


def test_what_is_recorded_is_what_is_done(pictures: str, tmp_path: Path) -> None:
    """A checkpoint that is taken up does not overwrite it, and what differs is said."""
    plain = pretrained(tmp_path / "plain.ckpt", folder(pictures, image_size=16))
    trainer = run()
    trainer.fit(
        LinearEvaluation(plain, preprocessing="data"),
        folder(pictures, task="classify", image_size=20, mean=MEAN, std=STD),
    )
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    again = LinearEvaluation(plain)
    data = folder(pictures, task="classify")
    with pytest.warns(UserWarning, match=r"was made on images of 20 x 20 .*; these are of 16 x 16 "):
        images = images_of(again, data, "test", ckpt_path=tmp_path / "linear.ckpt")
    assert images.shape[2:] == (16, 16)
    assert images.min() >= 0
    assert again.preprocessing["text"].startswith("16 x 16 pixels")


def test_a_file_of_an_evaluation_is_tested_as_it_was_trained(pictures: str, tmp_path: Path) -> None:
    """Also where it had kept to its data module."""
    plain = pretrained(tmp_path / "plain.ckpt", folder(pictures, image_size=16))
    trainer = run()
    options = {"task": "classify", "image_size": 20, "mean": MEAN, "std": STD}
    trainer.fit(LinearEvaluation(plain, preprocessing="data"), folder(pictures, **options))
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    module = LinearEvaluation.load_from_checkpoint(tmp_path / "linear.ckpt")
    images = images_of(module, folder(pictures, task="classify"))
    assert torch.equal(images, images_of(module, folder(pictures, **options)))
    assert images.shape[2:] == (20, 20)
    assert images.min() < -0.5


def test_one_data_module_for_several_weights(pictures: str, tmp_path: Path) -> None:
    first = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24, eval_resize=28))
    second = pretrained(tmp_path / "b.ckpt", folder(pictures, image_size=16, mean=MEAN, std=STD))
    data = folder(pictures, task="classify")
    for path, size in ((first, 24), (second, 16), (first, 24)):
        assert images_of(judge(path, data), data).shape[2:] == (size, size)
    assert data.image_size is data.mean is data.eval_transform is data.train_transform is None


def test_with_loaders_of_ones_own_nobody_knows(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=24))
    items = [(torch.rand(3, 16, 16), index % 2) for index in range(8)]
    loader = torch.utils.data.DataLoader(items, batch_size=4)
    module = LinearEvaluation(path, num_classes=2)
    run().fit(module, loader, loader)
    assert module.preprocessing is None
    assert "images of" not in module.described


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"bands": (0, 1, 2)},
            r"images of bands \(3, 2, 1\), and data.bands is \(0, 1, 2\): leave it",
        ),
        ({"value_range": (0, 65535)}, r"of value_range \(0, 4095\), and data.value_range is \(0, 65535\)"),
        ({"background": 7}, "of background 0, and data.background is 7"),
    ],
)
def test_files_are_read_as_they_were(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(12):
        path = tmp_path / "tiles" / "ab"[index % 2] / f"{index}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = rng.integers(0, 4096, (24, 24, 5), dtype=np.uint16)
        tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig")
    root = str(tmp_path / "tiles")
    own = {"image_size": 16, "bands": (3, 2, 1), "value_range": (0, 4095), "background": 0}
    data = folder(root, **own)
    path = pretrained(tmp_path / "a.ckpt", data)
    judged = folder(root, task="classify", cache=True)
    judge(path, judged)
    assert torch.equal(next(iter(judged.test_dataloader()))[0], next(iter(data.heldout_dataloader()))[0])
    with pytest.raises(ConfigError, match=match):
        judge(path, folder(root, task="classify", **options))
    judge(path, folder(root, **{**own, **options, "task": "classify"}), preprocessing="data")


def test_the_crop_of_the_weights_stays_where_their_size_is_given(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=16, eval_resize=20))
    data = folder(pictures, task="classify", image_size=16)
    judge(path, data)
    assert data._transforms()[1].resize == 20
    other = folder(pictures, task="classify", eval_transform=CentralCrop(16))
    with pytest.warns(UserWarning, match=r"on images of 16 x 16 pixels by EvalTransform.* CentralCrop"):
        run().fit(LinearEvaluation(path), other)


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
    ("options", "pixels", "text"),
    [
        ({}, (224, 224), "224 x 224 pixels by EvalTransform(resize=248, crop=224), mean 0.5,"),  # timm: floor
        ({"img_size": 96}, (96, 96), "96 x 96 pixels by EvalTransform(resize=106, crop=96), mean 0.5,"),
        ({"img_size": [64, 96]}, (64, 96), "64 x 96 pixels by EvalTransform(resize=71, crop=(64, 96))"),
        ({"in_channels": 1}, (224, 224), "224 x 224 pixels and 3 channels"),
    ],
)
def test_published_weights_with_options(
    options: dict[str, Any], pixels: tuple[int, int], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model
    monkeypatch.setattr("timm.create_model", lambda *args, **o: create(*args, **(o | {"pretrained": False})))
    module = LinearEvaluation("pretrained", backbone={"name": "timm:vit_tiny_patch16_224", **options})
    assert module.preprocessing["text"].startswith(text)
    assert tuple(module.preprocessing["pixels"]) == pixels
    assert module.preprocessing["channels"] == options.get("in_channels", 3)
    assert (module.preprocessing["statistics"] is None) == ("in_channels" in options)


def test_a_pretraining_from_published_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pictures: str
) -> None:
    asked: list[Any] = []
    get = torchvision.models.get_model

    def spy(name: str, weights: Any = None) -> Any:
        asked.append(weights)
        return get(name)

    monkeypatch.setattr("torchvision.models.get_model", spy)
    backbone = {"name": "resnet18", "pretrained": True}
    module, trainer = SimCLR(backbone=backbone, projection_head="cifar"), run()
    with pytest.warns(
        UserWarning, match=r"the network's library were trained on images of 224 x 224 .* mean"
    ):
        trainer.fit(module, folder(pictures, image_size=16, mean=MEAN, std=STD))
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    again = SimCLR.load_from_checkpoint(tmp_path / "own.ckpt")
    assert asked == ["DEFAULT", None], "its own file has all weights"
    assert torch.equal(again.backbone.conv1.weight, module.backbone.conv1.weight)
    judged = LinearEvaluation(str(tmp_path / "own.ckpt"))
    assert judged.hparams["backbone"] == {"name": "resnet18"}
    with pytest.raises(
        ConfigError, match=r"set --model\.checkpoint to 'pretrained', or leave pretrained out"
    ):
        LinearEvaluation("random", backbone=backbone)


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


def test_a_classifier_knows_its_classes(pictures: str, tmp_path: Path) -> None:
    path = pretrained(tmp_path / "a.ckpt", folder(pictures, image_size=16))
    trainer = run()
    trainer.fit(LinearEvaluation(path), folder(pictures, task="classify"))
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    for old, new in (("a", "z"), ("b", "y")):
        for split in ("train", "test"):
            (Path(pictures) / split / old).rename(Path(pictures) / split / new)
    module = LinearEvaluation.load_from_checkpoint(tmp_path / "linear.ckpt")
    with pytest.raises(ConfigError, match=r"learnt 2 classes, and the data's 2 are .* was 'a', and is 'y'"):
        run().test(module, folder(pictures, task="classify"))
    flat = folder(pictures, task="classify", labels="none")
    found = run().predict(LinearEvaluation.load_from_checkpoint(tmp_path / "linear.ckpt"), flat)
    scores = torch.cat([batch["scores"] for batch in found])
    predicted = [name for batch in found for name in batch["predicted"]]
    assert predicted == ["ab"[i] for i in scores.argmax(1)]
    assert len(scores) == 20
