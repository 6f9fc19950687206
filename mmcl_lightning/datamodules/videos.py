"""Videos as items: frames read by PyAV, or pictures of optical flow from a folder."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmcl_lightning._options import check_installed
from mmcl_lightning.datamodules.sources import Source
from mmcl_lightning.errors import DataError

__all__ = ["FLOW_DONE", "FlowFolder", "FlowSource", "VideoFile", "VideoSource"]

FLOW_DONE = "done.txt"  # written last into the folder of a video's flow: by which method it was made
_DIGESTED = 1 << 16  # bytes of a file that tell it from another, beside its length
_MISSING = 0.1  # share of the frames that may be damaged within a video
_ERRORS = (OSError, ValueError, EOFError)  # those of PyAV are of these kinds
_PLAYLISTS = ("concat", "dash", "hls")  # which would open other files


class VideoFile:
    """The frames of a video file; it is opened when frames are asked for, once for all clips of an item.

    Args:
        path: The file.

    Raises:
        ConfigError: If PyAV is not installed.
        DataError: If the file is no video.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with self._open() as (_, stream):
            self._length = int(stream.frames)
        if self._length < 1:  # not every container says it
            self._length = sum(1 for _ in self._decode(0))
        if self._length < 1:
            raise DataError(f"the video {path} has no frames; remove it from the lists")

    def __len__(self) -> int:
        return self._length

    def clips(self, positions: Sequence[Sequence[int]]) -> list[list[Image.Image]]:
        """Return the frames at some positions, for each clip, in mode RGB.

        A frame that is damaged is replaced by the one before it, which is warned of.

        Args:
            positions: Of each clip the positions of its frames, from 0 to the length.

        Raises:
            DataError: If more than a tenth of the frames asked for cannot be decoded: the file is cut off.
        """
        wanted = sorted({position for clip in positions for position in clip})
        found: dict[int, Image.Image] = {}
        left = set(wanted)
        rgb = _converter()
        for position, frame in self._decode(wanted[0]):
            if position in left:
                found[position] = Image.fromarray(rgb(frame, format="rgb24").to_ndarray())
                left.discard(position)
            if not left or position >= wanted[-1]:
                break
        if left:
            self._complain(left, wanted)
        last = found[min(found)] if found else None
        for position in wanted:
            last = found.setdefault(position, last)  # type: ignore[arg-type]
        return [[found[position] for position in clip] for clip in positions]

    def _complain(self, left: set[int], wanted: list[int]) -> None:
        """Say that frames are missing: raise where the video is cut off, warn where it is damaged."""
        decoded = sum(1 for _ in self._decode(0))
        text = f"the video {self.path} has {len(self)} frames by its header, and {decoded} can be decoded"
        if decoded < (1 - _MISSING) * len(self) or len(left) == len(wanted):
            raise DataError(f"{text}: it is cut off; copy it anew or remove it from the lists")
        warnings.warn(f"{text}: a frame that is missing is shown as the one before it", stacklevel=2)

    def _decode(self, first: int) -> Iterator[tuple[int, Any]]:
        """Return positions and frames, from ``first`` or earlier on, as far as they can be decoded.

        Where time stamps count the frames, as in the official files, it begins at the key frame before
        ``first``. Elsewhere they may start anywhere, come in another order or vary, and frames are counted.
        """
        with self._open() as (container, stream):
            counts = _counts_frames(container, stream)
            position = -1
            try:
                if first > 0 and counts:
                    container.seek(first, stream=stream)
                for packet in container.demux(stream):
                    try:
                        frames = packet.decode()
                    except _ERRORS:
                        position += 1  # a frame that is lost
                        continue
                    for frame in frames:
                        position = frame.pts if counts and frame.pts is not None else position + 1
                        yield position, frame
            except _ERRORS:
                return  # the end of what can be read

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        check_installed("a video", "av", "video", "PyAV")
        import av

        try:
            container = av.open(self.path)
        except FileNotFoundError as error:
            raise DataError(
                f"the video {self.path} does not exist: correct the lists, or bring it"
            ) from error
        except _ERRORS as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"the video {self.path} cannot be read ({reason}); repair or remove it"
            ) from error
        with container:
            if container.format.name in _PLAYLISTS:
                raise DataError(
                    f"{self.path} is a list of other files, and no video; remove it from the lists"
                )
            if not container.streams.video:
                raise DataError(f"{self.path} has no video in it; remove it from the lists")
            yield container, container.streams.video[0]


def _converter() -> Any:
    """Return what converts frames to RGB, a new one: PyAV 19 keeps one with threads, which a fork lacks."""
    from av.video.reformatter import VideoReformatter

    return VideoReformatter().reformat


