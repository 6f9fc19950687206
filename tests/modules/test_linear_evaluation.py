"""Linear evaluation and fine-tuning: the numbers are right, and what is frozen stays frozen."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import FlatNet, InterruptedRunError, StopAfter, events, image_loader, mmcl, scalars, shapes, trainer
from torch import Tensor, nn
from torch.nn import functional as F

from mmcl_lightning.callbacks import OnlineKNN
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import EVALUATION_PROTOCOLS, FineTune, LinearEvaluation
from mmcl_lightning.modules.weights import digests

TRAIN, TEST = 24, 15  # images; their brightness tells their class, of three


def train_loader(labels: Tensor | None = None, **options: Any) -> Any:
    return image_loader(TRAIN, seed=1, labels=labels, **({"batch_size": 8} | options))


def held_out(labels: Tensor | None = None) -> Any:
    return image_loader(TEST, seed=2, labels=labels)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """The file of a backbone with batch norm whose statistics have moved."""
    torch.manual_seed(0)
    backbone = build_backbone("conv4").train()
    for images, _ in train_loader():
        backbone(images)
    torch.save({f"backbone.{key}": value for key, value in backbone.state_dict().items()}, tmp_path / "b.pt")
    return str(tmp_path / "b.pt")


def linear(checkpoint: str, seed: int = 0, **options: Any) -> LinearEvaluation:
    torch.manual_seed(seed)
    return LinearEvaluation(checkpoint, **({"backbone": "conv4", "num_classes": 3} | options))


def fit(folder: Path, module: LightningModule, *callbacks: Callback, epochs: int = 2, **options: Any) -> Any:
    loaders, path = options.pop("loaders", (train_loader(), held_out())), options.pop("ckpt_path", None)
    run = trainer(folder, *callbacks, max_epochs=epochs, **({"limit_val_batches": 1.0} | options))
    torch.manual_seed(1)  # the classifier starts at random when the run does
    run.fit(module, *loaders, ckpt_path=path)
    return run


def clean_features(checkpoint: str, loader: Any) -> tuple[Tensor, Tensor]:
    backbone = build_backbone("conv4").eval()
    state = torch.load(checkpoint, weights_only=True)
    backbone.load_state_dict({key.removeprefix("backbone."): value for key, value in state.items()})
    with torch.no_grad():
        return torch.cat([backbone(x) for x, _ in loader]), torch.cat([y for _, y in loader])


def by_hand(checkpoint: str, protocol: str, epochs: int, lr: float) -> tuple[nn.Linear, list[float]]:
    """The evaluation as a plain loop over features that are computed once."""
    h, labels = clean_features(checkpoint, train_loader())
    query, query_labels = clean_features(checkpoint, held_out())
    torch.manual_seed(1)
    layer = nn.Linear(256, 3)
    if protocol == "imagenet":
        layer = nn.Linear(256, 3)
        layer.weight.data.zero_()
        layer.bias.data.zero_()
        optimizer: Any = torch.optim.SGD(layer.parameters(), lr=lr, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=1e-6)
    curve, steps = [], 0
    for _ in range(epochs):
        for rows, targets in zip(h.split(8), labels.split(8), strict=True):
            if protocol == "imagenet":
                optimizer.param_groups[0]["lr"] = lr * (1 - steps / (3 * epochs))
            optimizer.zero_grad()
            F.cross_entropy(layer(rows), targets).backward()
            optimizer.step()
            steps += 1
        hits = [
            int(row.argmax()) == int(label) for row, label in zip(layer(query), query_labels, strict=True)
        ]
        curve.append(sum(hits) / len(hits))
    return layer, curve


@pytest.mark.parametrize(("protocol", "lr"), [("mmcl_small", 1e-3), ("imagenet", 0.1 * 8 / 256)])
def test_equals_a_plain_loop(protocol: str, lr: float, weights: str, tmp_path: Path) -> None:
    module = linear(weights, protocol=protocol)
    run = fit(tmp_path, module, epochs=4, log=True)
    layer, curve = by_hand(weights, protocol, 4, lr)
    torch.testing.assert_close(module.classifier.weight, layer.weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(module.classifier.bias, layer.bias, rtol=1e-4, atol=1e-6)
    assert [top1 for *_, top1 in module.curve] == pytest.approx(curve)
    assert [point[:2] for point in module.curve] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    logged = [value for _, value in scalars(tmp_path, "linear/top1")]
    assert logged == pytest.approx(curve)
    assert float(run.callback_metrics["linear/best_top1"]) == pytest.approx(max(curve))
    assert float(run.callback_metrics["linear/top5"]) == 1.0  # of three classes
    if protocol == "imagenet":
        lrs = [value for _, value in scalars(tmp_path, "train/lr")]
        assert lrs == pytest.approx([lr * (1 - step / 12) for step in range(12)])


def test_separable_features_are_separated(weights: str, tmp_path: Path) -> None:
    module = linear(weights, lr=0.02)
    fit(tmp_path, module, epochs=25, check_val_every_n_epoch=5)
    assert module.curve[-1] == (25, 75, 1.0)


@pytest.mark.parametrize("bn_train", [False, True])
def test_frozen_is_bit_identical(bn_train: bool, weights: str, tmp_path: Path) -> None:
    module = linear(weights, bn_train=bn_train)
    before = digests(module.backbone.state_dict())
    readout = OnlineKNN(k=5, bank_loader=train_loader(), query_loader=held_out())
    fit(tmp_path, module, readout)
    after = digests(module.backbone.state_dict())
    changed = {name.rpartition(".")[2] for name in before if before[name] != after[name]}
    assert changed == ({"running_mean", "running_var", "num_batches_tracked"} if bn_train else set())
    assert module.backbone.training is bn_train
    assert all(p.grad is None for p in module.backbone.parameters())


class Meddler(Callback):
    """Writes to the backbone, by the smallest step there is."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        value = pl_module.backbone.state_dict()[self.tensor]
        value.copy_(torch.nextafter(value, value + 1))


