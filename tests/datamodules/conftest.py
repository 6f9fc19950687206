"""Fake data in the official layouts, and the torchvision classes told of its MD5 sums."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from runs import expect_files, generators
from torchvision.datasets import CIFAR10, CIFAR100, STL10


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The generators of small data sets."""
    return generators("fake_images")


@pytest.fixture(scope="session")
def fake_transfer() -> ModuleType:
    """Those of the transfer sets."""
    return generators("fake_transfer")


@pytest.fixture
def cifar10_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    expect_files(monkeypatch, CIFAR10, fake.write_cifar10(tmp_path))
    return tmp_path


@pytest.fixture
def cifar100_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    expect_files(monkeypatch, CIFAR100, fake.write_cifar100(tmp_path))
    return tmp_path


@pytest.fixture
def stl10_root(tmp_path: Path, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    expect_files(monkeypatch, STL10, fake.write_stl10(tmp_path))
    return tmp_path
