"""What a command line adds to a recipe, and what it says where that is not there."""

from __future__ import annotations

import importlib.util
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import complaint

from mmcl_lightning import _trainer_cli
from mmcl_lightning.callbacks import ResumableCheckpoint, Throughput
from mmcl_lightning.cli import main
from mmcl_lightning.models import build_backbone

TINY = [
    "--config=quickstart", "--data.train_size=32", "--data.test_size=16", "--data.batch_size=16",
    "--data.num_workers=0", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--readouts.knn=null",
    "--trainer.enable_model_summary=false",
]  # fmt: skip


def test_a_given_checkpoint_callback_takes_the_place_of_the_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Any] = []
    monkeypatch.setattr(_trainer_cli, "keep_files_whole", lambda trainer: made.append(trainer))
    given = "--trainer.callbacks+=ResumableCheckpoint"
    main(["fit", *TINY, given, "--trainer.callbacks.train_time_interval=00:05:00"])
    saving = [c for c in made[0].callbacks if isinstance(c, ResumableCheckpoint)]
    assert [callback._interval for callback in saving] == [timedelta(minutes=5)]
    assert len([*tmp_path.rglob("last*.ckpt")]) == 1


def test_others_stay() -> None:
    own, other, best = Throughput(), ResumableCheckpoint(), ResumableCheckpoint(monitor="knn/top1")
    assert _trainer_cli._last_of_its_kind([own, ResumableCheckpoint(), best, other]) == [own, other, best]


def test_a_module_that_is_not_installed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if importlib.util.find_spec("pl_bolts") is not None:
        pytest.skip("the extra is installed")
    for module, how in (
        ("pl_bolts.optimizers.LARS", 'there is no module pl_bolts: pip install "mmcl-lightning[bolts]"'),
        ("no_such_package.LARS", "there is no module no_such_package: install it, or correct class_path"),
    ):
        path = tmp_path / "theirs.yaml"
        path.write_text(
            f"base: quickstart.yaml\nmodel: {{init_args: {{optimizer: {{class_path: {module}, "
            "init_args: {lr: 0.1}}}}\n"
        )
        assert how in complaint(["fit", f"--config={path}"], capsys, code=2)


def test_weights_that_say_nothing_of_their_images_name_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (20, 20), "red").save(tmp_path / "photos" / "a.png")
    torch.save(build_backbone("conv4").state_dict(), "bare.pt")
    with caplog.at_level(logging.INFO):
        main(["embed", "--checkpoint=bare.pt", "--backbone=conv4", "--data.root=photos",
              "--data.image_size=16", "--data.num_workers=0", "--accelerator=cpu"])  # fmt: skip
    assert "the weights do not say how their images were made, and need them made the same way" in caplog.text
    assert " of 16 x 16 pixels by EvalTransform(resize=16, crop=16), in [0, 1]: --data" in caplog.text
    assert "--data.mean and --data.std change that" in caplog.text
