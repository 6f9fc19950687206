"""Processes that work for a command."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """Let this process end when the one that started it has ended, even by a signal that it cannot catch.

    A worker of a pool would else wait for work for ever, since every other worker holds the same pipe open.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
