"""Results are there whole or not at all, over nothing that was there, and through no link."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from records import record
from runs import simclr, trainer

from mmcl_lightning import _files
from mmcl_lightning._files import free_path, whole_file, whole_text, write_csv
from mmcl_lightning.callbacks.tables import write_table
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules import export_backbone
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.studies import write_report


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint, two pictures and a record of a run."""
    monkeypatch.chdir(tmp_path)
    run = trainer(tmp_path)
    run.strategy.connect(simclr())
    run.save_checkpoint("run.ckpt")
    for name in ("a", "b"):
        Path("photos").mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (200, 10, len(name))).save(f"photos/{name}.png")
    record().write(Path("records/ledger.json"))
    np.savez("h.npz", h=np.eye(4, dtype=np.float32), path=np.array(["a.png", "b.png", "a.png", "b.png"]))
    return tmp_path


@pytest.fixture
def full(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where the disk is full after 100 bytes of any file."""
    take = _files._Raw.write

    def write(self: Any, data: Any) -> int | None:
        if self.tell() >= 100:
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.failed = error
            raise error
        return take(self, memoryview(data)[: 100 - self.tell()])

    monkeypatch.setattr(_files._Raw, "write", write)
    return place


ROWS = {"h": np.zeros((50, 8), np.float32), "path": np.array(["x"] * 50)}
EMBED = ["--checkpoint=run.ckpt", "--data.root=photos", "--data.image_size=16", "--data.num_workers=0"]
QUICK = [
    "--config=quickstart", "--data.train_size=16", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu", "--trainer.logger=false",
]  # fmt: skip
#: What writes results, and how the first file is called.
WRITERS: dict[str, tuple[Callable[[], Any], str]] = {
    "npz": (lambda: write_table(Path("out.npz"), ROWS), "out.npz"),
    "parquet": (lambda: write_table(Path("out.parquet"), ROWS), "out.parquet"),
    "csv": (lambda: write_csv("out.csv", ("a", "b"), [(1, "x" * 99), (2, "y" * 99)]), "out.csv"),
    "report": (lambda: write_report(Path("records"), Path("out.md")), "out.png"),
    "export": (lambda: export_backbone("run.ckpt", "out.pt"), "out.pt"),
    "export, timm's": (lambda: export_backbone("run.ckpt", "out.pt", "torchvision"), "out.pt"),
}
COMMANDS = {
    "embed": (["embed", *EMBED, "--accelerator=cpu", "--out=out.npz"], "out.npz"),
    "predict": (["predict", *QUICK], "representations.npz"),
    "negatives": (["negatives", *QUICK, "--images=4", "--queries=2", "--out=out.png"], "out.png"),
    "neighbours": (["neighbours", "h.npz", "--k=2", "--out=out.csv"], "out.csv"),
    "neighbours' picture": (
        ["neighbours", "h.npz", "--k=2", "--root=photos", "--picture=out.png", "--out=out.csv"], "out."
    ),
    "check-data": (["check-data", "photos", "--out=out.csv", "--workers=1"], "out.csv"),
    "report": (["report", "records", "--out=out.md"], "out.png"),
    "export": (["export", "--checkpoint=run.ckpt", "--out=out.pt"], "out.pt"),
}  # fmt: skip


def results(folder: Path) -> list[str]:
    found = [path.name for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if name.startswith((".", "out", "representations")) or "tmp" in name)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_no_part_of_a_result(name: str, full: Path) -> None:
    write, file = WRITERS[name]
    with pytest.raises(OSError, match="No space left on device") as caught:
        write()
    assert Path(str(caught.value.filename)).name == file
    assert results(full) == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_is_one_sentence_of_every_command(
    name: str, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "check-data":  # more than 100 bytes to say
        for index in range(3):
            shutil.copy("photos/a.png", f"photos/copy_{index}.png")
    arguments, file = COMMANDS[name]
    with pytest.raises(SystemExit):
        main(arguments)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "No space left on device: " in said
    assert file in said
    assert results(full) == []


def test_a_real_full_disk_leaves_no_part_of_a_result(place: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    raw = _files._Raw("/dev/full", "wb")
    with pytest.raises(OSError, match="No space left"):
        raw.write(b"x")
    assert raw.failed is not None
    raw.close()


def test_an_error_of_the_library_is_that_of_the_disk(full: Path) -> None:
    def write() -> None:
        with whole_file("out.bin") as file:
            try:
                file.write(bytes(100_000))
            except OSError:
                raise RuntimeError("unexpected pos 64 vs 0") from None

    with pytest.raises(OSError, match="No space left on device") as caught:
        write()
    assert caught.value.filename == "out.bin"
    assert results(full) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_any_end_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("before")
    with pytest.raises(error), whole_text(tmp_path / "out.txt") as file:  # noqa: PT012
        file.write("half")
        raise error
    assert (tmp_path / "out.txt").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("there", ["victim.txt", "nowhere"])
def test_a_planted_link_is_not_followed(there: str, tmp_path: Path) -> None:
    (tmp_path / "victim.txt").write_text("mine")
    (tmp_path / "out.csv.tmp").symlink_to(tmp_path / there)
    write_csv(tmp_path / "out.csv", ["a"], [[1]])
    assert (tmp_path / "out.csv").read_bytes() == b"a\r\n1\r\n"
    assert not (tmp_path / "out.csv").is_symlink()
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "victim.txt"]


def test_a_link_of_the_name_itself_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "victim.txt").write_text("mine")
    (tmp_path / "out.txt").symlink_to(tmp_path / "victim.txt")
    with whole_text(tmp_path / "out.txt") as file:
        file.write("new")
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert (tmp_path / "out.txt").read_text() == "new"


def special(kind: str) -> Path:
    """Something of the name out.pt that is no file of its own."""
    path = Path("out.pt")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        Path("other.pt").write_bytes(b"mine")
        path.symlink_to("other.pt")
    elif kind == "loop":
        path.symlink_to("out.pt")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "dangling", "folder"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_export_replaces_nothing_but_a_file(kind: str, overwrite: bool, place: Path) -> None:
    path = special(kind)
    before = path.lstat()
    match = "which is never replaced" if overwrite else "out.pt exists: give another path"
    match = "out.pt is a folder" if kind == "folder" else match
    with pytest.raises(ConfigError, match=match):
        export_backbone("run.ckpt", "out.pt", overwrite=overwrite)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    with pytest.raises(ConfigError, match=r"out\.pt exists"):
        free_path("out.pt", "x.pt")


def test_export_overwrites_where_it_is_told_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("run.ckpt", "other.ckpt")
    before = Path("other.ckpt").read_bytes()
    with pytest.raises(SystemExit):
        main(["export", "--checkpoint=run.ckpt", "--out=other.ckpt"])
    assert "error: other.ckpt exists: give another path" in capsys.readouterr().err
    assert Path("other.ckpt").read_bytes() == before
    main(["export", "--checkpoint=run.ckpt", "--out=other.ckpt", "--overwrite"])
    assert "state_dict" not in torch.load("other.ckpt", weights_only=True)
    assert len(read_backbone("other.ckpt").weights) == len(read_backbone("run.ckpt").weights)
    for _ in range(2):  # without a name the first that is free
        main(["export", "--checkpoint=run.ckpt"])
    assert sorted(path.name for path in Path().glob("backbone*")) == ["backbone.pt", "backbone_2.pt"]


def test_a_report_is_written_over_a_report_alone(place: Path) -> None:
    Path("notes.md").write_text("# my notes\n")
    with pytest.raises(ConfigError, match=r"notes\.md exists and is no report of runs"):
        write_report(Path("records"), Path("notes.md"))
    assert Path("notes.md").read_text() == "# my notes\n"
    first = write_report(Path("records"), Path("report.md"))
    assert write_report(Path("records"), Path("report.md")) == first == Path("report.md").read_text()
