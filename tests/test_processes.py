"""Processes of a command end with it, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

POOL = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from mmcl_lightning._processes import end_with_parent

pool = ProcessPoolExecutor(2, multiprocessing.get_context("fork"), end_with_parent)
for work in [pool.submit(time.sleep, 0.1) for _ in range(4)]:
    work.result()
print(*pool._processes, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"  # Z: ended
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a pool of forks")
def test_workers_of_a_killed_command_end() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True, env=environment
    ) as command:
        assert command.stdout is not None
        workers = [int(pid) for pid in command.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(alive, workers))
        command.kill()
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
