"""The progress bar fits a line of 80 columns, and says how long the run will take."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import mmcl, shapes, simclr, trainer

from mmcl_lightning.callbacks import Readouts, Throughput
from mmcl_lightning.callbacks.progress import EpochLines, RichBar, TextBar, progress_bar
from mmcl_lightning.readouts import KNN, Health, LinearProbe


@pytest.mark.parametrize("kind", [RichBar, TextBar])
def test_few_metrics_in_eighty_columns(
    kind: type, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    bar = kind()
    callbacks = [Readouts(knn=KNN(k=5), probe=LinearProbe(), health=Health()), Throughput(), bar]
    run = trainer(tmp_path, *callbacks, max_epochs=2, enable_progress_bar=True, log_every_n_steps=1)
    run.fit(simclr(), shapes())
    captured = capfd.readouterr()
    lines = [line for line in re.split(r"[\r\n]", captured.out + captured.err) if "k-NN" in line]
    assert lines
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", lines[-1]).strip()
    assert all(name in plain for name in ("Epoch 1", "loss", "k-NN", "img/s"))
    assert "rankme" not in plain
    assert len(plain) <= 80


def test_the_time_left_is_that_of_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bar, clock, seen = TextBar(), iter(range(0, 10_000, 10)), []
    monkeypatch.setattr("mmcl_lightning.callbacks.progress.time.monotonic", lambda: float(next(clock)))
    watch = bar.get_metrics
    monkeypatch.setattr(
        bar, "get_metrics", lambda t, m: seen.append((t.global_step, watch(t, m))) or seen[-1][1]
    )
    run = trainer(tmp_path, bar, max_epochs=3, enable_progress_bar=True)
    run.fit(simclr(), shapes())
    total = run.global_step
    # The clock moves 10 s per look, and there is a look per step.
    for step, metrics in seen:
        if "left" in metrics and 0 < step < total:
            minutes, seconds = map(int, metrics["left"].split(":"))
            assert 0 < 60 * minutes + seconds <= 20 * (total - step)
    assert any("left" in metrics for _, metrics in seen)


def test_the_rich_bar_where_rich_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcl_lightning.callbacks.progress.rich_is_installed", lambda: True)
    assert isinstance(progress_bar(), RichBar)
    monkeypatch.setattr("mmcl_lightning.callbacks.progress.rich_is_installed", lambda: False)
    assert isinstance(progress_bar(), TextBar)


def test_lines_where_there_is_no_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 70))  # a look at the start, and one per line
    watch = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr("mmcl_lightning.callbacks.progress.time", watch)
    run = trainer(tmp_path, Readouts(knn=KNN(k=5)), EpochLines(), max_epochs=2)
    run.fit(simclr(), shapes())
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("epoch")]
    assert len(said) == 2
    pattern = r"epoch {} of 2, step {}: loss \d\.\d{{3}}, k-NN 0\.\d{{3}}, left {}"
    assert re.fullmatch(pattern.format(1, 4, "01:10"), said[0])
    assert re.fullmatch(pattern.format(2, 8, "00:00"), said[1])


def test_a_line_repeats_no_accuracy_of_an_earlier_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer(tmp_path, Readouts(knn=KNN(k=5), every_n_epochs=2), EpochLines(), max_epochs=5)
    run.fit(simclr(), shapes())
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("epoch")]
    assert ["k-NN" in line for line in said] == [False, True, False, True, True]
    assert all("loss" in line for line in said)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_time_is_left_at_the_end_of_a_run_with_another_batch_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(tmp_path, max_epochs=1, enable_checkpointing=True).fit(simclr(), shapes())
    (path,) = tmp_path.rglob("*.ckpt")
    run = trainer(tmp_path, EpochLines(), max_epochs=2)
    run.fit(simclr(), shapes(batch_size=16), ckpt_path=path)
    assert run.global_step == 6
    assert [line for line in caplog.messages if line.startswith("epoch")][-1].endswith(", left 00:00")


@pytest.mark.parametrize("bar", [TextBar, RichBar])
def test_a_message_takes_the_line_of_the_bar(bar: Any, tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    logger, screen, file = logging.getLogger("lightning.pytorch"), Terminal(), io.StringIO()
    handlers = [logging.StreamHandler(screen), logging.StreamHandler(file)]
    own = logging.Formatter("%(message)s")
    handlers[0].setFormatter(own)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        trainer(tmp_path, bar(), enable_progress_bar=True).fit(mmcl(), shapes())
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
    assert "\r\x1b[2KMMCL: " in screen.getvalue()
    assert "\x1b" not in file.getvalue()
    assert "MMCL: " in file.getvalue()
    assert handlers[0].formatter is own