@pytest.mark.parametrize("tensor", ["blocks.0.weight", "blocks.2.running_mean"])
def test_a_backbone_that_moves_fails_the_run(tensor: str, weights: str, tmp_path: Path) -> None:
    with pytest.raises(NumericalError, match=rf"changed: 1 of 24 tensors, the first being {tensor}"):
        fit(tmp_path, linear(weights), Meddler(tensor), epochs=1)


def test_last_is_the_result_and_best_stands_apart(weights: str, tmp_path: Path) -> None:
    class Spoil(Callback):
        """Turns the classifier around before the last evaluation."""

        def on_validation_start(self, trainer, pl_module):
            if trainer.current_epoch == 24:
                pl_module.classifier.weight.data.neg_()

    module = linear(weights, lr=0.02)
    run = fit(tmp_path, module, Spoil(), epochs=25, check_val_every_n_epoch=5, log=True)
    epoch, _, last = module.curve[-1]
    best = max(top1 for *_, top1 in module.curve)
    assert (epoch, best) == (25, 1.0)
    assert last < 0.5
    lines = module.summary()
    assert lines[0] == f"linear top-1: {last:.4f} at the end of epoch 25: the result"
    assert lines[1].startswith("best:         1.0000 in epoch ")
    assert lines[2] == (
        "protocol:     mmcl_small: Adam lr=0.02 wd=1e-06 constant, batch 8, 25 epochs, frozen backbone, "
        f"weights {weights}"
    )
    assert float(run.callback_metrics["linear/top1"]) == pytest.approx(last)
    assert float(run.callback_metrics["linear/best_top1"]) == 1.0
    (text,) = events(tmp_path).Tensors("linear/protocol/text_summary")
    assert lines[2].endswith(text.tensor_proto.string_val[0].decode())


def test_an_evaluation_before_the_end_is_no_result(weights: str, tmp_path: Path) -> None:
    module = linear(weights)
    fit(tmp_path, module, epochs=3, check_val_every_n_epoch=1, max_steps=8)
    assert "at step 6 of 8: `validate --ckpt_path last` gives the result" in module.summary()[0]


@pytest.mark.parametrize(
    ("epochs", "every", "validated"), [(3, 2, [1, 2, 3]), (2, 25, [2]), (4, 3, [2, 4]), (4, 2, [2, 4])]
)
def test_the_last_epoch_is_validated(
    epochs: int, every: int, validated: list[int], weights: str, tmp_path: Path
) -> None:
    module = linear(weights)
    fit(tmp_path, module, epochs=epochs, check_val_every_n_epoch=every)
    assert [epoch for epoch, _, _ in module.curve] == validated


