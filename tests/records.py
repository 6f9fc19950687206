"""A record of a run, for the tests of what reads it."""

from __future__ import annotations

from typing import Any

from mmcl_lightning.ledger import Metric, Record


def record(**changes: Any) -> Record:
    """A record of a run of two epochs, with k-NN 0.2, 0.5, 0.4."""
    knn = [[0.0, 0, 0.0, 0.2], [1.0, 10, 30.0, 0.5], [2.0, 20, 60.0, 0.4]]
    options: dict[str, Any] = {
        "status": "finished",
        "method": "MMCL, Exact",
        "config": {"model": {"init_args": {}}, "data": {"init_args": {"batch_size": 8}}},
        "config_hash": "abc",
        "seed": 0,
        "commit": "0123456789abcdef",
        "data": {"class": "ShapesDataModule", "held_out": "test", "fingerprint": {"query": "100 images, 1f"}},
        "protocols": {"knn/top1": "k=20 T=0.07 cosine h"},
        "hardware": {"cpu": "a processor", "cores": 2, "threads": 1, "torch": "2.6"},
        "epochs": 2,
        "steps": 20,
        "seconds": 60.0,
        "images_per_second": 100.0,
        "peak_memory": 2_000_000_000,
        "started": "2026-01-01T00:00:00+00:00",
        "metrics": {"knn/top1": Metric(knn)},
    }
    return Record(**{**options, **changes})
