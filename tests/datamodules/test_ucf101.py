"""UCF-101 in its official layout: lists, groups, clips, optical flow, and files that are wrong."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from runs import events, mmcl, trainer

from mmcl_lightning._flow import make_flow
from mmcl_lightning.callbacks import OnlineKNN, Readouts, RepresentationWriter, Throughput
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import UCF101DataModule
from mmcl_lightning.datamodules.videos import FlowFolder, VideoFile
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.modules import LinearEvaluation, MoCo
from mmcl_lightning.readouts import KNN, Embedding, Health, LinearProbe, Retrieval, SupportVectorGrid


def _generators() -> ModuleType:
    path = Path(__file__).parents[1] / "data" / "fake_videos.py"
    spec = importlib.util.spec_from_file_location("fake_videos", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAKE = _generators()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ucf")
    FAKE.write_ucf101(root)
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "ucf")
    return tmp_path / "ucf"


def ucf(root: Path, **options: Any) -> UCF101DataModule:
    small = {"clip_frames": 5, "image_size": 32, "batch_size": 4, "eval_batch_size": 3, "num_workers": 0}
    return UCF101DataModule(str(root), **{**small, **options})


def ready(root: Path, **options: Any) -> UCF101DataModule:
    data = ucf(root, **options)
    data.setup()
    return data


class ClipNet(torch.nn.Module):
    """A backbone of clips without batch norm."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.conv(x)).mean(dim=(2, 3, 4))


def test_lists_classes_and_groups(written: Path) -> None:
    data = ready(written)
    assert data.class_names == ["Archery", "HandstandPushups"]
    assert (len(data.splits.pretrain), len(data.splits.query or [])) == (16, 4)
    assert np.bincount(data.splits.pretrain.targets).tolist() == [8, 8]
    assert len(np.unique(data.splits.pretrain.groups)) == 8
    assert data.rows([0])["path"] == ["UCF-101/Archery/v_Archery_g01_c01.avi"]
    held = ready(written, validation_subset=3).splits
    assert (len(held.query or []), len(held.pretrain)) == (4, 12)  # a group of each class
    assert not set(held.query.groups) & set(held.pretrain.groups)  # type: ignore[arg-type, union-attr]
    again = ready(written).fingerprint()
    assert again == data.fingerprint()
    assert again["pretrain"] != again["query"]


def test_batches(written: Path) -> None:
    data = ready(written, eval_clips=2)
    views, targets = next(iter(data.train_dataloader()))
    assert [tuple(view.shape) for view in views] == [(4, 3, 5, 32, 32)] * 2
    assert not torch.equal(*views)
    clean, targets = next(iter(data.test_dataloader()))
    assert [tuple(view.shape) for view in clean] == [(3, 3, 5, 32, 32)] * 2
    assert targets.tolist() == [0, 0, 1]
    assert clean[0].mean() < clean[1].mean()  # frames grow brighter
    one, _ = next(iter(ready(written, task="classify").train_dataloader()))
    assert one.shape == (4, 3, 5, 32, 32)
    again, _ = next(iter(ready(written).train_dataloader()))
    assert all(map(torch.equal, views, again))
    crops = ready(written, eval_clips="all", eval_crops=10, eval_batch_size=1)
    assert [len(found) for found, _ in crops.test_dataloader()] == [10] * 4


def test_frames_are_those_of_their_positions(tmp_path: Path) -> None:
    FAKE.write_video(tmp_path / "a.avi", 40)
    video = VideoFile(str(tmp_path / "a.avi"))
    assert len(video) == 40
    (whole,) = video.clips([range(40)])
    for positions in ([0, 1, 2], [13, 14], [39], [5, 30, 31], [25, 25, 26]):
        (clip,) = video.clips([positions])
        for position, frame in zip(positions, clip, strict=True):
            assert np.array_equal(frame, whole[position]), position
    brightness = [np.asarray(frame)[30:, :, 1].mean() for frame in whole]
    assert np.allclose(np.diff(brightness), 3, atol=1.5)
    two = video.clips([[3, 4], [4, 39]])
    assert np.array_equal(two[0][1], two[1][0])


