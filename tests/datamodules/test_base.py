"""Options, determinism, subsets and resume of the shared base class."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import simclr
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmcl_lightning.batches import views_of
from mmcl_lightning.datamodules import ShapesDataModule, SSLDataModule
from mmcl_lightning.datamodules.datasets import ViewDataset
from mmcl_lightning.datamodules.loading import EpochSampler, ResumableDataLoader, mix_seed
from mmcl_lightning.datamodules.sources import ArraySource, Source, balanced_subset, grouped_subset
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.transforms import CentralCrop, EvalTransform, MultiView, SimCLRTransform


def shapes(**options: Any) -> ShapesDataModule:
    return ShapesDataModule(
        **{"train_size": 50, "test_size": 20, "batch_size": 8, "num_workers": 0, **options}
    )


def fingerprint(batch: Any) -> tuple[float, float, int]:
    views, targets = views_of(batch), batch[1]
    return views[0].double().sum().item(), views[1].double().sum().item(), int(targets.sum())


def epoch_of(loader: DataLoader, epoch: int) -> list[tuple[float, float, int]]:
    loader.sampler.set_epoch(epoch)
    return [fingerprint(batch) for batch in loader]


class Recorder(pl.LightningModule):
    """Records a fingerprint of every training batch, and does nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, tuple[float, float, int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, fingerprint(batch)))
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", batch[0][0].mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(path: Path, **options: Any) -> pl.Trainer:
    defaults = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    return pl.Trainer(
        default_root_dir=path, enable_model_summary=False, num_sanity_val_steps=0, **{**defaults, **options}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1}, "batch_size must be at least 2.*got 1"),
        ({"eval_batch_size": 0}, "eval_batch_size must be an integer >= 1, got 0"),
        ({"num_workers": -1}, "num_workers must be an integer >= 0, got -1"),
        ({"train_subset": 1}, "train_subset must be an integer >= 2, got 1"),
        ({"test_subset": 0}, "test_subset must be an integer >= 1, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": 2**70}, "seed must be less than"),
        ({"image_size": "8"}, "image_size must be an integer >= 8, got '8'"),
        ({"train_size": 8.0}, "train_size must be an integer >= 2, got 8.0"),
        ({"augment": "gpu"}, "augment must be 'worker' or 'device', got 'gpu'"),
        ({"predict_split": "val"}, "predict_split must be 'all', 'train' or 'test', got 'val'"),
    ],
)
def test_options_are_checked(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shapes(**options)


def test_a_batch_larger_than_the_set_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"batch_size is 64, but there are only 50 training images"):
        shapes(batch_size=64).train_dataloader()


def test_a_subset_larger_than_the_set_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match="train_subset is 99, but the split has only 50 images"):
        shapes(train_subset=99).setup()


def test_the_last_partial_batch_is_dropped_in_training_only() -> None:
    data = shapes()
    assert len(list(data.train_dataloader())) == len(data.train_dataloader()) == 6
    assert len(list(data.val_dataloader())) == 2
    assert sum(len(targets) for _, targets in data.knn_dataloaders()[0]) == 50


def test_few_held_out_images_make_a_smaller_validation_batch() -> None:
    (views, _), *rest = list(shapes(test_size=5).val_dataloader())
    assert len(views[0]) == 5
    assert not rest
    assert shapes(test_size=1).val_dataloader() == []


def test_transforms_can_be_replaced() -> None:
    data = shapes(train_transform=MultiView(EvalTransform(), views=3), eval_transform=EvalTransform(crop=16))
    views, _ = next(iter(data.train_dataloader()))
    assert len(views) == 3
    assert torch.equal(views[0], views[2])
    assert next(iter(data.knn_dataloaders()[1]))[0].shape[-2:] == (16, 16)