def _counts_frames(container: Any, stream: Any) -> bool:
    """Whether the time stamps of a video are the numbers of its frames: without this no frame is sought."""
    simple = container.format.name == "avi" and not stream.codec_context.has_b_frames
    return bool(simple and not stream.start_time and stream.average_rate * stream.time_base == 1)


class FlowFolder:
    """The pictures of optical flow of a video, ``flow_00001.jpg`` and so on: one fewer than it has frames.

    Args:
        path: The folder.
        video: The video, whose length is compared where it is there; None to compare nothing.

    Raises:
        DataError: If there is no flow, or not that of the video.
    """

    def __init__(self, path: str, video: VideoFile | None = None) -> None:
        self.path = path
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []
        self._files = [name for name in names if name.startswith("flow_") and name.endswith(".jpg")]
        if not self._files:
            raise DataError(f"there is no optical flow in {path}: make it by mmcl flow")
        due = [f"flow_{number:05d}.jpg" for number in range(1, len(self._files) + 1)]
        if self._files != due:
            lost = next(name for name in due if name not in self._files)
            raise DataError(f"{path} lacks {lost}: remove the folder and make it again by mmcl flow")
        if video is not None and len(self._files) != len(video) - 1:
            raise DataError(
                f"{path} has {len(self._files)} pictures of optical flow, and {video.path} has {len(video)} "
                f"frames, which give {len(video) - 1}: remove the folder and make it again by mmcl flow"
            )

    def __len__(self) -> int:
        return len(self._files)

    def clips(self, positions: Sequence[Sequence[int]]) -> list[list[Image.Image]]:
        """Return the pictures at some positions, for each clip, in mode RGB.

        Args:
            positions: Of each clip the positions of its pictures, from 0 to the length.

        Raises:
            DataError: If a picture cannot be read.
        """
        found = {position: self._read(position) for position in {p for clip in positions for p in clip}}
        if len(sizes := {picture.size for picture in found.values()}) > 1:
            raise DataError(
                f"{self.path} has pictures of {' and '.join(f'{w} x {h}' for w, h in sorted(sizes))}"
            )
        return [[found[position] for position in clip] for clip in positions]

    def _read(self, position: int) -> Image.Image:
        path = os.path.join(self.path, self._files[position])
        try:
            with Image.open(path) as file:
                mode = file.mode
                picture: Image.Image = file.convert("RGB")
        except OSError as error:
            raise DataError(
                f"the picture {path} cannot be read ({error}); make it again by mmcl flow"
            ) from error
        if mode != "RGB":
            raise DataError(
                f"the picture {path} is no optical flow: it has no three colours, but mode {mode}"
            )
        return picture


class VideoSource(Source):
    """Videos that are read from their files every time.

    Args:
        root: Folder of the videos.
        names: Their paths below it.
        targets: Class indices, shape ``(N,)``.
        groups: Numbers of the groups that are held out as a whole, shape ``(N,)``.
    """

    def __init__(
        self, root: Path, names: Sequence[str], targets: NDArray[np.int64], groups: NDArray[np.int64]
    ) -> None:
        self.root = root
        self._names = np.array(names, dtype=np.str_)  # one array, which forked workers share
        self.targets, self.groups = targets, groups

    def item(self, index: int) -> Any:
        """Open video ``index``."""
        return VideoFile(self.path(index))

    def digest(self, index: int) -> bytes:
        """Return length and first bytes of a file."""
        path = Path(self.path(index))
        try:
            with path.open("rb") as file:
                return hashlib.sha256(b"%d" % path.stat().st_size + file.read(_DIGESTED)).digest()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})") from error

    def path(self, index: int) -> str:
        """Return the file of video ``index``."""
        return str(self.root / str(self._names[index]))


class FlowSource(VideoSource):
    """Optical flow of videos, in a folder for each.

    Args:
        root: Folder of the flow.
        names: Paths of the videos below their folder.
        targets: Class indices, shape ``(N,)``.
        groups: Numbers of the groups that are held out as a whole, shape ``(N,)``.
        videos: Folder of the videos, whose lengths are compared where they are there.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        targets: NDArray[np.int64],
        groups: NDArray[np.int64],
        videos: Path,
    ) -> None:
        super().__init__(root, [name.removesuffix(".avi") for name in names], targets, groups)
        self.videos = videos

    def item(self, index: int) -> FlowFolder:
        """List the flow of video ``index``."""
        video = self.videos / f"{self._names[index]}.avi"
        return FlowFolder(self.path(index), VideoFile(str(video)) if video.exists() else None)

    def digest(self, index: int) -> bytes:
        """Return the number of pictures and the first one's bytes."""
        folder = FlowFolder(self.path(index))
        first = Path(folder.path, folder._files[0])
        return hashlib.sha256(b"%d" % len(folder) + first.read_bytes()).digest()