def test_a_forked_process_reads_what_its_parent_has_read(written: Path) -> None:
    """As workers of a loader do; threads of PyAV do not come along."""
    video = VideoFile(str(next(written.rglob("*.avi"))))
    expected = video.clips([[0, 1]])[0]
    context = multiprocessing.get_context("fork")
    found = context.Queue()

    def read() -> None:
        found.put([np.array(frame) for frame in video.clips([[0, 1]])[0]])

    worker = context.Process(target=read)
    worker.start()
    try:
        frames = found.get(timeout=60)
    finally:
        worker.kill()
    assert all(np.array_equal(frame, np.array(own)) for frame, own in zip(frames, expected, strict=True))


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def test_videos_that_are_no_videos(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    for content in (b"", b"a text", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.avi cannot be read \(.+\); repair or remove it"):
            VideoFile(str(path))
    with pytest.raises(DataError, match="does not exist: correct the lists"):
        VideoFile(str(tmp_path / "b.avi"))


def test_a_video_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    FAKE.write_video(path, 48)
    cut(path, 0.5)
    video = VideoFile(str(path))
    assert len(video) == 48
    assert len(video.clips([[0, 1, 2]])[0]) == 3
    with pytest.raises(
        DataError, match=r"has 48 frames by its header, and \d\d can be decoded: it is cut off"
    ):
        video.clips([range(20, 48)])


def test_a_frame_that_is_damaged_is_replaced_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    FAKE.write_video(path, 48)
    content = bytearray(path.read_bytes())
    starts = [index for index in range(len(content)) if content[index : index + 4] == b"00dc"][:48]
    content[starts[20] + 8 : starts[20] + 12] = bytes(4)  # its first bytes
    path.write_bytes(content)
    video = VideoFile(str(path))
    with pytest.warns(UserWarning, match=r"has 48 frames by its header, and 47 can be decoded"):
        (clip,) = video.clips([range(48)])
    assert len(clip) == 48
    same = [index for index in range(1, 48) if np.array_equal(clip[index], clip[index - 1])]
    assert same == [19]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"split": 4}, "split must be 1, 2 or 3, got 4"),
        ({"modality": "sound"}, "modality must be 'rgb' or 'flow'"),
        ({"clip_frames": 0}, "clip_frames must be an integer >= 1"),
        ({"stride": 0}, "stride must be an integer >= 1"),
        ({"image_size": 31}, "image_size must be an integer >= 32"),
        ({"eval_clips": 0}, "eval_clips must be an integer >= 1"),
        ({"eval_clips": "all"}, "eval_clips is 'all', .* set eval_batch_size to 1, got 3"),
        ({"eval_crops": 5}, "eval_crops must be 1 or 10, got 5"),
    ],
)
def test_options_out_of_range(options: dict, match: str, written: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        ucf(written, **options)


def test_lists_that_are_wrong(root: Path) -> None:
    with pytest.raises(DataError, match=r"trainlist01\.txt does not exist; set --data\.root to the folder"):
        ready(root / "ucfTrainTestlist")
    lists = root / "ucfTrainTestlist"
    train = lists / "trainlist01.txt"
    before = train.read_text()
    train.write_text(before + "Archery/v_Archery_g09_c01.avi 1\n")
    with pytest.raises(DataError, match=r"trainlist01\.txt, line 17: .*g09_c01\.avi does not exist; correct"):
        ready(root)
    train.write_text(before + "Fencing/v_Fencing_g09_c01.avi 3\n")
    with pytest.raises(DataError, match=r"line 17: the class Fencing is not in classInd\.txt"):
        ready(root)
    train.write_text("")
    with pytest.raises(DataError, match="lists no video"):
        ready(root)
    train.write_text(before)
    (lists / "classInd.txt").write_text("1 Archery\n3 HandstandPushups\n")
    with pytest.raises(
        DataError, match=r"classInd\.txt, line 2: expected '2 NAME', got '3 HandstandPushups'"
    ):
        ready(root)


def test_flow_is_made_once_and_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"does not exist; correct the list, or bring it; mmcl flow makes it"):
        ready(root, modality="flow")
    main(["flow", "--root", str(root), "--method", "dis", "--workers", "1"])
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        f"Wrote {root / 'flow'}: 280 pictures of the flow of 20 videos by dis",
        f"next: mmcl fit --config ucf101_mmcl --data.root {root} --data.modality flow",
    ]
    folder = root / "flow" / "Archery" / "v_Archery_g01_c01"
    assert len(list(folder.glob("flow_*.jpg"))) == 12  # of 13 frames
    data = ready(root, modality="flow")
    views, _ = next(iter(data.train_dataloader()))
    assert views[0].shape == (4, 3, 5, 32, 32)
    (folder / "done.txt").unlink()  # as if it had been stopped within this video
    (folder / "flow_00002.jpg").write_bytes(b"half")
    assert "12 pictures of the flow of 1 videos by dis; of 19 it was there" in make_flow(root, "dis")
    with pytest.raises(
        DataError, match="was made by dis: remove it to make it by tvl1, or give --method dis"
    ):
        make_flow(root, "tvl1")
    (folder / "flow_00012.jpg").unlink()
    with pytest.raises(
        DataError, match=r"has 11 pictures of optical flow, and .* has 13 frames, which give 12"
    ):
        data.splits.pretrain.item(0)
    (folder / "flow_00003.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"flow_00003\.jpg cannot be read"):
        FlowFolder(str(folder)).clips([[2]])


def test_flow_has_the_direction_of_what_moves(tmp_path: Path) -> None:
    video = tmp_path / "UCF-101" / "Archery" / "v_Archery_g01_c01.avi"
    rng = np.random.default_rng(0)
    texture = np.kron(rng.integers(60, 200, (20, 20)), np.ones((8, 8)))  # blocks of 8 pixels
    video.parent.mkdir(parents=True)
    with av.open(str(video), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 64, "yuv420p", 8_000_000
        for index in range(4):  # the camera moves so that the picture goes 2 to the left and 1 down
            part = texture[40 - index : 104 - index, 20 + 2 * index : 84 + 2 * index]
            pixels = np.repeat(part.astype(np.uint8)[..., None], 3, axis=2)
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            ):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    for method in ("dis", "tvl1"):
        shutil.rmtree(tmp_path / "flow", ignore_errors=True)
        make_flow(tmp_path, method)  # type: ignore[arg-type]
        picture = Image.open(tmp_path / "flow" / "Archery" / video.stem / "flow_00002.jpg").convert("RGB")
        red, vertical, horizontal = np.asarray(picture)[16:48, 16:48].reshape(-1, 3).mean(0)
        assert red == pytest.approx(128, abs=2)
        assert (horizontal - 127.5) / 6.375 == pytest.approx(-2, abs=0.4), method
        assert (vertical - 127.5) / 6.375 == pytest.approx(1, abs=0.4), method


def test_every_part_works_on_clips(written: Path, tmp_path: Path) -> None:
    readouts = Readouts(
        knn=KNN(k=5), retrieval=Retrieval(ks=(1, 5)), probe=LinearProbe(), health=Health(8, 4),
        support_vectors=SupportVectorGrid(images=4, queries=2), embedding=Embedding(4),
    )  # fmt: skip
    run = trainer(tmp_path, readouts, Throughput(), max_epochs=1, log=True, log_every_n_steps=1)
    module = mmcl(backbone=ClipNet(), chunk_size=3)
    run.fit(module, ready(written))
    found = set(run.callback_metrics)
    assert {"knn/top1", "retrieval/R1", "retrieval/R5", "probe/top1", "health/rankme_h"} <= found
    assert "time/images_per_second" in found
    tags = events(tmp_path).Tags()
    assert "svm/support_vectors" in tags["images"]
    writer = RepresentationWriter(path=str(tmp_path / "rows.npz"))
    run = trainer(tmp_path, writer)
    run.predict(module, ready(written, predict_split="test"))
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["h"].shape == (4, 8)
        assert rows["class"].tolist() == ["Archery"] * 2 + ["HandstandPushups"] * 2


def test_a_run_is_resumed_bit_by_bit(written: Path, tmp_path: Path) -> None:
    def run(epochs: int, path: str | None = None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module, one = mmcl(backbone=ClipNet()), trainer(tmp_path, max_epochs=epochs)
        one.fit(module, ucf(written), ckpt_path=path)
        one.save_checkpoint(tmp_path / "end.ckpt")
        return module.state_dict()

    whole = run(2)
    run(1)
    resumed = run(2, str(tmp_path / "end.ckpt"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_moco_and_the_probe_of_videos(written: Path, tmp_path: Path) -> None:
    module = MoCo(backbone=ClipNet(), queue_size=16, chunk_size=2, lr_schedule="step", lr_steps=[1])
    run = trainer(tmp_path, OnlineKNN(k=5), max_epochs=2)
    run.fit(module, ucf(written))
    run.save_checkpoint(tmp_path / "run.ckpt")
    probe = LinearEvaluation(str(tmp_path / "run.ckpt"), protocol="coclr", backbone=ClipNet())
    run = trainer(tmp_path, max_epochs=2, limit_val_batches=1.0)
    run.fit(probe, ucf(written, task="classify", batch_size=8))
    assert isinstance(probe.feature_norm, torch.nn.BatchNorm1d)
    assert not torch.equal(probe.feature_norm.weight, torch.ones(8))
    again = LinearEvaluation.load_from_checkpoint
    run.save_checkpoint(tmp_path / "probe.ckpt")
    loaded = again(tmp_path / "probe.ckpt", backbone=ClipNet())
    h = torch.randn(4, 8)
    assert torch.equal(loaded.eval().scores(h), probe.eval().scores(h))
    ten = run.test(probe, ucf(written, task="classify", eval_crops=10, eval_clips=2), verbose=False)
    assert 0 <= ten[0]["linear/top1"] <= 1


def test_without_the_extra_it_says_what_to_install(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        ConfigError, match=r'UCF101DataModule needs PyAV: pip install "mmcl-lightning\[video\]"'
    ):
        ready(written)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r'mmcl flow needs OpenCV: pip install "mmcl-lightning\[flow\]"'):
        make_flow(written)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.avi", {}),
        ("b.avi", {"codec": "mpeg4", "bf": 2}),
        ("c.mkv", {"codec": "mpeg4", "late": 125}),
        ("d.mp4", {"codec": "mpeg4", "late": 125}),
        ("e.mkv", {"codec": "mpeg4", "step": 3}),
        ("f.mpg", {"codec": "mpeg1video"}),
        ("g.ts", {"codec": "mpeg2video", "bf": 2}),
    ],
)
def test_frames_of_any_file_are_those_that_are_asked_for(name: str, options: dict, tmp_path: Path) -> None:
    """Time stamps may begin anywhere, vary, and come in another order than the frames."""
    given = {"codec": "mpeg4", "bf": 0, "late": 0, "step": 1, **options}
    with av.open(str(tmp_path / name), "w") as container:
        stream = container.add_stream(given["codec"], rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 48, 40, "yuv420p", 6
        stream.bit_rate, stream.codec_context.max_b_frames = 4_000_000, given["bf"]
        for index in range(20):
            frame = av.VideoFrame.from_ndarray(np.full((40, 48, 3), 12 * index, np.uint8), format="rgb24")
            frame.pts = given["late"] + index * (given["step"] if index > 9 else 1)
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    video = VideoFile(str(tmp_path / name))
    assert len(video) == 20
    for positions in (range(20), range(2, 10), range(12, 20), [19], [0]):
        (clip,) = video.clips([positions])
        levels = [round(float(np.asarray(frame).mean()) / 12) for frame in clip]
        assert levels == list(positions), positions


def test_files_that_end_early_or_name_others_are_sentences(tmp_path: Path) -> None:
    FAKE.write_video(tmp_path / "whole.mp4", 20)
    content = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "a.avi").write_bytes(content[:-300])
    with pytest.raises(DataError, match=r"a\.avi"):
        VideoFile(str(tmp_path / "a.avi")).clips([range(20)])
    (tmp_path / "b.avi").write_text("ffconcat version 1.0\nfile whole.mp4\n")
    with pytest.raises(DataError, match=r"b\.avi (is a list of other files|cannot be read)"):
        VideoFile(str(tmp_path / "b.avi")).clips([range(5)])


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("Archery/v_Archery_g01_c01.avi 1", r"line 17: .*_g01_c01\.avi stands in the list twice"),
        ("Archery/v_Archery_g05_c01.avi 2", "line 17: Archery is number 1 in classInd.txt, and 2 here"),
        ("Archery/../HandstandPushups/v_HandstandPushUps_g05_c01.avi 1", r"expected CLASS/NAME\.avi"),
        ("/etc/v_Archery_g05_c01.avi", r"expected CLASS/NAME\.avi"),
        ("Archery 1", r"expected CLASS/NAME\.avi"),
    ],
)
def test_lines_that_are_wrong(line: str, match: str, root: Path) -> None:
    path = root / "ucfTrainTestlist" / "trainlist01.txt"
    path.write_text("\ufeff" + path.read_text().replace(" ", "\t") + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=match):
        ready(root)