def test_subsets_are_balanced_and_seeded() -> None:
    data = shapes(train_size=200, train_subset=35, test_subset=10)
    counts = np.bincount(data.splits.pretrain.targets)
    assert counts.sum() == 35
    assert set(counts) == {3, 4}
    assert np.bincount(data.splits.query.targets).tolist() == [1] * 10
    assert len(data.splits.bank) == 35
    targets = np.repeat(np.arange(3), [2, 50, 50])
    assert np.bincount(targets[balanced_subset(targets, 20, seed=0)]).tolist() == [2, 9, 9]
    assert not np.array_equal(balanced_subset(targets, 20, seed=0), balanced_subset(targets, 20, seed=1))
    assert len(balanced_subset(np.full(10, -1), 4, seed=0)) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_three_is_the_same_directly_and_after_others(workers: int) -> None:
    reference = epoch_of(shapes().train_dataloader(), 3)
    loader = shapes(num_workers=workers).train_dataloader()
    torch.manual_seed(workers)
    epochs = [epoch_of(loader, epoch) for epoch in range(4)]
    assert epochs[3] == reference
    assert epochs[2] != reference
    assert epoch_of(shapes(seed=1).train_dataloader(), 3) != reference


def test_loading_leaves_the_global_random_state_alone() -> None:
    data = shapes()
    data.setup()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(data.train_dataloader())
    list(data.knn_dataloaders()[0])
    assert torch.equal(torch.rand(3), expected)


def test_validation_is_the_same_in_every_epoch() -> None:
    loader = shapes().val_dataloader()
    assert epoch_of(loader, 0) == epoch_of(loader, 7)


@pytest.mark.parametrize("replicas", [2, 3])
def test_global_batches_do_not_depend_on_the_number_of_ranks(replicas: int) -> None:
    whole = [key for key in EpochSampler(range(50), seed=3)]
    ranks = [list(EpochSampler(range(50), replicas, rank, seed=3)) for rank in range(replicas)]
    together = [key for keys in zip(*ranks, strict=True) for key in keys]
    assert together == whole[: len(together)]


def test_seeds_and_epochs_do_not_collide() -> None:
    assert len({mix_seed(a, b, c) for a in range(4) for b in range(20) for c in range(100)}) == 8000
    assert 0 <= mix_seed(2**40, 0) < 2**32


def test_a_plain_position_is_epoch_zero() -> None:
    dataset: ViewDataset = shapes().train_dataloader().dataset
    for by_position, by_key in zip(dataset[4][0], dataset[(0, 4)][0], strict=True):
        assert torch.equal(by_position, by_key)


def test_a_loader_continues_within_the_epoch() -> None:
    loader = shapes().train_dataloader()
    reference = epoch_of(loader, 2)
    loader.sampler.set_epoch(2)
    iterator = iter(loader)
    first = [fingerprint(next(iterator)) for _ in range(2)]
    state = loader.state_dict()
    plan = {"processes": 1, "batch_size": 8, "seed": 0, "samples": 50}
    assert state == {"epoch": 2, "batches": 2} | plan
    resumed = shapes().train_dataloader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert first + epoch_of(resumed, 2) == reference
    assert epoch_of(resumed, 2) == reference
    assert len(resumed) == 6


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"batch_size": 4}, "batch_size 8, now 4"),
        ({"seed": 3}, "seed 0, now 3"),
        ({"train_size": 40, "seed": 1}, "seed 0, now 1; samples 50, now 40"),
        ({}, ""),
    ],
)
def test_a_loader_that_cannot_go_on_where_it_was_says_so(options: dict[str, Any], changed: str) -> None:
    state = shapes().train_dataloader().state_dict()
    resumed = shapes(**options).train_dataloader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(state)  # before the first batch all is well
        resumed.load_state_dict({"epoch": 0, "batches": 2})  # of an earlier version
    said = (
        f"within an epoch that was read with {changed}: some samples of this epoch come twice or not at all"
    )
    with pytest.warns(UserWarning, match=said) if changed else contextlib.nullcontext():
        resumed.load_state_dict(state | {"batches": 2})


def test_a_finished_epoch_is_not_skipped_in_the_next() -> None:
    loader = shapes().train_dataloader()
    loader.load_state_dict({"epoch": 1, "batches": 6})
    assert len(epoch_of(loader, 2)) == 6


def test_skipped_images_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = shapes().train_dataloader()
    loader.load_state_dict({"epoch": 0, "batches": 5})
    keys = []
    original = ViewDataset.__getitem__
    monkeypatch.setattr(ViewDataset, "__getitem__", lambda self, key: keys.append(key) or original(self, key))
    list(loader)
    assert len(keys) == 8


