"""Videos in the layout of UCF-101: a few frames of moving squares, as MPEG-4 in AVI."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

CLASSES = ("Archery", "HandstandPushups")


def write_video(path: Path, frames: int, size: tuple[int, int] = (48, 40), seed: int = 0) -> None:
    """Write a video whose frame i is as bright as i says, in steps of 4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 40, (size[1], size[0], 3))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 12
        stream.bit_rate = 4_000_000
        for index in range(frames):
            pixels = np.clip(texture + 3 * index, 0, 255).astype(np.uint8)
            pixels[8:16, index % 30 : index % 30 + 8] = 250
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def write_ucf101(root: Path, groups: int = 5, frames: int = 12) -> list[str]:
    """Write two videos of each group of each class, and the lists; the last group is for testing."""
    names: dict[str, list[str]] = {"train": [], "test": []}
    for label in CLASSES:
        for group in range(1, groups + 1):
            for clip in (1, 2):
                # The official names of this class differ in a capital from its folder.
                name = f"{label}/v_{label.replace('Pushups', 'PushUps')}_g{group:02d}_c{clip:02d}.avi"
                write_video(root / "UCF-101" / name, frames + group, seed=10 * group + clip)
                names["test" if group == groups else "train"].append(name)
    lists = root / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "classInd.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(CLASSES, 1)))
    for split in (1, 2, 3):
        index = {name: CLASSES.index(name.split("/")[0]) + 1 for name in names["train"]}
        (lists / f"trainlist0{split}.txt").write_text("".join(f"{n} {index[n]}\n" for n in names["train"]))
        (lists / f"testlist0{split}.txt").write_text("".join(f"{name}\n" for name in names["test"]))
    return names["train"] + names["test"]
