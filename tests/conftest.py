"""Puts this folder on the path, so that every test can import ``helpers``, also in spawned processes."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

# The tensors here are tiny: threads only get in each other's way.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files last that start threads of autograd, and the others in the order of their number of tests.

    A process forked after threads have started cannot train: "Unable to handle autograd's threading in
    combination with fork-based multiprocessing". Many tests come first so that no worker is left with them.
    """
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.get_closest_marker("starts_threads") is not None, -tests[item.path]))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is imported by now, for a tenth of the time of all tests."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