@pytest.mark.parametrize("limit", [{"max_epochs": 4}, {"max_steps": 24, "max_epochs": -1}])
@pytest.mark.parametrize(("step", "workers"), [(3, 0), (12, 0), (15, 0), (15, 1)])
def test_lightning_resumes_with_the_very_same_batches(
    tmp_path: Path, workers: int, limit: dict, step: int
) -> None:
    full = Recorder()
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
    trainer(tmp_path, callbacks=[saver], **limit).fit(full, shapes(num_workers=workers))
    assert len(full.seen) == 24
    resumed = Recorder()
    trainer(tmp_path, enable_checkpointing=False, **limit).fit(
        resumed, shapes(num_workers=workers), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True
    )
    assert resumed.seen == full.seen[step:]


@pytest.mark.parametrize(("on_train_end", "workers"), [(True, 0), (False, 0), (True, 1)])
def test_lightning_resumes_from_the_end_of_an_epoch(tmp_path: Path, on_train_end: bool, workers: int) -> None:
    full, resumed = Recorder(), Recorder()
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=on_train_end)
    trainer(tmp_path, callbacks=[saver], max_epochs=4).fit(full, shapes(num_workers=workers))
    trainer(tmp_path, enable_checkpointing=False, max_epochs=4).fit(
        resumed, shapes(num_workers=workers), ckpt_path=tmp_path / "epoch=1.ckpt", weights_only=True
    )
    assert resumed.seen == full.seen[12:]


def test_lightning_keeps_the_sampler_and_sets_the_epoch(tmp_path: Path) -> None:
    data, model = shapes(), Recorder()
    runner = trainer(tmp_path, max_epochs=2, enable_checkpointing=False)
    runner.fit(model, data)
    assert isinstance(runner.train_dataloader, ResumableDataLoader)
    assert isinstance(runner.train_dataloader.sampler, EpochSampler)
    assert [seen for _, seen in model.seen[6:]] == epoch_of(shapes().train_dataloader(), 1)


def test_lightning_can_overfit_and_predict(tmp_path: Path) -> None:
    trainer(tmp_path, max_epochs=2, overfit_batches=2, enable_checkpointing=False).fit(Recorder(), shapes())

    class Predictor(Recorder):
        def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
            return batch[1]

    data = shapes(eval_batch_size=8)
    predicted = torch.cat(trainer(tmp_path, enable_checkpointing=False).predict(Predictor(), data))
    assert predicted.tolist() == [*data.splits.bank.targets, *data.splits.query.targets]


def test_yaml_builds_a_data_module_with_its_transforms() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--data", type=SSLDataModule)
    transforms = "mmcl_lightning.transforms"
    options = {
        "train_size": 50,
        "train_transform": {"class_path": f"{transforms}.SimCLRTransform", "init_args": {"size": 24}},
        "eval_transform": {"class_path": f"{transforms}.EvalTransform", "init_args": {"crop": 24}},
    }
    config = {"class_path": "mmcl_lightning.datamodules.ShapesDataModule", "init_args": options}
    # jsonargparse 4.49 renamed the method.
    instantiate = parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes
    data = instantiate(parser.parse_object({"data": config})).data
    assert data.train_transform.size == data.eval_transform.crop == 24


def test_validation_images_come_from_training_and_leave_it() -> None:
    data = shapes(train_size=60, validation_subset=20, train_subset=30, test_subset=7)
    splits = data.splits
    assert splits.query is splits.heldout
    assert len(splits.query) == 20, "test_subset is about test images"
    assert np.bincount(splits.query.targets).tolist() == [2] * 10
    assert splits.pretrain is splits.bank
    assert len(splits.pretrain) == 30
    everything = shapes(train_size=60).splits.pretrain
    seen = [everything[i][0].tobytes() for i in range(60)]
    held = {splits.query[i][0].tobytes() for i in range(20)}
    trained = {splits.pretrain[i][0].tobytes() for i in range(30)}
    assert held <= set(seen)
    assert trained <= set(seen) - held


def test_a_validation_part_of_all_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="validation_subset is 50, but there are only 50 labelled images"):
        shapes(validation_subset=50).setup()
    with pytest.raises(ConfigError, match="validation_subset must be an integer >= 1"):
        shapes(validation_subset=0)


