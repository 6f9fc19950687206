"""Every part that can be added is in the list that puts it before the tests of its kind."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import BASELINES, KERNELS, RULES, SOLVERS, WEIGHTED
from runs import DATA_MODULES, PICTURES, READOUTS, Plain, mmcl, shapes, simclr, trainer

from mmcl_lightning import datamodules, kernels, losses, readouts, svm
from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.datamodules import SSLDataModule
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.readouts import Readout

ROOT = Path(__file__).parent.parent


def public(package: ModuleType, base: type) -> set[str]:
    """Names of the public classes of a kind that can be made."""
    found = ((name, getattr(package, name)) for name in package.__all__)
    return {
        name for name, thing in found
        if inspect.isclass(thing) and issubclass(thing, base) and not inspect.isabstract(thing)
    }  # fmt: skip


def names(parts: tuple[object, ...]) -> set[str]:
    return {type(part).__name__ for part in parts}


def test_kernels_solvers_and_rules() -> None:
    assert names(KERNELS) == public(kernels, kernels.Kernel)
    assert names(SOLVERS) == public(svm, svm.Solver)
    assert names(RULES) == public(losses, losses.NegativeWeights)


def test_losses() -> None:
    assert names((*BASELINES, *WEIGHTED)) == public(losses, losses.ContrastiveLoss)


def test_data_modules() -> None:
    assert set(DATA_MODULES) == public(datamodules, SSLDataModule) - {"ImageDataModule", "SSLDataModule"}
    for name, tests in DATA_MODULES.items():
        assert name in (ROOT / "tests" / "datamodules" / tests).read_text()


# Readouts

every_readout = pytest.mark.parametrize("build", READOUTS, ids=lambda build: type(build()).__name__)


def test_readouts() -> None:
    assert {type(build()).__name__ for build in READOUTS} == public(readouts, Readout)


def weights(*parts: Readout, folder: Path) -> torch.Tensor:
    module = mmcl()
    trainer(folder, Readouts(others=list(parts)), max_epochs=2, log=True).fit(module, shapes())
    return torch.cat([value.flatten().double() for value in module.state_dict().values()])


@every_readout
def test_training_is_the_same_with_and_without_a_readout(
    build: Callable[[], Readout], tmp_path: Path
) -> None:
    alone = weights(folder=tmp_path / "without")
    assert torch.equal(alone, weights(build(), folder=tmp_path / "with"))


@every_readout
def test_its_values_are_logged_its_tags_documented_and_its_state_plain(
    build: Callable[[], Readout], tmp_path: Path
) -> None:
    callback = Readouts(others=[build()])
    run = trainer(tmp_path, callback, max_epochs=2)
    before = set(run.callback_metrics)
    run.fit(simclr(), shapes())
    logged = {name for name in set(run.callback_metrics) - before if not name.startswith("train/")}
    assert bool(logged) != (type(build()).__name__ in PICTURES)
    page = (ROOT / "docs" / "tensorboard.md").read_text()
    assert [name for name in logged if f"`{name}`" not in page] == []
    buffer = io.BytesIO()
    torch.save(callback.state_dict(), buffer)
    buffer.seek(0)
    again = Readouts(others=[build()])
    again.load_state_dict(torch.load(buffer, weights_only=True))
    assert again.state_dict()["values"] == callback.state_dict()["values"]


@pytest.mark.parametrize(
    "build",
    [build for build in READOUTS if type(build()).__name__ not in PICTURES],
    ids=lambda build: type(build()).__name__,
)
def test_without_images_it_says_what_it_needs(build: Callable[[], Readout], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs"):
        trainer(tmp_path, Readouts(others=[build()])).fit(Plain())
