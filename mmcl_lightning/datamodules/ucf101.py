"""UCF-101 from its official files: videos, or their optical flow."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from PIL import ImageOps

from mmcl_lightning._options import check_choice, check_installed, check_whole
from mmcl_lightning.datamodules.base import SSLDataModule
from mmcl_lightning.datamodules.splits import Splits
from mmcl_lightning.datamodules.videos import FLOW_DONE, FlowSource, VideoSource
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform, SimCLRTransform
from mmcl_lightning.transforms.video import (
    ClipViews,
    EvalClips,
    FlowTransform,
    RandomClip,
    mirror_flow,
)

__all__ = ["UCF101DataModule"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as CoCLR has it, for flow too
_GROUP = re.compile(r"_g(\d+)_c\d+$")
#: A line of a list: class and file, and in training lists the number of the class.
_LINE = re.compile(r"([^/\\]+)/([^/\\]+\.avi)(?:\s+(\d+))?", re.IGNORECASE | re.ASCII)
_LARGEST_CLASS = 1000  # groups of a class have numbers below


class UCF101DataModule(SSLDataModule):
    """UCF-101 (Soomro et al., 2012): 13,320 videos of 101 actions, in three splits into training and test.

    Views are those of the paper's baseline, see :class:`~mmcl_lightning.transforms.video.ClipViews`; to
    classify, one random clip under crop, flip and, with probability 0.3, other colours. Test videos give the
    validation loss and the queries, training videos the bank. ``validation_subset`` holds out whole groups of
    training videos, which show one person in one place.

    Batch:
        ``(views, targets)``, views two float32 tensors ``(B, 3, clip_frames, image_size, image_size)``,
        normalised; targets int64. Where videos are judged a list of ``eval_clips * eval_crops`` such tensors
        takes the place of one view, and the mean over them is what counts.

    Args:
        root: Data root with ``UCF-101/CLASS/v_*.avi`` and ``ucfTrainTestlist/``; optical flow lies in
            ``flow/CLASS/v_*/flow_00001.jpg`` and so on, as ``mmcl flow`` makes it.
        split: Which of the official splits: 1, 2 or 3.
        modality: ``"rgb"``, or ``"flow"`` for optical flow.
        clip_frames: Frames of a clip; a shorter video is padded by its first frame.
        stride: From one frame of a clip to the next, in frames of the video.
        image_size: Height and width of a clip in pixels, at least 32.
        eval_clips: Clips of a video that is judged, evenly spaced; ``"all"`` for one every 15 frames, which
            needs ``eval_batch_size`` 1.
        eval_crops: 1 for the centre of each; 10 for centre and corners, and the same mirrored.
        **kwargs: Batch sizes, workers, subsets, seed and transforms: see :class:`SSLDataModule`.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: From ``setup``, if a list or a video is missing; while it runs, if a video cannot be read.
    """

    items = "videos"

    def __init__(
        self,
        root: str = "data",
        split: Literal[1, 2, 3] = 1,
        modality: Literal["rgb", "flow"] = "rgb",
        clip_frames: int = 32,
        stride: int = 1,
        image_size: int = 128,
        eval_clips: int | Literal["all"] = 3,
        eval_crops: Literal[1, 10] = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("split", split, (1, 2, 3))
        check_choice("modality", modality, ("rgb", "flow"))
        check_choice("eval_crops", eval_crops, (1, 10))
        check_whole(1, clip_frames=clip_frames, stride=stride)
        check_whole(32, image_size=image_size)
        if eval_clips != "all":
            check_whole(1, eval_clips=eval_clips)
        elif self.eval_batch_size > 1:
            raise ConfigError(
                f"eval_clips is 'all', which are more of a longer video: set eval_batch_size to 1, got "
                f"{self.eval_batch_size}"
            )
        self.root = root
        self.split = split
        self.modality = modality
        self.clip_frames = clip_frames
        self.stride = stride
        self.image_size = image_size
        self.eval_clips = eval_clips
        self.eval_crops = eval_crops

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of ``classInd.txt``."""
        return list(self._classes)

    @functools.cached_property
    def _classes(self) -> dict[str, int]:
        """Indices of the classes by name; the file counts from 1."""
        path = self._lists / "classInd.txt"
        found: dict[str, int] = {}
        for number, line in _lines(path):
            index, _, name = (part.strip() for part in line.replace("\t", " ").partition(" "))
            if index != str(len(found) + 1) or not name or name in found:
                raise DataError(f"{path}, line {number}: expected '{len(found) + 1} NAME', got {line!r}")
            found[name] = len(found)
        return found

    def load_splits(self) -> Splits:
        """Read the lists, and look for every file of them."""
        if self.modality == "rgb":
            check_installed("UCF101DataModule", "av", "video", "PyAV")
        train, test = self._list("train"), self._list("test")
        own, held = ({source.path(index) for index in range(len(source))} for source in (train, test))
        if both := sorted(own & held):
            rank_zero_warn(
                f"{len(both)} of {len(held)} test videos are training videos too, such as {both[0]}: their "
                "accuracy says nothing; correct the lists"
            )
        if self.modality == "flow":
            self._check_flow([*own, *held])
        return Splits(pretrain=train, heldout=test, bank=train, query=test)

    def default_train_transform(self) -> Any:
        """Return CoCLR's two views of a video, or a random clip to classify."""
        augment = functools.partial(
            SimCLRTransform,
            self.image_size,
            crop_scale=(0.2, 1.0),
            interpolation="bicubic",
            mean=_MEAN,
            std=_STD,
        )
        if self.modality == "flow":
            full: Any = FlowTransform(self.image_size, mean=_MEAN, std=_STD)
            plain: Any = full
            classify: Any = full
        else:
            full = augment(blur_kernel=_blur(self.image_size))
            plain = augment(cj_prob=0.0, gray_prob=0.0, blur_prob=0.0)
            classify = augment(cj_prob=0.3, gray_prob=0.0, blur_prob=0.0)
        if self.task == "classify":
            return RandomClip(classify, self.clip_frames, self.stride)
        return ClipViews(full, plain, self.clip_frames, self.stride)

    def default_eval_transform(self) -> Any:
        """Return the clips of a video that are judged."""
        frame = EvalTransform(self.image_size, self.image_size, _MEAN, _STD)
        mirror = mirror_flow if self.modality == "flow" else ImageOps.mirror
        return EvalClips(frame, self.clip_frames, self.stride, self.eval_clips, self.eval_crops, mirror)

    def _check_flow(self, folders: list[str]) -> None:
        """Refuse flow of several methods; say where nothing tells that the flow of a video is whole."""
        marks = {folder: Path(folder, FLOW_DONE) for folder in folders}
        methods = {folder: mark.read_text().strip() for folder, mark in marks.items() if mark.is_file()}
        if len(kinds := sorted(set(methods.values()))) > 1:
            one = next(folder for folder, method in methods.items() if method == kinds[0])
            raise DataError(
                f"the optical flow is of several methods, {' and '.join(kinds)} ({one} by {kinds[0]}): "
                "remove the folders of one and make them again by mmcl flow"
            )
        videos = Path(self.root).expanduser() / "UCF-101"
        unknown = len(folders) - len(methods)
        if unknown and not videos.is_dir():
            rank_zero_warn(
                f"{unknown} of {len(folders)} folders of optical flow have no {FLOW_DONE} of mmcl flow, and "
                "the videos are not there to compare their lengths with: whether they are whole is not known"
            )

    @property
    def _lists(self) -> Path:
        return Path(self.root).expanduser() / "ucfTrainTestlist"

    def _list(self, part: str) -> VideoSource:
        """Return the videos of a list."""
        path, folder = self._lists / f"{part}list{self.split:02d}.txt", Path(self.root).expanduser()
        videos, flow = folder / "UCF-101", folder / "flow"
        names, targets, groups, seen = [], [], [], set()
        for number, line in _lines(path):
            found = _LINE.fullmatch(line)
            label, name = (found[1], f"{found[1]}/{found[2]}") if found else ("", "")
            where = f"{path}, line {number}"
            if found is None:
                raise DataError(
                    f"{where}: expected CLASS/NAME.avi, in the training list with a number, got {line!r}"
                )
            if label not in self._classes:
                raise DataError(f"{where}: the class {label} is not in classInd.txt")
            target = self._classes[label]
            if found[3] and int(found[3]) != target + 1:
                raise DataError(
                    f"{where}: {label} is number {target + 1} in classInd.txt, and {found[3]} here"
                )
            if name in seen:
                raise DataError(f"{where}: {name} stands in the list twice; keep one")
            place = videos / name if self.modality == "rgb" else flow / name.removesuffix(".avi")
            if not place.exists():
                made = "; mmcl flow makes it" if self.modality == "flow" else ""
                raise DataError(f"{where}: {place} does not exist; correct the list, or bring it{made}")
            group = _GROUP.search(name.removesuffix(".avi"))
            targets.append(target)
            # A name without a group stands for itself.
            groups.append(_LARGEST_CLASS * target + int(group[1]) if group else -1 - number)
            names.append(name)
            seen.add(name)
        if not names:
            raise DataError(f"{path} lists no video")
        known = np.array(targets, dtype=np.int64), np.array(groups, dtype=np.int64)
        if self.modality == "flow":
            return FlowSource(flow, names, *known, videos=videos)
        return VideoSource(videos, names, *known)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of a list that are not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise DataError(
            f"UCF-101: {path} {reason}; set --data.root to the folder that has UCF-101 and ucfTrainTestlist"
        ) from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _blur(size: int) -> int:
    """Return an odd width of the blur that reaches three standard deviations of at most 2 pixels."""
    return min(13, size - 1 + size % 2)
