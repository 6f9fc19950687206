"""Files of strangers: no way in runs what they hold."""

from __future__ import annotations

import contextlib
import http.server
import inspect
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from runs import mmcl, shapes, trainer

from mmcl_lightning import MMCL
from mmcl_lightning._specs import from_spec
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, MMCLError
from mmcl_lightning.losses import ContrastiveLoss, NTXentLoss
from mmcl_lightning.losses.mixing import HardNegativeMixing
from mmcl_lightning.modules import (
    ContrastiveModule,
    FineTune,
    LinearEvaluation,
    LogisticEvaluation,
    MoCo,
    PretrainedBackbone,
    PretrainingModule,
    SimCLR,
    export_backbone,
)
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
        with pytest.raises(ConfigError):
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


#: What a stranger may write where an option stands: to call, to import, plain, listed, within another part.
TRAPS: dict[str, Any] = {
    "call": {"class_path": "os.mkdir", "init_args": {"path": "code_was_run"}},
    "keywords": {"class_path": "os.mkdir", "dict_kwargs": {"path": "code_was_run"}},
    "import": {"class_path": "stranger.Thing", "init_args": {}},
    "text": "stranger.Thing",
    "list": [{"class_path": "stranger.Thing"}],
    "within": {
        "class_path": "mmcl_lightning.kernels.RBF", "init_args": {"gamma": {"class_path": "stranger.Thing"}}
    },
    "network": {
        "class_path": "torch.nn.Sequential",
        "init_args": {"a": {"class_path": "stranger.Thing"}, "b": {"class_path": "os.mkdir"}},
    },
    "live": {"live_object": "stranger.Thing"},
}  # fmt: skip
KINDS: dict[str, Callable[[], LightningModule]] = {
    "MMCL": mmcl,
    "SimCLR": lambda: SimCLR(backbone="conv4", projection_head="cifar", output_dim=16),
    "MoCo": lambda: MoCo(queue_size=16, backbone="conv4", projection_head="cifar", output_dim=16),
    "ContrastiveModule": lambda: ContrastiveModule(NTXentLoss(), backbone="conv4", projection_head="cifar"),
    "LinearEvaluation": lambda: LinearEvaluation("random", backbone="conv4", num_classes=2),
    "LogisticEvaluation": lambda: LogisticEvaluation("random", backbone="conv4", num_classes=2),
    "FineTune": lambda: FineTune("random", backbone="conv4", num_classes=2),
}