@pytest.mark.parametrize("cut", [8, 6], ids=["epoch 2 ends", "in epoch 2"])
def test_resumed_evaluation_equals_the_uninterrupted_one(cut: int, weights: str, tmp_path: Path) -> None:
    class FailAt(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == cut:
                raise InterruptedRunError

    options: dict[str, Any] = {"protocol": "imagenet", "lr": 0.05}
    options |= {"num_classes": None}
    data: dict[str, Any] = {"loaders": (None, None, shapes(task="classify"))}
    whole, resumed = linear(weights, **options), linear(weights, 3, **options)
    fit(tmp_path, whole, epochs=4, **data)
    saver = ModelCheckpoint(tmp_path / "a", save_last=True, save_on_exception=True)
    first = [StopAfter(2)] if cut == 8 else [FailAt()]
    begun = linear(weights, **options)
    if cut == 8:
        fit(tmp_path, begun, saver, *first, epochs=4, **data)
    else:
        with pytest.raises(InterruptedRunError):
            fit(tmp_path, begun, saver, *first, epochs=4, **data)
    path = str(tmp_path / "a" / "last.ckpt")
    torch.load(path, weights_only=True)
    fit(tmp_path, resumed, epochs=4, ckpt_path=path, **data)
    assert torch.equal(resumed.classifier.weight, whole.classifier.weight)
    assert resumed.curve == whole.curve


def test_a_checkpoint_gives_the_same_accuracy_and_rebuilds_the_module(weights: str, tmp_path: Path) -> None:
    module = linear(weights, lr=0.02)
    run = fit(tmp_path, module, epochs=3)
    path = tmp_path / "end.ckpt"
    run.save_checkpoint(path)
    torch.load(path, weights_only=True)
    assert module.hparams["backbone"] == "conv4"
    for name in ("validate", "test"):
        again = linear(weights, 7)
        (result,) = getattr(trainer(tmp_path, limit_val_batches=1.0), name)(
            again, held_out(), ckpt_path=str(path), verbose=False
        )
        assert result["linear/top1"] == pytest.approx(module.curve[-1][2])
        assert "linear/best_top1" not in result
    # Its own file has the backbone too: the pretraining's may be gone. What it came from is not forgotten.
    Path(weights).unlink()
    for loaded in (LinearEvaluation.load_from_checkpoint(path), linear(str(path), num_classes=None)):
        ours = loaded.state_dict()
        assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items() if key in ours)
        assert loaded.hparams["checkpoint"] == weights
        assert loaded.hparams["backbone"] == "conv4"
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        linear(weights)
    loaded = LinearEvaluation.load_from_checkpoint(path)
    batch = next(iter(held_out()))
    predicted = loaded.eval().predict_step(batch, 0)
    assert predicted["h"].shape == (10, 256)
    assert predicted["scores"].shape == (10, 3)
    assert torch.equal(predicted["target"], batch[1])


def test_rows_without_label_do_not_count(weights: str, tmp_path: Path) -> None:
    labels, tested = torch.arange(TRAIN) % 3, torch.arange(TEST) % 3
    holes, gaps = labels.clone(), tested.clone()
    holes[[1, 5, 9]], gaps[::2] = -1, -1
    holes[16:] = -1  # a whole batch
    module = linear(weights, lr=0.02)
    run = fit(tmp_path, module, epochs=1, loaders=(train_loader(holes), held_out(gaps)))
    h, _ = clean_features(weights, train_loader())
    torch.manual_seed(1)
    layer = nn.Linear(256, 3)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02, weight_decay=1e-6)
    for rows, targets in zip(h.split(8), holes.split(8), strict=True):
        optimizer.zero_grad()
        kept = targets >= 0
        if kept.any():
            F.cross_entropy(layer(rows[kept]), targets[kept]).backward()
        else:
            (0 * layer(rows).sum()).backward()
        optimizer.step()
    torch.testing.assert_close(module.classifier.weight, layer.weight, rtol=1e-4, atol=1e-6)
    query, _ = clean_features(weights, held_out())
    right = layer(query).argmax(1) == tested
    assert float(run.callback_metrics["linear/top1"]) == pytest.approx(float(right[1::2].float().mean()))
    none = held_out(torch.full((TEST,), -1))
    with pytest.raises(DataError, match="none of the images to classify has a label"):
        fit(tmp_path, linear(weights), loaders=(train_loader(), none))


