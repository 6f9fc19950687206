"""What the readouts share: they name what does not fit, and begin anew with another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Plain, image_loader, shapes, simclr, trainer
from torch import Tensor

from mmcl_lightning.batches import images_and_labels
from mmcl_lightning.callbacks import (
    HealthPanel,
    Ledger,
    OnlineKNN,
    OnlineLinearProbe,
    SupportVectorGrid,
    Throughput,
)
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.ledger import Record
from mmcl_lightning.transforms import SimCLRTransform


class Foreign(Plain):
    """A module whose forward gives something else than features."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()


@pytest.mark.parametrize("output", [(torch.zeros(10, 4),), {"h": torch.zeros(10, 4)}, None])
def test_a_forward_that_gives_no_tensor_is_named(output: Any, tmp_path: Path) -> None:
    knn = OnlineKNN(k=3, bank_loader=image_loader(20, 1), query_loader=image_loader(10, 2))
    with pytest.raises(
        ShapeError, match=f"from Foreign, got {type(output).__name__}: its forward must return"
    ):
        trainer(tmp_path, knn).fit(Foreign(output))


@pytest.mark.parametrize("batch", [[], None, 3, (torch.tensor(1.0), torch.tensor(1))])
def test_an_odd_batch_is_named(batch: Any) -> None:
    with pytest.raises(DataError, match=r"expected a batch \(images, labels\)"):
        images_and_labels(batch)


def test_readouts_begin_anew_with_another_trainer(tmp_path: Path) -> None:
    knn = OnlineKNN(k=3, bank_loader=image_loader(20, 1), query_loader=image_loader(10, 2))
    probe = OnlineLinearProbe(query_loader=image_loader(10, 2), num_classes=3)
    ledger, throughput = Ledger(str(tmp_path)), Throughput()
    for _ in range(2):
        trainer(tmp_path, knn, probe, ledger, throughput).fit(Plain())
        assert [epoch for epoch, _ in knn.curve] == [0, 1]
        assert [epoch for epoch, _ in probe.curve] == [1]
        assert probe.classifier is not None
        assert probe.classifier.steps == 3
        points = Record.read(tmp_path / "ledger.json").metrics["knn/top1"].curve
        assert [point[1] for point in points] == [0, 3]


def test_a_fit_that_goes_on_keeps_its_curve(tmp_path: Path) -> None:
    knn = OnlineKNN(k=3, bank_loader=image_loader(20, 1), query_loader=image_loader(10, 2))
    run, module = trainer(tmp_path, knn, max_epochs=1), Plain()
    run.fit(module)
    run.fit_loop.max_epochs = 2
    run.fit(module)
    assert [epoch for epoch, _ in knn.curve] == [0, 1, 2]


def test_numbers_of_another_protocol_are_not_the_best(tmp_path: Path) -> None:
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, OnlineKNN(k=3, **loaders), saver).fit(Plain())
    other = OnlineKNN(k=5, **loaders)
    with pytest.warns(UserWarning, match=r"k-NN: was k=3.*, now k=5.*: the best value starts anew"):
        trainer(tmp_path, other, max_epochs=2).fit(Plain(), ckpt_path=tmp_path / "last.ckpt")
    assert [epoch for epoch, _ in other.curve] == [2]


def test_values_of_a_protocol_that_is_gone_are_not_kept(tmp_path: Path) -> None:
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, OnlineKNN(k=3, protocols=["dino"], **loaders), saver).fit(Plain())
    run = trainer(tmp_path, OnlineKNN(k=3, every_n_epochs=9, **loaders), max_epochs=2)
    run.fit(Plain(), ckpt_path=tmp_path / "last.ckpt")
    assert sorted(name for name in run.callback_metrics if name.startswith("knn/")) == [
        "knn/best_top1", "knn/top1", "knn/top5"
    ]  # fmt: skip


def test_a_label_that_is_no_class_needs_their_number(tmp_path: Path) -> None:
    labels = torch.arange(20) * 10**8
    knn = OnlineKNN(k=3, bank_loader=image_loader(20, 1, labels), query_loader=image_loader(20, 1, labels))
    with pytest.raises(DataError, match="a label is 1900000000: number the classes from 0"):
        trainer(tmp_path, knn).fit(Plain())


@pytest.mark.parametrize(
    "make",
    [
        lambda: OnlineKNN(every_n_epochs="2"),
        lambda: OnlineKNN(at_start="no"),
        lambda: OnlineKNN(chunk_size=2.5),
        lambda: HealthPanel(images=None),
        lambda: OnlineLinearProbe(lr="1"),
        lambda: SupportVectorGrid(queries=True),
    ],
)
def test_options_of_the_wrong_kind(make: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        make()


def test_a_resumed_probe_keeps_its_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {"query_loader": image_loader(10, 2), "num_classes": 3}
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, OnlineLinearProbe(**options), saver).fit(Plain())
    with pytest.raises(ConfigError, match=r"linear probe has lr=0.003 and .*, not 0.1 and"):
        trainer(tmp_path, OnlineLinearProbe(lr=0.1, **options), max_epochs=2).fit(
            Plain(), ckpt_path=tmp_path / "last.ckpt"
        )


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_transforms_work_in_single_precision_whatever_the_network_does(
    precision: Any, tmp_path: Path
) -> None:
    """Health reads augmented views, whose blur once met the default type of double precision."""
    run = trainer(tmp_path, HealthPanel(), OnlineKNN(k=3), precision=precision)
    run.fit(simclr(), shapes(train_transform=SimCLRTransform(16, blur_prob=1.0)))
    assert run.callback_metrics["health/alignment"] > 0