@pytest.fixture
def stranger(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that nobody imports, in a folder that Python searches."""
    (place / "stranger.py").write_text("import os\nos.mkdir(os.environ['MMCL_TEST_TRACE'])\n")
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("stranger", None)


def written_by_the_command_line(module: LightningModule) -> dict[str, Any]:
    """A checkpoint with the two notes of Lightning's command line, by which Lightning rebuilds."""
    run = trainer(Path.cwd())
    run.strategy.connect(module)
    run.save_checkpoint("plain.ckpt")
    content: dict[str, Any] = torch.load("plain.ckpt", weights_only=True)
    content["hyper_parameters"] |= {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "_class_path": f"mmcl_lightning.modules.{type(module).__name__}",
    }
    return content


def unharmed(load: Callable[[], Any], where: str) -> None:
    """Check that loading ends well or in a sentence, and has run nothing."""
    with contextlib.suppress(MMCLError):
        load()
    assert not Path("code_was_run").exists(), where
    assert "stranger" not in sys.modules, where


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_no_option_of_the_command_line_runs_code(name: str, stranger: Path) -> None:
    module = KINDS[name]()
    content = written_by_the_command_line(module)
    saved, kind = content["hyper_parameters"], type(module)
    torch.save(content, "good.ckpt")
    assert kind.load_from_checkpoint("good.ckpt").hparams.keys() >= {"backbone"}
    options = {*saved, *inspect.signature(kind).parameters} - {"_class_path", "_instantiator", "kwargs"}
    if issubclass(kind, PretrainingModule):
        options |= set(inspect.signature(PretrainingModule).parameters)
    for option in options:
        for trap, value in TRAPS.items():
            torch.save({**content, "hyper_parameters": {**saved, option: value}}, "bad.ckpt")
            unharmed(lambda: kind.load_from_checkpoint("bad.ckpt"), f"{option}: {trap}")


@pytest.mark.parametrize("key", ["hparams", "module_arguments", "hyper_parameters"])
def test_no_place_of_options_runs_code(key: str, stranger: Path) -> None:
    content = written_by_the_command_line(mmcl())
    content[key] = {**content["hyper_parameters"], "optimizer": TRAPS["call"]}
    if key != "hyper_parameters":
        content["hyper_parameters"] = {}
    torch.save(content, "bad.ckpt")
    for kind in (MMCL, PretrainingModule, ContrastiveModule, PretrainedBackbone):
        with contextlib.suppress(MMCLError, TypeError):
            kind.load_from_checkpoint("bad.ckpt")
        assert not Path("code_was_run").exists()
    with pytest.raises((ConfigError, TypeError)):
        MMCL.load_from_checkpoint("bad.ckpt")


@pytest.mark.parametrize("path", ["os.mkdir", "stranger.Thing", "torch.nn.Linear", "", 3, ["a"]])
def test_a_checkpoint_names_no_class_but_an_imported_one_of_its_kind(path: Any, stranger: Path) -> None:
    content = written_by_the_command_line(mmcl())
    content["hyper_parameters"]["_class_path"] = path
    torch.save(content, "bad.ckpt")
    with pytest.raises(ConfigError, match="which is no MMCL or not imported"):
        MMCL.load_from_checkpoint("bad.ckpt")
    assert "stranger" not in sys.modules


def test_a_base_class_builds_what_the_checkpoint_is_of(place: Path) -> None:
    torch.save(written_by_the_command_line(mmcl()), "good.ckpt")
    assert type(PretrainingModule.load_from_checkpoint("good.ckpt")) is MMCL
    with pytest.raises(ConfigError, match=r"the checkpoint is of mmcl_lightning\.modules\.MMCL, which is no"):
        SimCLR.load_from_checkpoint("good.ckpt")


def test_options_of_a_data_module_run_no_code(stranger: Path) -> None:
    for value in TRAPS.values():
        options = {
            "_instantiator": "lightning.pytorch.cli.instantiate_module", "root": ".", "train_transform": value
        }  # fmt: skip
        content = {
            "state_dict": {}, "pytorch-lightning_version": "2.6.0", "datamodule_hyper_parameters": options
        }  # fmt: skip
        torch.save(content, "bad.ckpt")
        with contextlib.suppress(MMCLError, TypeError):
            ImageFolderDataModule.load_from_checkpoint("bad.ckpt")
        assert not Path("code_was_run").exists()
        assert "stranger" not in sys.modules


@pytest.mark.parametrize("command", ["fit", "validate", "predict", "negatives"])
def test_no_command_runs_what_the_options_of_the_command_line_name(command: str, stranger: Path) -> None:
    content = written_by_the_command_line(mmcl())
    for option in ("optimizer", "kernel", "solver", "backbone", "projection_head"):
        content["hyper_parameters"][option] = TRAPS["call"]
    torch.save(content, "bad.ckpt")
    options = TINY[:-3] if command == "negatives" else TINY
    with contextlib.suppress(SystemExit):
        main([command, *options, "--ckpt_path=bad.ckpt"])
    for way in (LinearEvaluation, PretrainedBackbone):
        with pytest.raises(ConfigError):
            way("bad.ckpt")
    assert not Path("code_was_run").exists()


def test_mixing_by_its_arguments_alone_is_rebuilt(place: Path) -> None:
    module = MoCo(queue_size=16, backbone="conv4", projection_head="cifar", output_dim=16)
    content = written_by_the_command_line(module)
    content["hyper_parameters"]["mixing"] = {"hardest": 8, "pairs": 4, "with_query": 2}  # as YAML has it
    torch.save(content, "good.ckpt")
    assert MoCo.load_from_checkpoint("good.ckpt").mixing == HardNegativeMixing(8, 4, 2)
