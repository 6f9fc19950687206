"""What the readouts share: they name what does not fit, and begin anew with another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Plain, image_loader, mmcl, shapes, simclr, trainer
from torch import Tensor

from mmcl_lightning.batches import images_and_labels
from mmcl_lightning.callbacks import Ledger, OnlineKNN, Readouts, ResumableCheckpoint, Throughput
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.ledger import Record
from mmcl_lightning.negatives import SupportVectors
from mmcl_lightning.readouts import KNN, Health, LinearProbe, SupportVectorGrid
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


class Giving(Plain):
    """A module that hands on what it learns from."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self(batch[0])
        return {"loss": h.square().mean(), "h": h}


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
    knn, probe = KNN(k=3), LinearProbe()
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}
    readouts = Readouts(knn=knn, probe=probe, num_classes=3, **loaders)
    ledger, throughput = Ledger(str(tmp_path)), Throughput()
    for _ in range(2):
        trainer(tmp_path, readouts, ledger, throughput).fit(Giving())
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


@pytest.mark.parametrize("owed", [False, True])
def test_a_checkpoint_of_version_0_9_is_taken_up(owed: bool, tmp_path: Path) -> None:
    """Every readout was a callback then, with values and state together."""
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}

    def readouts() -> Readouts:
        return Readouts(9, knn=KNN(k=3), probe=LinearProbe(), health=Health(), num_classes=3, **loaders)

    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, readouts(), saver).fit(Giving())
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state = checkpoint["callbacks"].pop("Readouts")
    for name, key in {"knn": "OnlineKNN", "probe": "OnlineLinearProbe", "health": "HealthPanel"}.items():
        values = {"values": state["values"][name], "owed": owed and name == "knn"}
        checkpoint["callbacks"][key] = state["readouts"][name] | values
    torch.save(checkpoint, tmp_path / "earlier.ckpt")

    ends = []
    for file in ("last.ckpt", "earlier.ckpt"):
        resumed, module = readouts(), Giving()
        run = trainer(tmp_path, resumed, max_epochs=3)
        run.fit(module, ckpt_path=tmp_path / file)
        ends.append((resumed.state_dict(), module.state_dict()))
    (state, weights), (earlier, earlier_weights) = ends
    curve = state["readouts"]["knn"]["curve"]
    assert [epoch for epoch, _ in curve] == [0, 1, 3]
    # What was owed is made up for before the next step.
    assert earlier["readouts"]["knn"]["curve"] == [*curve[:2], *([curve[1]] if owed else []), curve[2]]
    assert earlier["values"] == state["values"]
    assert earlier["readouts"]["probe"]["curve"] == state["readouts"]["probe"]["curve"]
    fitted, expected = (end["readouts"]["probe"]["fitted"] for end in (earlier, state))
    assert fitted["steps"] == 9
    assert torch.equal(fitted["linear"]["weight"], expected["linear"]["weight"])
    assert all(torch.equal(weights[name], earlier_weights[name]) for name in weights)


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
        lambda: Readouts(every_n_epochs="2"),
        lambda: Readouts(at_start="no"),
        lambda: Readouts(num_classes=0),
        lambda: KNN(chunk_size=2.5),
        lambda: Health(images=None),
        lambda: LinearProbe(lr="1"),
        lambda: SupportVectorGrid(queries=True),
    ],
)
def test_options_of_the_wrong_kind(make: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        make()


def test_a_resumed_probe_keeps_its_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {"query_loader": image_loader(10, 2), "num_classes": 3}
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, Readouts(probe=LinearProbe(), **options), saver).fit(Giving())
    other = Readouts(probe=LinearProbe(lr=0.1), **options)
    with pytest.raises(ConfigError, match=r"linear probe: checkpoint: lr=0.003, .*; configuration: lr=0.1, "):
        trainer(tmp_path, other, max_epochs=2).fit(Giving(), ckpt_path=tmp_path / "last.ckpt")


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_transforms_work_in_single_precision_whatever_the_network_does(
    precision: Any, tmp_path: Path
) -> None:
    """Health reads augmented views, whose blur once met the default type of double precision."""
    run = trainer(tmp_path, Readouts(health=Health(), knn=KNN(k=3)), precision=precision)
    run.fit(simclr(), shapes(train_transform=SimCLRTransform(16, blur_prob=1.0)))
    assert run.callback_metrics["health/alignment"] > 0


def test_a_curve_goes_on_between_the_callback_of_one_and_that_of_all(tmp_path: Path) -> None:
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}

    def save(folder: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / folder, save_last=True)

    trainer(tmp_path, OnlineKNN(k=3, **loaders), save("a")).fit(Plain())
    knn = KNN(k=3)
    run = trainer(tmp_path, Readouts(knn=knn, **loaders), save("b"), max_epochs=2)
    run.fit(Plain(), ckpt_path=tmp_path / "a" / "last.ckpt")
    alone = OnlineKNN(k=3, **loaders)
    trainer(tmp_path, alone, max_epochs=3).fit(Plain(), ckpt_path=tmp_path / "b" / "last.ckpt")
    assert [epoch for epoch, _ in knn.curve] == [0, 1, 2]
    assert [epoch for epoch, _ in alone.curve] == [0, 1, 2, 3]


def test_two_readouts_of_a_kind_are_refused(tmp_path: Path) -> None:
    loaders = {"bank_loader": image_loader(20, 1), "query_loader": image_loader(10, 2)}
    both = [OnlineKNN(k=3, **loaders), Readouts(knn=KNN(k=5), **loaders)]
    with pytest.raises(ConfigError, match="got several of KNN, which write under the same names"):
        trainer(tmp_path, *both).fit(Plain())


def test_a_picture_made_up_for_names_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, notes, interrupted = SupportVectors.draw, [], [True]

    def interrupt_once(self: SupportVectors, selection: Any, note: str) -> Any:
        if interrupted.pop() if interrupted else False:
            raise KeyboardInterrupt
        notes.append(note)
        return draw(self, selection, note)

    monkeypatch.setattr(SupportVectors, "draw", interrupt_once)

    def parts() -> tuple[Callback, ...]:
        grid = SupportVectorGrid(images=8, queries=2)
        return Readouts(support_vectors=grid), ResumableCheckpoint(dirpath=tmp_path)

    with pytest.raises(SystemExit):
        trainer(tmp_path / "a", *parts(), log=True, max_epochs=2).fit(mmcl(), shapes())
    run = trainer(tmp_path / "b", *parts(), log=True, max_epochs=2)
    run.fit(mmcl(), shapes(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert notes == ["after 1 epoch", "after 2 epochs"]
