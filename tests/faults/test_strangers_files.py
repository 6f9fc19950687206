"""Files of strangers: no way in runs what they hold."""

from __future__ import annotations

import http.server
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import mmcl, shapes, trainer

from mmcl_lightning import MMCL
from mmcl_lightning._specs import from_spec
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import ContrastiveLoss
from mmcl_lightning.modules import LinearEvaluation, export_backbone
from mmcl_lightning.modules.weight_files import read_backbone

TINY = [
    "--config=quickstart", "--data.train_size=16", "--data.test_size=8", "--data.image_size=16",
    "--data.batch_size=8", "--data.num_workers=0", "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
    "--trainer.logger=false",
]  # fmt: skip


class Payload:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["MMCL_TEST_TRACE"],)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMCL_TEST_TRACE", str(tmp_path / "code_was_run"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def hostile(place: Path) -> Path:
    """A checkpoint of a run, with an object in it that runs code."""
    run = trainer(place)
    run.fit(mmcl(), shapes())
    run.save_checkpoint(place / "good.ckpt")
    content = torch.load(place / "good.ckpt", weights_only=True)
    torch.save({**content, "extra": Payload()}, place / "bad.ckpt")
    (place / "raw.pkl").write_bytes(pickle.dumps(Payload()))
    return place / "bad.ckpt"


@pytest.fixture
def server(hostile: Path) -> Iterator[str]:
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


@pytest.mark.parametrize("command", ["fit", "validate", "predict", "negatives"])
@pytest.mark.parametrize("remote", [False, True])
def test_no_command_runs_what_a_checkpoint_holds(
    command: str, remote: bool, server: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{server}/bad.ckpt" if remote else "bad.ckpt"
    options = TINY[:-3] if command == "negatives" else TINY
    with pytest.raises(SystemExit):
        main([command, *options, f"--ckpt_path={path}"])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "bad.ckpt" in said[0] or "holds more than tensors and plain data" in said[0]
    assert not (place / "code_was_run").exists()


def test_a_remote_checkpoint_without_other_objects_is_read(server: str, place: Path) -> None:
    assert MMCL.load_from_checkpoint(f"{server}/good.ckpt").hparams["backbone"] == "conv4"


@pytest.mark.parametrize("name", ["bad.ckpt", "raw.pkl"])
def test_no_other_way_in_does(name: str, hostile: Path, server: str, place: Path) -> None:
    ways = (
        lambda: read_backbone(name),
        lambda: export_backbone(name, "out.pt"),
        lambda: LinearEvaluation(name),
        lambda: LinearEvaluation(f"{server}/{name}"),
        lambda: MMCL.load_from_checkpoint(name),
        lambda: MMCL.load_from_checkpoint(f"{server}/{name}"),
        lambda: LinearEvaluation.load_from_checkpoint(f"{server}/{name}"),
        lambda: mmcl(init_from=name).start_from(name),
    )
    for way in ways:
        with pytest.raises((ConfigError, pickle.UnpicklingError)):
            way()
    assert not (place / "code_was_run").exists()


def test_the_trap_works(hostile: Path, place: Path) -> None:
    torch.load(hostile, weights_only=False)
    assert (place / "code_was_run").exists()


def test_a_user_may_say_otherwise(hostile: Path, place: Path) -> None:
    MMCL.load_from_checkpoint(hostile, weights_only=False)
    assert (place / "code_was_run").exists()


def test_options_of_a_checkpoint_import_no_module(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "stranger.py").write_text(f"import os\nos.mkdir({str(place / 'code_was_run')!r})\n")
    monkeypatch.syspath_prepend(str(place))
    run = trainer(place)
    run.strategy.connect(mmcl())
    run.save_checkpoint(place / "good.ckpt")
    for option in ("kernel", "solver", "backbone", "projection_head", "optimizer"):
        content = torch.load(place / "good.ckpt", weights_only=True)
        content["hyper_parameters"][option] = {"class_path": "stranger.Thing", "init_args": {}}
        torch.save(content, place / "tampered.ckpt")
        with pytest.raises(ConfigError, match=rf"{option}: the checkpoint names stranger\.Thing, of"):
            MMCL.load_from_checkpoint(place / "tampered.ckpt")
    assert "stranger" not in sys.modules
    assert not (place / "code_was_run").exists()
    shutil.rmtree(place / "code_was_run", ignore_errors=True)


@pytest.mark.parametrize(
    "path", ["os.system", "subprocess.Popen", "torch.nn.Linear", "nowhere", "", ".", "torch."]
)
def test_what_is_named_must_be_of_the_kind(path: str) -> None:
    with pytest.raises(ConfigError, match="criterion"):
        from_spec({"class_path": path, "init_args": {}}, ContrastiveLoss, "criterion")