def test_videos_of_both_lists_are_said(root: Path) -> None:
    lists = root / "ucfTrainTestlist"
    with (lists / "testlist01.txt").open("a") as file:
        file.write("Archery/v_Archery_g01_c01.avi\n")
    with pytest.warns(
        UserWarning, match=r"1 of 5 test videos are training videos too, such as .*g01_c01\.avi"
    ):
        ready(root)
    (lists / "classInd.txt").write_text("\u00b2 Archery\n")
    with pytest.raises(DataError, match="line 1: expected '1 NAME'"):
        ready(root)


def test_flow_that_is_not_of_one_piece(root: Path) -> None:
    make_flow(root, "dis")
    folder = root / "flow" / "Archery" / "v_Archery_g01_c01"
    (folder / "done.txt").write_text("tvl1\n")
    with pytest.raises(DataError, match="the optical flow is of several methods, dis and tvl1"):
        ready(root, modality="flow")
    (folder / "done.txt").unlink()
    shutil.rmtree(root / "UCF-101")
    with pytest.warns(UserWarning, match=r"1 of 20 folders of optical flow have no done\.txt"):
        data = ready(root, modality="flow")
    Image.new("RGB", (20, 10)).save(folder / "flow_00002.jpg")
    with pytest.raises(DataError, match="has pictures of 20 x 10 and 48 x 40"):
        data.splits.pretrain.item(0).clips([[0, 1]])
    Image.new("L", (48, 40)).save(folder / "flow_00002.jpg")
    with pytest.raises(DataError, match="it has no three colours, but mode L"):
        data.splits.pretrain.item(0).clips([[0, 1]])
    (folder / "flow_00002.jpg").rename(folder / "flow_00099.jpg")
    with pytest.raises(DataError, match=r"lacks flow_00002\.jpg: remove the folder"):
        data.splits.pretrain.item(0)
    with pytest.raises(ConfigError, match="method must be 'tvl1' or 'dis'"):
        make_flow(root, "xx")  # type: ignore[arg-type]