def test_equal_data_have_equal_fingerprints() -> None:
    first = shapes().fingerprint()
    assert first == shapes().fingerprint()
    assert first["pretrain"].startswith("50 images, ")
    assert first["query"].startswith("20 images, ")
    assert first != shapes(seed=1).fingerprint()
    assert first["pretrain"] != shapes(train_subset=49).fingerprint()["pretrain"]


@pytest.mark.parametrize(
    ("train", "evaluation", "said"),
    [
        (SimCLRTransform(24), None, None),  # this evaluation leaves images as they are
        (
            MultiView(SimCLRTransform(24)),
            CentralCrop(16),
            "training images have 24 x 24 pixels, those of the evaluation 16 x 16",
        ),
        (SimCLRTransform.cifar(16), None, "not normalised by the same mean and std"),
        (
            SimCLRTransform.cifar(16),
            CentralCrop(16, mean=(0.5,) * 3, std=(0.5,) * 3),
            "not normalised by the same",
        ),
        (SimCLRTransform.cifar(16), EvalTransform.cifar(), None),
        (lambda image: None, None, None),
        (None, None, None),
    ],
)
def test_transforms_that_do_not_go_together_are_said(train: Any, evaluation: Any, said: str | None) -> None:
    """As where a recipe sets the augmentation, and the data set is exchanged for another one."""
    module = ShapesDataModule(
        train_size=20, test_size=10, image_size=16, train_transform=train, eval_transform=evaluation
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        module.setup()
        module.check_options()
    assert [said in str(warning.message) for warning in found] == ([True] if said else [])


def test_integers_of_numpy() -> None:
    eight = np.int64(8)
    module = ShapesDataModule(
        train_size=eight, test_size=eight, image_size=eight, batch_size=eight, seed=eight
    )
    views, targets = next(iter(module.train_dataloader()))
    assert (views[0].shape, targets.shape) == ((8, 3, 8, 8), (8,))


# Views made on the device


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["train_dataloader", "val_dataloader"])
def test_views_made_on_the_device_are_those_of_the_workers(workers: int, loader: str) -> None:
    """The same order and draws, whatever makes the pictures."""
    one, batch = (shapes(augment=augment, num_workers=workers) for augment in ("worker", "device"))
    compared = 0
    for expected, found in zip(getattr(one, loader)(), getattr(batch, loader)(), strict=True):
        assert torch.equal(found[1], expected[1])
        for view, wanted in zip(views_of(found), expected[0], strict=True):
            assert view.shape == wanted.shape
            assert (view - wanted).abs().mean() < 0.01
            compared += 1
    assert compared >= 4


def test_views_made_on_the_device_are_a_function_of_seed_and_epoch() -> None:
    loader = shapes(augment="device").train_dataloader()
    first = epoch_of(loader, 0)
    assert epoch_of(loader, 1) != first
    assert epoch_of(shapes(augment="device").train_dataloader(), 0) == first
    assert epoch_of(shapes(augment="device", seed=1).train_dataloader(), 0) != first


def test_what_the_device_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="is EvalTransform, which has __call__ of its own: set augment"):
        shapes(augment="device", train_transform=EvalTransform(32, 32)).train_dataloader()

    class Mine(SimCLRTransform):
        def apply(self, image: Any, parameters: Any) -> Tensor:
            return torch.full((3, self.size, self.size), 7.0)

    class Pair(MultiView):
        def __call__(self, image: Any) -> list[Tensor]:
            return [self.transform(image), 1 - self.transform(image)]

    with pytest.raises(ConfigError, match="is Mine, which has apply of its own"):
        shapes(augment="device", train_transform=Mine(32)).train_dataloader()
    with pytest.raises(ConfigError, match="works with MultiView, and train_transform is a Pair"):
        shapes(augment="device", train_transform=Pair(SimCLRTransform(32))).train_dataloader()
    with pytest.raises(ConfigError, match=r"makes views to pretrain: set --data\.augment worker"):
        shapes(augment="device", task="classify").train_dataloader()


