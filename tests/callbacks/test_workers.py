"""Workers of readouts and validation: started once in a run, and gone after it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from runs import shapes, simclr, trainer
from torch.utils.data import DataLoader

from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.features._sharing import first_batches, share_batches
from mmcl_lightning.readouts import KNN, Health


class Workers(Callback):
    """Which processes there are at the end of every epoch, after the readouts."""

    def __init__(self) -> None:
        self.pids: list[set[int | None]] = []

    def on_train_epoch_end(self, *args: Any) -> None:
        self.pids.append({child.pid for child in multiprocessing.active_children()})


def readouts() -> Readouts:
    return Readouts(knn=KNN(k=5), health=Health(images=8, view_images=8))


def test_workers_stay_for_the_run_and_no_longer(tmp_path: Path) -> None:
    workers, before = Workers(), {child.pid for child in multiprocessing.active_children()}
    run = trainer(tmp_path, readouts(), workers, max_epochs=3, limit_val_batches=1.0)
    run.fit(simclr(), shapes(num_workers=1))
    assert len(workers.pids[0] - before) == 5  # training, validation, bank, queries, views
    assert workers.pids[1] == workers.pids[2] == workers.pids[0]
    kept = run.fit_loop.epoch_loop.val_loop  # Lightning's own keeps its loader until the trainer goes
    del kept, run
    alone = trainer(tmp_path, readouts(), max_epochs=1)
    alone.fit(simclr(), shapes())
    numbers = {k: float(v) for k, v in alone.callback_metrics.items() if k.startswith(("knn", "health"))}
    several = trainer(tmp_path, readouts(), max_epochs=1)
    several.fit(simclr(), shapes(num_workers=1))
    assert numbers == {k: float(several.callback_metrics[k]) for k in numbers}
    assert len({child.pid for child in multiprocessing.active_children()} - before) <= 1


def test_workers_go_where_a_run_fails(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_epoch_end(self, *args: Any) -> None:
            raise RuntimeError("no disk")

    part = readouts()
    with pytest.raises(RuntimeError, match="no disk"):
        trainer(tmp_path, part, Fail()).fit(simclr(), shapes(num_workers=1))
    assert part._kept == {}


def test_a_part_of_a_loader_is_made_once() -> None:
    loader = DataLoader(list(range(10)), batch_size=4)  # type: ignore[arg-type]
    part, count = share_batches(loader, limit=5)
    assert share_batches(loader, limit=5)[0] is part
    assert [batch.tolist() for batch in part] == [[0, 2, 4, 6], [8]]
    assert count == 5
    assert [batch.tolist() for batch in share_batches(loader, limit=3)[0]] == [[0, 4, 8]]
    assert [batch.tolist() for batch in first_batches(loader, 5)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    shuffled = DataLoader(list(range(10)), batch_size=10, shuffle=True)  # type: ignore[arg-type]
    orders = [next(iter(share_batches(shuffled, limit=10)[0])).tolist() for _ in range(4)]
    assert len({tuple(order) for order in orders}) > 1  # another order, another loader


def test_a_spawned_worker_needs_no_lightning() -> None:
    code = (
        "import sys, mmcl_lightning.__main__, mmcl_lightning.datamodules.datasets, "
        "mmcl_lightning.datamodules.loading, mmcl_lightning.datamodules.image_files\n"
        "assert 'lightning' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
