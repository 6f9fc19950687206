"""Puts this folder on the path, so that every test can import ``helpers``, also in spawned processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

# The tensors here are tiny: threads only get in each other's way.
torch.set_num_threads(1)
