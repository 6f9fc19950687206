"""The report as one page, and its pictures of training: nothing beside it, nothing from elsewhere."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from records import record
from torch.utils.tensorboard import SummaryWriter

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Metric
from mmcl_lightning.studies import write_report
from mmcl_lightning.studies.pictures import NEGATIVES, latest_negatives


def watched(**changes: Any) -> Any:
    def curve(*values: float) -> Metric:
        return Metric([[float(i), 10 * i, 60.0 * i, value] for i, value in enumerate(values)])

    metrics = {
        "knn/top1": curve(0.1, 0.3, 0.4), "train/loss": curve(5.0, 4.0, 3.0),
        "health/rankme_h": curve(20.0, 30.0, 31.0), "health/std_h": curve(0.1, 0.1, 0.1),
    }  # fmt: skip
    return record(metrics=metrics, **changes)


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def pictures(self) -> list[Image.Image]:
        head = "data:image/png;base64,"
        assert all(source.startswith(head) for source in self.sources)
        return [Image.open(io.BytesIO(base64.b64decode(source[len(head) :]))) for source in self.sources]


def test_a_page_has_everything_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched(label="<script>x</script>").write(tmp_path / "a" / "ledger.json")
    out = tmp_path / "made" / "my report.html"
    main(["report", str(tmp_path), "--out", str(out), "--title", "A & B"])
    assert f"next: open '{out}' in a browser" in capsys.readouterr().out
    page = Page(out)
    assert [path.name for path in out.parent.iterdir()] == ["my report.html"]
    assert len(page.pictures()) == 2, "accuracies; loss and health"
    assert all(picture.width > 300 for picture in page.pictures())
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert {"table", "h1", "h2", "h3", "style"} <= set(page.tags)
    assert {"A & B", "<script>x</script>", "0.400"} <= set(page.texts)
    assert "prefers-color-scheme: dark" in out.read_text()
    main(["report", str(tmp_path), "--out", str(out)])  # its own report is written anew
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match="exists and is no report of runs"):
        write_report(tmp_path, tmp_path / "mine.html")


def test_page_and_markdown_say_the_same(tmp_path: Path) -> None:
    watched().write(tmp_path / "ledger.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert write_report(tmp_path, tmp_path / "r.html") == text
    assert "![loss and health of the representations against epochs](r_health.png)" in text
    assert "A rank near 1 or a spread near 0 is a collapse" in text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["r.png", "r_health.png"]


def test_without_a_curve_that_moves_nothing_was_watched(tmp_path: Path) -> None:
    record().write(tmp_path / "ledger.json")
    assert "### Training and health" not in write_report(tmp_path, tmp_path / "r.md")
    assert not (tmp_path / "r_health.png").exists()


def log_negatives(folder: Path, *levels: int) -> None:
    with SummaryWriter(str(folder)) as board:
        for step, level in enumerate(levels):
            picture = np.full((20, 30, 3), level, np.uint8)
            board.add_image(NEGATIVES, picture, 10 * step, dataformats="HWC")


def test_the_latest_negatives_of_a_run_are_shown_wherever_its_copy_lies(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "seed 0"
    watched().write(run / "ledger.json")
    watched(label="ours").write(tmp_path / "ledger" / "ours.json")  # as a study files it
    log_negatives(run, 50, 100, 200)
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "### Negatives that count\n\n![negatives of ours](r_negatives.png)\n\nours, step 20.\n" in text
    with Image.open(tmp_path / "r_negatives.png") as picture:
        assert (picture.size, picture.getpixel((5, 5))) == ((30, 20), (200, 200, 200))


def test_of_many_methods_four_are_shown(tmp_path: Path) -> None:
    for index in range(6):
        folder = tmp_path / str(index)
        watched(label=f"m{index}", config_hash=str(index), config={"C": index}).write(folder / "ledger.json")
        if index:
            log_negatives(folder, 10 * index)
    text = write_report(tmp_path, tmp_path / "r.md")
    assert text.count("![negatives of m") == 4
    assert "1 more methods have such a picture in TensorBoard." in text
    assert (tmp_path / "r_negatives_4.png").is_file()


def test_a_log_that_is_none_is_passed_over(tmp_path: Path) -> None:
    assert latest_negatives(tmp_path) is None
    (tmp_path / "events.out.tfevents.1.x").write_bytes(b"\x00garbage" * 50)
    assert latest_negatives(tmp_path) is None