def test_two_processes_equal_one(weights: str, tmp_path: Path) -> None:
    def run(name: str, batch_size: int, **options: Any) -> dict[str, Any]:
        data = shapes(task="classify", batch_size=batch_size, test_size=19)  # an odd number: one is padding
        saver = ModelCheckpoint(tmp_path / name, save_last=True)
        module = linear(weights, num_classes=None, protocol="imagenet", lr=1.0)
        fit(tmp_path, module, saver, loaders=(None, None, data), **options)
        return torch.load(tmp_path / name / "last.ckpt", weights_only=True)

    one = run("one", 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = run("two", 4, devices=2, strategy="ddp_fork")
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, rtol=1e-5, atol=1e-6)
    assert one["state_dict"]["classifier.weight"].abs().max() > 0.01
    assert one["curve"] == two["curve"]
    assert {round(19 * point[2], 6) % 1 for point in one["curve"]} == {0.0}  # each image once
    assert one["frozen"] == two["frozen"]


def test_fine_tuning_equals_a_plain_loop(tmp_path: Path) -> None:
    torch.manual_seed(0)
    start = FlatNet()
    torch.save(start.state_dict(), tmp_path / "flat.pt")
    module = FineTune(str(tmp_path / "flat.pt"), backbone=FlatNet(), num_classes=3, lr=0.2, weight_decay=1e-3)
    run = fit(tmp_path, module, epochs=2, log=True)
    torch.manual_seed(1)
    layer = nn.Linear(8, 3)
    velocity = {p: torch.zeros_like(p) for p in (*start.parameters(), *layer.parameters())}
    for step, (images, labels) in enumerate([*train_loader(), *train_loader()]):
        loss = F.cross_entropy(layer(start(images)), labels)
        lr = 0.2 * (1 + math.cos(math.pi * step / 6)) / 2
        with torch.no_grad():
            for p, gradient in zip(velocity, torch.autograd.grad(loss, list(velocity)), strict=True):
                gradient = gradient + 1e-3 * p
                velocity[p].mul_(0.9).add_(gradient)
                p -= lr * (gradient + 0.9 * velocity[p])
    torch.testing.assert_close(module.backbone.fc.weight, start.fc.weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(module.classifier.weight, layer.weight, rtol=1e-4, atol=1e-6)
    assert module.summary()[0].startswith("finetune top-1:")
    assert "many_shot: SGD lr=0.2 wd=0.001 cosine, batch 8, 2 epochs, all weights trained" in module.described
    assert "finetune/top1" in run.callback_metrics


def test_a_diverged_training_has_no_result(tmp_path: Path) -> None:
    module = FineTune("random", backbone=FlatNet(), num_classes=3, lr=1e38)
    with pytest.raises(NumericalError, match=r"is nan after 3 steps: .* a lower --model.lr"):
        fit(tmp_path, module, epochs=1)
    assert module.curve == []


def test_fine_tuning_trains_batch_norm_too(weights: str, tmp_path: Path) -> None:
    module = FineTune(weights, backbone="conv4", num_classes=3)
    before = digests(module.backbone.state_dict())
    fit(tmp_path, module, epochs=1)
    assert not {*before.items()} & {*digests(module.backbone.state_dict()).items()}


def test_random_weights_only_where_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"needs weights: set --model\.checkpoint .* or to 'random'"):
        LinearEvaluation(backbone="conv4")
    assert linear("random").hparams["checkpoint"] == "random"
    with pytest.raises(ConfigError, match="random weights need a network: set backbone"):
        LinearEvaluation("random")