def test_a_run_makes_the_views_on_its_device(tmp_path: Path) -> None:
    """Lightning moves the batch, and the module gets two lists of views, whatever makes them."""
    seen: dict[str, list[tuple[float, float, int]]] = {}
    for augment in ("worker", "device"):
        module = Recorder()
        run = pl.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        run.fit(module, shapes(augment=augment))
        seen[augment] = [found for _, found in module.seen]
    assert len(seen["device"]) == len(seen["worker"]) > 2
    for one, other in zip(seen["worker"], seen["device"], strict=True):
        assert one == pytest.approx(other, rel=0.05)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_views_made_on_the_device_have_the_precision_of_the_network(precision: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=2, precision=precision, enable_checkpointing=False)
    run.fit(simclr(), shapes(augment="device", batch_size=8))
    assert run.global_step == 2


def test_groups_are_held_out_as_a_whole() -> None:
    groups = np.repeat(np.arange(12), 3)
    targets = np.repeat(np.arange(4), 9)
    for seed in range(5):
        chosen = grouped_subset(targets, groups, 10, seed)
        assert len(chosen) == 12  # four groups, one of each class
        assert np.bincount(targets[chosen]).tolist() == [3] * 4
        assert not set(groups[chosen]) & set(np.delete(groups, chosen))
    assert (grouped_subset(targets, None, 10, 3) == balanced_subset(targets, 10, 3)).all()
    source = ArraySource(np.zeros((36, 4, 4, 3), np.uint8), targets)
    source.groups = groups
    held = Splits(source, None, source, None).hold_out(10, seed=0)
    assert held.query is not None
    assert held.query.groups is not None
    assert held.bank is not None
    assert (len(held.query), len(held.bank), len(held.pretrain)) == (12, 24, 24)
    assert not set(held.query.groups) & set(held.bank.groups)
    with pytest.raises(ConfigError, match="whole groups of so many leave nothing to train on"):
        Splits(source, None, source, None).hold_out(34, seed=0)


class Numbers(Source):
    """Items that are no images."""

    def __init__(self, count: int) -> None:
        self.targets = np.arange(count) % 2

    def item(self, index: int) -> Any:
        return index

    def digest(self, index: int) -> bytes:
        return str(index).encode()


class NumbersDataModule(SSLDataModule):
    """A data module of items that are no images: views are vectors."""

    class_names = ("even", "odd")  # type: ignore[assignment]
    keep_last_batch = True

    def load_splits(self) -> Splits:
        train, test = Numbers(21), Numbers(6)
        return Splits(train, None, train, test)

    def default_train_transform(self) -> Any:
        return MultiView(lambda number: torch.randn(4) + number)

    def default_eval_transform(self) -> Any:
        return lambda number: [torch.full((4,), float(number)), torch.full((4,), -float(number))]


def test_items_need_not_be_images() -> None:
    data = NumbersDataModule(batch_size=8, eval_batch_size=4, num_workers=0)
    data.setup()
    views, _ = next(iter(data.train_dataloader()))
    assert [view.shape for view in views] == [(8, 4), (8, 4)]
    assert [len(targets) for _, targets in data.train_dataloader()] == [8, 8, 5]
    assert data.val_dataloader() == []
    loaders = data.knn_dataloaders()
    assert loaders is not None
    clean, targets = next(iter(loaders[1]))
    assert [view[:, 0].tolist() for view in clean] == [[0, 1, 2, 3], [0, -1, -2, -3]]
    assert targets.tolist() == [0, 1, 0, 1]
    assert data.fingerprint()["query"].startswith("6 images, ")
    again = NumbersDataModule(batch_size=7, num_workers=0)
    again.setup()
    assert [len(targets) for _, targets in again.train_dataloader()] == [7, 7, 7]
    one_left = NumbersDataModule(batch_size=10, num_workers=0)  # batch norm needs two
    one_left.setup()
    assert [len(targets) for _, targets in one_left.train_dataloader()] == [10, 10]


def test_items_with_unequal_numbers_of_views() -> None:
    class Uneven(NumbersDataModule):
        def default_eval_transform(self) -> Any:
            return lambda number: [torch.zeros(4)] * (1 + number)

    data = Uneven(batch_size=8, eval_batch_size=4, num_workers=0)
    data.setup()
    with pytest.raises(ShapeError, match=r"have 1 to 4 views: set data\.eval_batch_size to 1"):
        next(iter(data.health_dataloader()))
    alone = Uneven(batch_size=8, eval_batch_size=1, num_workers=0)
    alone.setup()
    assert [len(views) for views, _ in alone.health_dataloader()][:3] == [1, 2, 3]
