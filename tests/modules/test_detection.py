"""Detection: a detector starts from a backbone's weights, and what it finds is counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Recorder, image_loader, shapes, simclr, trainer, voc_xml, write_voc

from mmcl_lightning.callbacks import Ledger
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import VOCDetectionDataModule
from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import voc_detection_ap
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import Detection
from mmcl_lightning.modules.weights import backbone_from


@pytest.fixture
def data(tmp_path: Path) -> VOCDetectionDataModule:
    write_voc(tmp_path / "pairs", train=6)
    return dataset(tmp_path)


def dataset(folder: Path, **options: Any) -> VOCDetectionDataModule:
    small: dict[str, Any] = {
        "years": [2007],
        "class_names": ["dog", "cat"],
        "short_sides": [32, 48],
        "eval_short_side": 32,
        "num_workers": 0,
    }
    return VOCDetectionDataModule(str(folder / "pairs"), **(small | options))


def detection(**options: Any) -> Detection:
    torch.manual_seed(0)
    small = {"checkpoint": "random", "channels": 8, "hidden": 8, "regions": 16, "backbone": "resnet18"}
    return Detection(**(small | options))


def fitted(folder: Path, data: Any, *callbacks: Callback, module: Any = None, **options: Any) -> Any:
    module = detection() if module is None else module
    run = trainer(folder, *callbacks, **({"limit_val_batches": 1.0, "max_epochs": 1} | options))
    run.fit(module, datamodule=data)
    return module


class StopAtStep(Callback):
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        trainer.should_stop = trainer.global_step >= 2


def test_it_learns_with_all_weights_but_batch_norm(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    module, losses = detection(lr=0.02, warmup=4), Recorder()
    body = module.detector.backbone.body
    before = {name: value.clone() for name, value in body.state_dict().items()}
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in body.modules())
    fitted(tmp_path, data, losses, Ledger(str(tmp_path)), module=module, max_epochs=8)
    moved = {name for name, value in body.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, _ in body.named_parameters()}
    assert len(moved) == 20  # the convolutions, that of the images included
    assert sum(losses.loss[-6:]) < 0.9 * sum(losses.loss[:6])
    step, values = module.result
    assert step == 24
    record = json.loads((tmp_path / "ledger.json").read_text())
    metric = record["metrics"]["detection/ap"]
    assert not metric["smaller_is_better"]
    assert metric["curve"][-1][3] == pytest.approx(values["ap"], rel=1e-4)
    text = record["protocols"]["detection/ap50"]
    assert "2 classes, SGD lr=0.02 wd=0.0001 x0.1 at 2/3 and 8/9, warm-up 4, batch 2, 24 steps" in text
    assert "not detectron2's: smooth L1 (1/9), RoIAlign not aligned, other initialisation, scores" in text
    assert "weights random, images of 32 x 48 pixels by ShortSide(side=32" in text
    first, by_class, _ = module.summary()
    assert first.endswith(f"AP75 {values['ap75']:.4f}: the result")
    assert by_class.startswith("AP50 by class:  dog 0.")


def test_weights_and_statistics_are_the_checkpoints(tmp_path: Path) -> None:
    pretrained = simclr(backbone="resnet18")
    for buffer in pretrained.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    run = trainer(tmp_path)
    run.strategy.connect(pretrained)
    run.save_checkpoint(path := tmp_path / "pretrained.ckpt", weights_only=True)
    module = Detection(str(path), channels=8, hidden=8, num_classes=2)
    body, own = module.detector.backbone.body, pretrained.backbone.eval()
    assert module.checkpoint == str(path)
    images = torch.rand(2, 3, 64, 64)
    found = body(images)
    assert list(found) == ["0", "1", "2", "3"]
    expected = own.layer1(own.maxpool(own.relu(own.bn1(own.conv1(images)))))
    assert torch.allclose(found["0"], expected, atol=1e-5)
    expected = own.layer4(own.layer3(own.layer2(expected)))
    assert torch.allclose(found["3"], expected, atol=1e-4)
    # And a checkpoint of a detector is one of its backbone.
    run = trainer(tmp_path)
    run.strategy.connect(module)
    run.save_checkpoint(path := tmp_path / "detector.ckpt", weights_only=True)
    again, source, _ = backbone_from(str(path))
    assert source["backbone"] == "resnet18"
    assert torch.equal(again.layer4[1].conv2.weight, own.layer4[1].conv2.weight)
    assert torch.equal(again.bn1.running_var, own.bn1.running_var)


def test_the_detector_has_the_options_of_detectron2() -> None:
    module = Detection("random", backbone="resnet50", num_classes=20)
    detector = module.detector
    assert [layer.in_channels for layer in (block[0] for block in detector.backbone.fpn.inner_blocks)] == [
        256, 512, 1024, 2048,
    ]  # fmt: skip
    # torchvision's own with 91 classes has 41,755,286; each has a score and a box of 1024 weights and a bias.
    assert sum(weight.numel() for weight in module.parameters()) == 41_755_286 - 70 * 5 * 1025
    assert detector.roi_heads.box_roi_pool.sampling_ratio == 0
    assert detector.rpn._post_nms_top_n == {"training": 1000, "testing": 1000}
    assert detector.rpn._pre_nms_top_n == {"training": 2000, "testing": 1000}
    assert detector.roi_heads.box_predictor.cls_score.out_features == 21
    assert all(weight.requires_grad for weight in module.parameters())


def test_the_schedule(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    rates = Recorder()
    length: dict[str, Any] = {"max_epochs": -1, "limit_val_batches": 0}
    module = fitted(tmp_path, data, rates, max_steps=18, module=detection(warmup=4, lr=0.01), **length)
    (group,) = module.trainer.optimizers[0].param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
    assert len(group["params"]) == len(list(module.parameters()))
    expected = [1e-5, 0.0025075, 0.005005, 0.0075025, *[0.01] * 8, *[0.001] * 4, *[0.0001] * 2]
    assert rates.lr == pytest.approx(expected, rel=1e-4)
    for steps in (1, 2):
        fitted(tmp_path, data, max_steps=steps, **length)


def test_a_run_goes_on_bit_by_bit(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    lengths: dict[str, Any] = {"max_steps": 5, "max_epochs": -1}
    whole = fitted(tmp_path / "a", data, **lengths)
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
    fitted(tmp_path / "b", dataset(tmp_path), saver, StopAtStep(), min_epochs=0, **lengths)
    path = tmp_path / "step=2.ckpt"
    resumed = detection(checkpoint="random")
    run = trainer(tmp_path / "c", limit_val_batches=1.0, **lengths)
    torch.manual_seed(5)
    run.fit(resumed, datamodule=dataset(tmp_path), ckpt_path=path)
    assert resumed.result == whole.result
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    loaded = Detection.load_from_checkpoint(path)
    assert (loaded.num_classes, loaded.class_names, loaded.checkpoint) == (2, ["dog", "cat"], "random")
    with pytest.raises(
        ConfigError, match=r"learnt 2 classes, and the data's 2 are others, .* was 'dog', and is"
    ):
        trainer(tmp_path).test(
            detection(), datamodule=dataset(tmp_path, class_names=["cat", "dog"]), ckpt_path=path
        )


def test_draws_leave_the_global_state_alone(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    losses = [Recorder(), Recorder()]
    for seed, recorder in enumerate(losses):

        class Seeded(Callback):
            seed_: int = seed

            def on_train_batch_start(self, *args: Any) -> None:
                torch.manual_seed(self.seed_)

            def on_train_batch_end(self, *args: Any) -> None:
                generator = torch.Generator().manual_seed(self.seed_)
                assert torch.equal(torch.rand(2), torch.rand(2, generator=generator))

        fitted(tmp_path, dataset(tmp_path), recorder, Seeded(), limit_val_batches=0)
    assert losses[0].loss == losses[1].loss


class Finder(torch.nn.Module):
    """Finds what is red, nearly what is blue, and surely a dog where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Identity()

    def forward(self, images: list[torch.Tensor], objects: Any = None) -> list[dict[str, torch.Tensor]]:
        found = []
        for red, _, blue in images:
            boxes = [[0.0, 0.0, 6.0, 6.0]]
            for mask, moved in ((red - blue > 0.3, 0), (blue - red > 0.3, 12)):
                rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
                left, top = float(columns.min()) - moved, float(rows.min())
                boxes.append([left, top, float(columns.max()) + 1, float(rows.max()) + 1])
            scores = torch.tensor([0.9, float(red.mean()), 0.5])
            found.append({"boxes": torch.tensor(boxes), "scores": scores, "labels": torch.tensor([1, 1, 2])})
        return found


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_test_is_the_metric_over_one_and_two_processes(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    module = detection(num_classes=2)
    module.detector = Finder()
    judged = dataset(tmp_path, eval_short_side=48)
    judged.setup()
    found, there = [], []
    for (image,), (own,) in judged.test_dataloader():
        assert image.shape == (3, 48, 72)
        found.append(Finder()([image])[0])
        found[-1]["boxes"] /= 1.5
        there.append(own)
    result = voc_detection_ap(found, there, [1, 2])
    # Of six dogs that are found three are none, and are surer: the precision rises to 3/6 at recall 1.
    assert result.by_class[:, 0].tolist() == pytest.approx([0.5, 1.0])
    assert result.ap75 == pytest.approx(0.25)
    assert 0.25 < result.ap < result.ap50
    expected = {"detection/ap": result.ap, "detection/ap50": result.ap50, "detection/ap75": result.ap75}

    def tested(name: str, **options: Any) -> list[Any]:
        class Keep(Callback):
            seen = 0

            def on_test_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
                self.seen = len(pl_module._found)

            def on_test_end(self, trainer: Any, pl_module: Any) -> None:
                values = {key: float(value) for key, value in trainer.callback_metrics.items()}
                (tmp_path / f"{name}{trainer.global_rank}").write_text(json.dumps([values, self.seen]))

        run = trainer(tmp_path, Keep(), **options)
        run.test(module, datamodule=dataset(tmp_path, eval_short_side=48), verbose=False)
        return [json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{name}?"))]

    one, two = tested("one"), tested("two", devices=2, strategy="ddp_fork")
    assert [values for values, _ in one + two] == [pytest.approx(expected, rel=1e-6)] * 3
    assert [seen for _, seen in one + two] == [3, 2, 1]  # of three images and one filling


def test_images_without_objects_are_background(tmp_path: Path) -> None:
    folder = write_voc(tmp_path / "pairs", train=2)
    (folder / "Annotations" / "000000.xml").write_text(voc_xml([]))
    losses = Recorder()
    fitted(tmp_path, dataset(tmp_path, batch_size=1), losses, max_epochs=2)
    assert len(losses.loss) == 4
    with pytest.warns(
        UserWarning, match=r"no test image has an object of cow: the average precision counts 0"
    ):
        fitted(tmp_path, dataset(tmp_path, class_names=["dog", "cow", "cat"]))


def test_a_part_of_the_test_images_may_have_no_object(tmp_path: Path) -> None:
    folder = write_voc(tmp_path / "pairs", train=2)
    (folder / "Annotations" / "000002.xml").write_text(voc_xml([]))  # the first test image
    with pytest.warns(UserWarning, match="none of the 1 images that were judged has an object: no AP"):
        module = fitted(tmp_path, dataset(tmp_path), limit_val_batches=1, num_sanity_val_steps=1)
    assert module.result is None


def test_the_trained_backbone_is_exported(
    data: VOCDetectionDataModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(tmp_path, data, ModelCheckpoint(tmp_path, "one"), max_steps=1)
    main(["export", "--checkpoint", str(tmp_path / "one.ckpt"), "--out", str(tmp_path / "out.pt")])
    assert "torchvision gives the same h" in capsys.readouterr().out
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)["state_dict"]
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(out["conv1.weight"], saved["detector.backbone.body.conv1.weight"])


def test_a_checkpoint_of_a_pretraining_is_told_from_one_of_a_detector(
    data: VOCDetectionDataModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretraining = trainer(tmp_path, ModelCheckpoint(tmp_path, "pre"), max_steps=1)
    pretraining.fit(simclr(), shapes(batch_size=8))
    given = ["test", "--config", "detection_voc", f"--data.root={tmp_path / 'pairs'}", "--data.years=[2007]"]
    with pytest.raises(SystemExit):
        main([*given, "--data.class_names=[dog,cat]", "--ckpt_path", str(tmp_path / "pre.ckpt")])
    assert "pre.ckpt is no checkpoint of Detection but of a network that it can" in capsys.readouterr().err


def test_bad_input_is_said(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an evaluation needs weights"):
        Detection()
    with pytest.raises(
        ConfigError,
        match=r"needs the layers of a torchvision ResNet, .* mmcl_lightning's Conv4: pretrain",
    ):
        detection(backbone="conv4")
    for option in ("channels", "hidden", "regions", "num_classes"):
        with pytest.raises(ConfigError, match=f"{option} must be an integer >= 1, got 0"):
            detection(**{option: 0})
    for option in ("lr", "weight_decay"):
        with pytest.raises(ConfigError, match=f"{option} must be a finite number >= 0"):
            detection(**{option: -1.0})
    with pytest.raises(
        ConfigError, match=r"the data tells of no classes: use VOCDetectionDataModule, or set"
    ):
        trainer(tmp_path).fit(detection(), train_dataloaders=image_loader(20, 0))
    with pytest.raises(ConfigError, match="the detector has 3 classes, and the data 2"):
        fitted(tmp_path, data, module=detection(num_classes=3))
    with pytest.raises(
        DataError, match=r"expected a batch \(images, objects\), .*: use VOCDetectionDataModule"
    ):
        trainer(tmp_path).fit(detection(num_classes=2), train_dataloaders=image_loader(20, 0))
    with pytest.raises(
        ShapeError, match="the images have 3 channels, and the backbone's first layer takes 4"
    ):
        fitted(tmp_path, data, module=detection(backbone={"name": "resnet18", "in_channels": 4}))
    with pytest.raises(
        ConfigError, match="predict writes representations, and Detection has none: `mmcl embed"
    ):
        trainer(tmp_path).predict(detection(), data)
    with pytest.raises(NumericalError, match=r"the loss is not finite: set --model\.lr lower"):
        fitted(tmp_path, data, module=detection(lr=1e12, warmup=0), max_epochs=3)


@pytest.mark.parametrize(("label", "said"), [(0, "from 0 to 1"), (3, "from 1 to 3")])
def test_labels_count_from_one(label: int, said: str, data: VOCDetectionDataModule, tmp_path: Path) -> None:
    data.setup()
    data.splits.pretrain.objects[0].labels[:] = label
    for own in data.splits.pretrain.objects[1:]:
        own.labels[:] = 1
    data.batch_size = 6
    with pytest.raises(
        DataError, match=f"labels are {said}, and there are 2 classes, from 1: label 0 is the"
    ):
        fitted(tmp_path, data)


def test_the_command_line_and_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_voc(tmp_path / "pets")
    options = [
        "--config=detection_voc", "--model.backbone=resnet18", "--model.channels=8", "--model.hidden=8",
        "--model.regions=16", "--data.root=pets", "--data.years=[2007]", "--data.class_names=[dog,cat]",
        "--data.short_sides=[32]", "--data.eval_short_side=32", "--data.num_workers=0",
        "--trainer.accelerator=cpu", "--trainer.enable_model_summary=false",
    ]  # fmt: skip
    fit = [
        "fit",
        *options,
        "--model.checkpoint=random",
        "--trainer.max_steps=6",
        "--trainer.val_check_interval=4",
    ]
    main(fit)
    said = capsys.readouterr().out
    assert "detection:      AP 0." in said
    assert ": the result\nAP50 by class:  dog 0." in said
    record = json.loads(next(tmp_path.rglob("ledger.json")).read_text())
    assert [point[1] for point in record["metrics"]["detection/ap75"]["curve"]] == [3, 6]
    main(["test", *options, "--ckpt_path=last"])
    tested = capsys.readouterr()
    row = next(line for line in tested.out.splitlines() if "detection/ap50" in line)
    last = record["metrics"]["detection/ap50"]["curve"][-1][3]
    assert float(row.split("│")[2]) == pytest.approx(last, rel=1e-4, abs=1e-6)
    assert "random weights" not in tested.err
    main([*fit, "--trainer.max_steps=8", "--trainer.val_check_interval=8", "--ckpt_path=last"])
    capsys.readouterr()
    (resumed,) = (tmp_path / "runs" / "detection_voc").glob("version_[1-9]/ledger.json")
    assert json.loads(resumed.read_text())["config"]["model"]["init_args"]["checkpoint"] == "random"
    resumed.unlink()
    main(["report", "runs/detection_voc", "--out", "r.md"])
    text = (tmp_path / "r.md").read_text()
    assert "## Detection pets, 4 training images, batch 2" in text
    assert "| detection of a random start | 1 |" in text
    assert "| detection AP |" in text
    (folder / "Annotations" / "000002.xml").write_text(voc_xml([("cow", 1, 1, 9, 9, 0)]))
    with pytest.raises(SystemExit):
        main(fit)
    complaint = capsys.readouterr().err
    assert "there is no class 'cow' among dog, cat: set --data.class_names" in complaint
    assert "Traceback" not in complaint


def test_another_stem_is_said(data: VOCDetectionDataModule, tmp_path: Path) -> None:
    one = dataset(tmp_path, batch_size=1, short_sides=[16])
    module = fitted(
        tmp_path, one, module=detection(cifar_stem=True), limit_val_batches=0, limit_train_batches=1
    )
    assert ", 16 regions, stem for small images, 2 classes" in module.described
    assert build_backbone("resnet18", cifar_stem=True).conv1.stride == (1, 1)
