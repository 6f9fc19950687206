"""``mmcl flow``: the optical flow of a folder of videos, as pictures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmcl_lightning._cores import available_cores
from mmcl_lightning._next import say_next
from mmcl_lightning._options import check_choice, check_installed, check_whole
from mmcl_lightning._processes import end_with_parent
from mmcl_lightning._text import say
from mmcl_lightning.datamodules.videos import FLOW_DONE, VideoFile
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["estimator", "flow", "make_flow"]

_BOUND = 20.0  # pixels a frame; what moves faster is clipped, as in the paper's baseline


def flow(arguments: list[str]) -> None:
    """Run ``mmcl flow``.

    Args:
        arguments: What stands after ``flow`` on the command line.
    """
    parser = argparse.ArgumentParser(
        prog="mmcl flow",
        description="Write the optical flow of all videos of ROOT/UCF-101 to ROOT/flow, a picture for every "
        "two frames. What is there already is not made again, so the command can be stopped and repeated.",
    )
    parser.add_argument("--root", required=True, metavar="PATH", help="folder that has UCF-101")
    parser.add_argument(
        "--method", choices=("tvl1", "dis"), default="tvl1", help="TV-L1, or DIS, some fifty times as fast"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")
    options = parser.parse_args(arguments)
    if options.workers is not None:
        check_whole(1, workers=options.workers)
    workers = options.workers or available_cores()
    say(make_flow(Path(options.root), options.method, workers))
    say_next("flow", root=options.root)


def make_flow(root: Path, method: Literal["tvl1", "dis"] = "tvl1", workers: int = 1) -> str:
    """Write the optical flow of the videos of a folder.

    The horizontal and the vertical flow u and v are clipped to 20 pixels a frame and rounded to 256 levels; a
    picture has (128, v, u) in red, green and blue. Source: the flow that the paper's baseline CoCLR was
    trained on.

    Args:
        root: Folder with ``UCF-101/CLASS/NAME.avi``; the pictures are written to
            ``flow/CLASS/NAME/flow_00001.jpg`` and so on.
        method: ``"tvl1"`` (Zach et al., 2007), an eighth of a second a frame of 160 x 120 pixels, or
            ``"dis"`` (Kroeger et al., ECCV 2016), a few milliseconds.
        workers: Processes.

    Returns:
        What was done, in words.

    Raises:
        ConfigError: If OpenCV or PyAV is not installed.
        DataError: If there is no video, or some cannot be read; the others are done.
    """
    check_choice("method", method, ("tvl1", "dis"))
    _opencv()
    videos = sorted((root / "UCF-101").glob("*/*.avi"))
    if not videos:
        raise DataError(f"there is no video UCF-101/CLASS/NAME.avi in {root}: set --root to the folder above")
    todo = {video: target for video in videos if not _is_done(target := _folder(root, video), method)}
    failed, pictures = [], 0
    with ProcessPoolExecutor(max_workers=workers, initializer=end_with_parent) as pool:
        jobs = {pool.submit(_write, str(video), str(target), method): video for video, target in todo.items()}
        for number, job in enumerate(as_completed(jobs), 1):
            try:
                pictures += job.result()
            except DataError as error:
                failed.append(str(error))
            say(f"{number} of {len(jobs)}: {jobs[job].name}")
    if failed:
        raise DataError(f"{len(failed)} of {len(todo)} videos have no flow: {'; '.join(failed[:3])}")
    there = f"; of {len(videos) - len(todo)} it was there" if len(todo) < len(videos) else ""
    return f"Wrote {root / 'flow'}: {pictures} pictures of the flow of {len(todo)} videos by {method}{there}"


def _folder(root: Path, video: Path) -> Path:
    return root / "flow" / video.parent.name / video.stem


def _is_done(folder: Path, method: str) -> bool:
    """Whether the flow of a video is whole.

    Raises:
        DataError: If it was made by another method.
    """
    mark = folder / FLOW_DONE
    if not mark.exists():
        return False
    made = mark.read_text().strip()
    if made != method:
        raise DataError(
            f"{folder} was made by {made}: remove it to make it by {method}, or give --method {made}"
        )
    return True


def _write(video: str, folder: str, method: Literal["tvl1", "dis"]) -> int:
    """Write the flow of one video; return the number of pictures."""
    cv2 = _opencv()
    cv2.setNumThreads(1)
    found = VideoFile(video)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("flow_*.jpg"):  # of a run that was stopped
        old.unlink()
    estimate, count = estimator(method), 0
    for before, after in _pairs(found):
        u, v = np.moveaxis(estimate.calc(before, after, None), 2, 0)
        pixels = np.stack([_level(u), _level(v), np.full(u.shape, 128.0)], axis=2).astype(np.uint8)
        count += 1
        if not cv2.imwrite(str(place / f"flow_{count:05d}.jpg"), pixels):  # blue comes first
            raise DataError(f"{place / f'flow_{count:05d}.jpg'} cannot be written: is the disk full?")
    if not count:
        place.rmdir()
        raise DataError(f"{video} has one frame, and no flow")
    (place / FLOW_DONE).write_text(f"{method}\n")
    return count


def _level(part: np.ndarray) -> np.ndarray:
    """Return 256 levels of flow between -20 and 20 pixels; none lies between 127 and 128."""
    levels: np.ndarray = np.round((np.clip(part, -_BOUND, _BOUND) + _BOUND) * (255 / (2 * _BOUND)))
    return levels


def _pairs(video: VideoFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return every two frames that follow each other, in gray."""
    cv2 = _opencv()
    last = None
    for start in range(0, len(video), 64):
        positions = range(start, min(start + 64, len(video)))
        for frame in video.clips([list(positions)])[0]:
            gray = cv2.cvtColor(np.asarray(frame), cv2.COLOR_RGB2GRAY)
            if last is not None:
                yield last, gray
            last = gray


def estimator(method: Literal["tvl1", "dis"]) -> Any:
    """Return what has ``calc(before, after, None)``, from two gray frames to their flow ``(H, W, 2)``.

    Args:
        method: As of :func:`make_flow`.
    """
    cv2 = _opencv()
    if method == "dis":
        return cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return cv2.optflow.DualTVL1OpticalFlow_create()


def _opencv() -> Any:
    check_installed("mmcl flow", "cv2", "flow", "OpenCV")
    import cv2

    if not hasattr(cv2, "optflow"):
        raise ConfigError(
            "mmcl flow needs OpenCV with its contributed modules, and the one without is installed: remove "
            'opencv-python-headless, then pip install "mmcl-lightning[flow]"'
        )
    return cv2
