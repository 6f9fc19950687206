"""What strangers wrote, into files, records and names of files, never steers the terminal."""

from __future__ import annotations

import ast
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image
from runs import TINY, trainer

import mmcl_lightning
from mmcl_lightning.callbacks.tables import write_table
from mmcl_lightning.cli import main
from mmcl_lightning.modules import SimCLR

RED, TITLE = "\x1b[31m", "\x1b]0;owned\x07"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for index in range(4):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index}{RED}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, which has no control character but ends of lines."""
    shown = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    return shown


def test_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "h": np.eye(2, dtype=np.float32)[[0, 0, 1]],
        "path": np.array([f"a{RED}.png", f"b{TITLE}.png", "c\n.png"]),
        "split": np.array(["train", f"test{RED}", "train"]),
    }
    write_table(Path("out.npz"), rows)
    main(["neighbours", "out.npz", "--k=1"])
    pair = r"  1.000000 a\x1b[31m.png b\x1b]0;owned\x07.png (train and test\x1b[31m)"
    assert f"\n{pair}\n" in said(capsys)


def test_check_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "photos" / "a" / f"x.{RED}").touch()
    (folder / "photos" / "a" / f"empty{RED}.png").touch()
    with pytest.raises(SystemExit):
        main(["check-data", "photos", "--workers=1"])
    shown = said(capsys)
    assert r"not read: .\x1b[31m: 1" in shown
    assert r"a/empty\x1b[31m.png" in shown


def test_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted((folder / "photos").rglob("*.png"))
    lines = [f"{path.relative_to(folder / 'photos')},a" for path in paths]
    Path("labels.csv").write_text("\n".join(["path,label", *lines, f"gone{TITLE}.png,a"]) + "\n")
    main(["check-data", "photos", "--workers=1", "--data.labels=labels.csv"])
    assert r"gone\x1b]0;owned\x07.png" in said(capsys)


def test_embed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "photos" / "a" / f"empty{RED}.png").touch()
    run = trainer(folder)
    run.strategy.connect(SimCLR(**TINY))
    run.save_checkpoint("run.ckpt")
    main(["embed", "--checkpoint=run.ckpt", "--data.root=photos", "--data.image_size=16",
          "--data.num_workers=0", f"--out=out{RED}.npz", "--accelerator=cpu"])  # fmt: skip
    shown = said(capsys)
    assert r"Wrote out\x1b[31m.npz" in shown
    assert "(4 of 5 images read)" in shown


def test_configurations_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs.yaml").write_text('model: {class_path: "No\\e[31mClass"}\n')
    for arguments in (["fit", "--config=theirs.yaml"], ["neighbours", f"none{RED}.npz"], [f"no{RED}"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert r"\x1b[31m" in said(capsys)


def test_information_and_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main([])  # which sets both up
    with caplog.at_level(logging.INFO):
        rank_zero_info(f"photos{RED}: 3 %d\nof 4")
    assert caplog.messages == ["photos\\x1b[31m: 3 %d\nof 4"]
    own = warnings.formatwarning(f"a{RED}", UserWarning, str(mmcl_lightning.__file__), 1)
    assert own == "warning: a\\x1b[31m\n"
    assert warnings.formatwarning(f"a{RED}\nb", UserWarning, "x.py", 1) == "x.py:1: a\\x1b[31m\nb\n"


def test_nothing_is_printed_elsewhere() -> None:
    package = Path(mmcl_lightning.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert found == {"_text.py"}
