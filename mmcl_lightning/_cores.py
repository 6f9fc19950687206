"""How many processor cores this process may use."""

from __future__ import annotations

import os

__all__ = ["available_cores"]


def available_cores() -> int:
    """Return the number of cores, those of a container or a job where the system tells them."""
    own = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(own(0)) if own else os.cpu_count() or 1
