"""A pretraining that starts from weights of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import mmcl, moco, shapes, trainer

from mmcl_lightning import MMCL
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.models import build_backbone


class First(Callback):
    """Keeps the weights of the networks before the first step."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        networks = {name: getattr(pl_module, name, None) for name in ("backbone", "key_backbone")}
        self.weights = {
            name: {key: value.clone() for key, value in network.state_dict().items()}
            for name, network in networks.items()
            if network is not None
        }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[key], value) for key, value in other.items())


@pytest.mark.parametrize("build", [mmcl, moco])
def test_a_run_starts_from_the_weights_and_a_resumed_one_from_its_own(build: Any, tmp_path: Path) -> None:
    source = build_backbone("conv4").state_dict()
    torch.save(source, tmp_path / "start.pth")
    first, path = First(), str(tmp_path / "start.pth")
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, first, saver).fit(build(init_from=path), shapes())
    assert all(same(weights, source) for weights in first.weights.values())
    assert len(first.weights) == (2 if build is moco else 1)

    (tmp_path / "start.pth").unlink()
    again = First()
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    run = trainer(tmp_path, again, max_epochs=2)
    run.fit(build(3, init_from=path), shapes(), ckpt_path=tmp_path / "last.ckpt")
    own = {
        k.removeprefix("backbone."): v for k, v in saved["state_dict"].items() if k.startswith("backbone.")
    }
    assert same(again.weights["backbone"], own)
    assert not same(again.weights["backbone"], source)
    assert saved["hyper_parameters"]["init_from"] == path


def test_a_checkpoint_that_was_started_so_loads_without_the_file(tmp_path: Path) -> None:
    torch.save(build_backbone("conv4").state_dict(), tmp_path / "start.pth")
    run = trainer(tmp_path)
    run.fit(mmcl(init_from=str(tmp_path / "start.pth")), shapes())
    run.save_checkpoint(tmp_path / "end.ckpt")
    (tmp_path / "start.pth").unlink()
    loaded = MMCL.load_from_checkpoint(tmp_path / "end.ckpt")
    assert same(loaded.state_dict(), run.lightning_module.state_dict())


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    torch.save({"conv.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ConfigError, match="does not fit the backbone: 0 of its 24 weights match"):
        trainer(tmp_path).fit(mmcl(init_from=str(tmp_path / "other.pth")), shapes())
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        trainer(tmp_path).fit(mmcl(init_from="nowhere.pth"), shapes())