def test_another_batch_or_length_than_the_protocols_is_said(
    weights: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, linear(weights), epochs=1)
    assert "has batch 512 and 100 epochs; this run has batch 8 and 1 epochs, so its accuracy" in caplog.text
    caplog.clear()
    fit(tmp_path, FineTune(weights, backbone="conv4", num_classes=3), epochs=-1, max_steps=2)
    assert "has batch 64 and 5000 steps; this run has batch 8 and 2 steps" in caplog.text


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"protocol": "papers"}, r"'imagenet', 'many_shot' or 'mmcl_small', got 'papers'"),
        ({"lr": -1.0}, "lr must be a finite number >= 0"),
        ({"weight_decay": math.nan}, "weight_decay must be a finite number >= 0"),
        ({"checkpoint": "nowhere.ckpt"}, "there is no checkpoint nowhere.ckpt"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        linear(**{"checkpoint": "random", **options})


def test_data_that_does_not_fit(weights: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tells of no classes"):
        fit(tmp_path, linear(weights, num_classes=None))
    with pytest.raises(DataError, match="got 2 views: set task to 'classify'"):
        fit(tmp_path, linear(weights, num_classes=10), loaders=(None, None, shapes()))
    with pytest.raises(ConfigError, match="schedule needs an end"):
        fit(tmp_path, linear(weights, protocol="imagenet"), epochs=-1)
    with pytest.raises(DataError, match="a label is 3, and there are 3 classes, from 0"):
        fit(tmp_path, linear(weights), loaders=(train_loader(torch.full((TRAIN,), 3)), held_out()))
    with pytest.raises(DataError, match="none of the training images has a label"):
        fit(tmp_path, linear(weights), loaders=(train_loader(torch.full((TRAIN,), -1)), held_out()))
    batches = [next(iter(train_loader()))]
    with pytest.raises(ConfigError, match="the training loader has no batch_size: give lr itself"):
        fit(tmp_path, linear(weights, protocol="imagenet"), loaders=(batches, held_out()))
    with pytest.raises(ConfigError, match="there is no classifier yet"):
        linear(weights).predict_step(next(iter(held_out())), 0)
    module = linear(weights, num_classes=5)
    run = fit(tmp_path, module, epochs=1)
    run.save_checkpoint(tmp_path / "five.ckpt")
    other = LinearEvaluation.load_from_checkpoint(tmp_path / "five.ckpt", num_classes=3)
    with pytest.raises(ConfigError, match="classifier has 5 classes, the data 3"):
        fit(tmp_path, other)


def test_the_pretraining_checkpoint_needs_nothing_else(tmp_path: Path) -> None:
    pretrained = mmcl()
    run = trainer(tmp_path, limit_train_batches=2)
    run.fit(pretrained, shapes())
    run.save_checkpoint(tmp_path / "pretrained.ckpt")
    module = LinearEvaluation(str(tmp_path / "pretrained.ckpt"))
    fit(tmp_path, module, epochs=1, loaders=(None, None, shapes(task="classify")))
    ours, theirs = module.backbone.state_dict(), pretrained.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert module.classifier.out_features == 10
    assert module.hparams["checkpoint"] == str(tmp_path / "pretrained.ckpt")


def test_a_path_is_kept_as_plain_text(weights: str, tmp_path: Path) -> None:
    fit(tmp_path, linear(Path(weights), lr=np.float64(0.1)), ModelCheckpoint(tmp_path), epochs=1)  # type: ignore[arg-type]
    saved = torch.load(next(tmp_path.glob("*.ckpt")), weights_only=True)["hyper_parameters"]
    assert (saved["checkpoint"], saved["lr"]) == (weights, 0.1)


@pytest.mark.parametrize(
    ("kind", "options", "origin"),
    [
        (LinearEvaluation, {}, "pretraining"),
        (LinearEvaluation, {"bn_train": True}, "itself"),
        (FineTune, {}, "itself"),
    ],
)
def test_where_weights_come_from(
    kind: Any, options: dict[str, Any], origin: str, weights: str, tmp_path: Path
) -> None:
    """A linear evaluation's file stands for the weights that it judged; where they moved, for itself."""
    module = kind(weights, backbone="conv4", num_classes=3, **options)
    fit(tmp_path, module, ModelCheckpoint(tmp_path), epochs=1)
    own = str(next(tmp_path.glob("*.ckpt")))
    judged = LinearEvaluation(own)
    assert judged.checkpoint == judged.hparams["checkpoint"] == (own if origin == "itself" else weights)


@pytest.mark.parametrize(("steps", "checked"), [(4, [4]), (6, [3, 6]), (7, [7]), (12, [4, 8, 12])])
def test_the_last_step_is_validated(steps: int, checked: list[int], weights: str, tmp_path: Path) -> None:
    module = FineTune(weights, backbone="conv4", num_classes=3)
    options = {"check_val_every_n_epoch": None, "val_check_interval": 5, "max_steps": steps}
    fit(tmp_path, module, epochs=-1, **options)
    assert [step for _, step, _ in module.curve] == checked


def test_a_prolonged_line_says_that_it_keeps_its_length(weights: str, tmp_path: Path) -> None:
    fit(
        tmp_path,
        linear(weights, protocol="imagenet", lr=0.1),
        ModelCheckpoint(tmp_path, save_last=True),
        epochs=1,
    )
    with pytest.warns(
        UserWarning, match="WarmupLinear continues with total_steps=3 of the checkpoint, not 6"
    ):
        fit(tmp_path, linear(weights, protocol="imagenet", lr=0.1), ckpt_path=tmp_path / "last.ckpt")


def test_too_few_steps_are_said(weights: str, tmp_path: Path) -> None:
    """Accuracies of too few tell how short the run was; accumulated batches make fewer still."""

    def said(fewest: int | None = None, **options: Any) -> list[str]:
        module = linear(weights, protocol="imagenet", lr=0.1)
        if fewest is not None:
            module.protocol = dataclasses.replace(module.protocol, fewest_steps=fewest)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(tmp_path, module, epochs=2, **options)
        texts = [str(warning.message) for warning in caught]
        return [text for text in texts if text.startswith(("this run takes", "an epoch has"))]

    (few,) = said()
    assert few.startswith(
        "this run takes 6 optimizer steps, and SGD of fewer than 400 ends far from its optimum"
    )
    assert "folder_logistic.yaml" in few
    assert said(fewest=6) == []
    few, parts = said(accumulate_grad_batches=2)
    assert few.startswith("this run takes 4 optimizer steps")
    assert parts == (
        "an epoch has 3 batches, and trainer.accumulate_grad_batches takes 2 for a step: the gradient of the "
        "last step has 1 of 2 parts of its size. Set it to 1, or to another divisor"
    )
    assert len(said(accumulate_grad_batches=3)) == 1
    assert EVALUATION_PROTOCOLS["mmcl_small"].fewest_steps == 1000, "those of the paper on STL-10 are enough"


class Crops(torch.utils.data.Dataset[Any]):
    """Several views of each image: shifted ones, or the same one again."""

    def __init__(self, loader: Any, shifts: list[int]) -> None:
        self.images, self.shifts = loader.dataset, shifts

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], Tensor]:
        image, label = self.images[index]
        return [image.roll(shift, dims=-1) for shift in self.shifts], label


def test_several_views_are_judged_by_their_mean_softmax(weights: str, tmp_path: Path) -> None:
    module = linear(weights)
    run = fit(tmp_path, module)
    plain = run.validate(module, held_out(), verbose=False)[0]
    same = torch.utils.data.DataLoader(Crops(held_out(), [0] * 4), batch_size=5)
    assert run.validate(module, same, verbose=False)[0] == pytest.approx(plain, abs=1e-6)
    crops = torch.utils.data.DataLoader(Crops(held_out(), [0, 3, 7]), batch_size=TEST)
    views, labels = next(iter(crops))
    with torch.no_grad():
        module.eval()
        mean = torch.stack([module.scores(module(view)).softmax(1) for view in views]).mean(0)
    expected = {
        "linear/top1": float((mean.argmax(1) == labels).float().mean()),
        "linear/loss": float(F.nll_loss(mean.log(), labels)),
    }
    found = run.validate(module, crops, verbose=False)[0]
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    step = module.predict_step((views, labels), 0)
    torch.testing.assert_close(step["scores"].softmax(1), mean)
    torch.testing.assert_close(step["h"], torch.stack([module(view) for view in views]).mean(0))
    with pytest.raises(DataError, match="got 3 views"):
        module.training_step((views, labels), 0)
