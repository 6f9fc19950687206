"""What only reads ends at once when it is told to, and leaves no file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import TINY, trainer

from mmcl_lightning.cli import main
from mmcl_lightning.modules import PretrainedBackbone, SimCLR

DATA = ["--data.root=photos", "--data.image_size=16", "--data.num_workers=0"]
SHAPES = [
    "--config=quickstart", "--data.train_size=32", "--data.test_size=32", "--data.batch_size=16",
    "--data.eval_batch_size=8", "--data.num_workers=0", "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false",
]  # fmt: skip
EMBED = ["embed", "--checkpoint=run.ckpt", *DATA, "--accelerator=cpu", "--data.eval_batch_size=2"]
COMMANDS = {
    "embed": (EMBED, PretrainedBackbone, "predict_step"),
    "predict": (["predict", *SHAPES, "--readouts.knn=null"], None, "predict_step"),
    "validate": (["validate", *SHAPES], None, "validation_step"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for index in range(6):
        pixels = np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    run = trainer(tmp_path)
    run.strategy.connect(SimCLR(**TINY))
    run.save_checkpoint(tmp_path / "run.ckpt")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
    yield tmp_path
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_ends_it_at_once(
    command: str, number: int, code: int, folder: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from mmcl_lightning.modules import MMCL

    arguments, kind, step = COMMANDS[command]
    kind, calls = kind or MMCL, []
    own: Callable[..., Any] = getattr(kind, step)

    def stopped(self: Any, *args: Any) -> Any:
        calls.append(args)
        os.kill(os.getpid(), number)
        return own(self, *args)

    monkeypatch.setattr(kind, step, stopped)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert (stop.value.code, len(calls)) == (code, 1)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert not [*folder.rglob("*.npz")]
    if number == signal.SIGTERM:
        assert "\nStopped: nothing is written\n" in capfd.readouterr().err
