"""Cost of videos on one CPU thread: optical flow, a clip from its file, memory of a clip in training.

    python benchmarks/bench_video.py --root ucf101_3cls_tiny

Prints a table, which stands in ``docs/results/video.md``. Reads the first videos of UCF-101 below the root.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from common import resident_peak, table

from mmcl_lightning._flow import estimator
from mmcl_lightning.datamodules import UCF101DataModule
from mmcl_lightning.datamodules.videos import VideoFile
from mmcl_lightning.models.video import S3D


def command() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder that has UCF-101")
    root = parser.parse_args().root
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    video = VideoFile(str(min((root / "UCF-101").glob("*/*.avi"))))
    frames = [cv2.cvtColor(np.asarray(frame), cv2.COLOR_RGB2GRAY) for frame in video.clips([range(6)])[0]]
    rows = []
    for size in ((160, 120), (320, 240)):
        scaled = [cv2.resize(frame, size) for frame in frames]
        for method in ("tvl1", "dis"):
            made, seconds = estimator(method), []
            for before, after in itertools.pairwise(scaled):
                start = time.perf_counter()
                made.calc(before, after, None)
                seconds.append(time.perf_counter() - start)
            text = f"flow by {method}, a pair of frames of {size[0]} x {size[1]}"
            rows.append([text, f"{1000 * statistics.median(seconds):.0f} ms"])
    data = UCF101DataModule(str(root), num_workers=0, batch_size=8)
    data.setup()
    start = time.perf_counter()
    next(iter(data.train_dataloader()))
    each = (time.perf_counter() - start) / 16
    rows.append(["a clip of 32 frames of 128 pixels, read and augmented", f"{1000 * each:.0f} ms"])
    net = S3D()
    peaks = [
        resident_peak(lambda count=count: net(torch.rand(count, 3, 32, 128, 128)).sum().backward()) or 0
        for count in (1, 3)
    ]
    rows.append(
        ["memory of a clip more, forward and backward", f"{(peaks[1] - peaks[0]) / 2 / 2**30:.2f} GiB"]
    )
    print(table(["what", "cost"], rows))


if __name__ == "__main__":
    command()
