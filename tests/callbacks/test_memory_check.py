"""A step that does not fit into memory is said before the system ends it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import moco, shapes, simclr, trainer
from torch import Tensor, nn

from mmcl_lightning.callbacks import memory
from mmcl_lightning.callbacks.memory import MemoryCheck, activation_bytes, available_bytes


def test_what_a_pass_keeps_is_counted() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten())
    images = torch.zeros(2, 3, 10, 10)
    # The images for the weights of the convolution, and what ReLU gives; no weights.
    assert activation_bytes(network, images) == 4 * 2 * (3 + 8) * 100
    doubled = torch.zeros(4, 3, 10, 10)
    assert activation_bytes(network, doubled) == 2 * activation_bytes(network, images)


def test_the_network_is_left_as_it_is() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    before, state = {k: v.clone() for k, v in network.state_dict().items()}, torch.get_rng_state()
    assert activation_bytes(network, torch.randn(2, 3, 8, 8, generator=torch.Generator())) > 0
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


class Odd(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise ValueError("eight images at a time")


def test_a_network_that_cannot_be_tried_counts_nothing() -> None:
    assert activation_bytes(Odd(), torch.zeros(2, 3, 8, 8)) == 0


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the system does not say what is free")
def test_what_is_free() -> None:
    assert 1e6 < (available_bytes() or 0) < 1e15


@pytest.mark.parametrize(
    ("build", "options", "views"),
    [(simclr, {}, 16), (moco, {}, 8), (moco, {"symmetric": True}, 16), (simclr, {"chunk_size": 4}, 8)],
)
def test_a_run_that_does_not_fit_is_warned_of(
    build: Any, options: dict[str, Any], views: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100_000)
    with pytest.warns(UserWarning, match=r"a step will keep about .* --model\.chunk_size 16") as said:
        trainer(tmp_path, MemoryCheck()).fit(build(**options), shapes())
    assert f"for the gradients of {views} views" in "".join(str(warning.message) for warning in said)


def test_a_run_that_fits_is_not(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(tmp_path, MemoryCheck()).fit(simclr(), shapes())
    assert not [warning for warning in said if "a step will keep" in str(warning.message)]
