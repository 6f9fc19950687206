"""Fake data in the official layouts, and the torchvision classes told of its MD5 sums."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from runs import generators
from torchvision.datasets import CIFAR10, CIFAR100, STL10


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The generators of small data sets."""
    return generators("fake_images")


@pytest.fixture(scope="session")
def fake_transfer() -> ModuleType:
    """Those of the transfer sets."""
    return generators("fake_transfer")


def _expect(monkeypatch: pytest.MonkeyPatch, kind: type, sums: dict[str, str]) -> None:
    # The sums are those of the files as written, so torchvision's own check stays in force.
    for name in ("train_list", "test_list"):
        files = [[file, sums[file]] for file, _ in getattr(kind, name)]
        monkeypatch.setattr(kind, name, files)
    if getattr(kind, "meta", None) is not None:
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": sums[kind.meta["filename"]]})


@pytest.fixture
def cifar10_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    _expect(monkeypatch, CIFAR10, fake.write_cifar10(tmp_path))
    return tmp_path


@pytest.fixture
def cifar100_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    _expect(monkeypatch, CIFAR100, fake.write_cifar100(tmp_path))
    return tmp_path


@pytest.fixture
def stl10_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    _expect(monkeypatch, STL10, fake.write_stl10(tmp_path))
    return tmp_path
