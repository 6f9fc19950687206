"""Checkpoints whose parts are not what they should be: a sentence names the file and the part."""

from __future__ import annotations

import contextlib
import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import mmcl, shapes, trainer
from safetensors.torch import save_file

from mmcl_lightning import MMCL
from mmcl_lightning._checkpoints import newest_good, read_checkpoint
from mmcl_lightning._specs import from_spec
from mmcl_lightning.callbacks.checkpoint_io import keep_files_whole
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules import LinearEvaluation, export_backbone
from mmcl_lightning.modules.weight_files import read_backbone


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A checkpoint of a run of a step."""
    place = tmp_path_factory.mktemp("run")
    run = trainer(place, max_steps=1)
    run.fit(mmcl(), shapes())
    run.save_checkpoint(place / "run.ckpt")
    found: dict[str, Any] = torch.load(place / "run.ckpt", weights_only=True)
    return found


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


PARTS: dict[str, list[Any]] = {
    "hyper_parameters": [None, [1], "x", 5, {1: 2}],
    "state_dict": [None, [torch.zeros(1)], "x", {1: torch.zeros(1)}],
    "optimizers": ["x", [1], None, [{}], [{"groups": [1]}], {}],
    "optimizer_states": ["x", [1], None, [{"state": 1}], [{"state": {}, "param_groups": [1]}]],
    "lr_schedulers": ["x", [1], None],
    "preprocessing": [[1], "x", 3],
    "callbacks": [[1], None, "x"],
    "loops": [[1], None, {1: 2}],
    "pytorch-lightning_version": [5, "a b", None, "", "1" * 5000],
    "epoch": ["x", -1, None, 1.5],
    "global_step": ["x", True, None],
    "found_lr": ["x", [1]],
    "hparams_name": [3],
}


@pytest.mark.parametrize(("part", "value"), [(part, value) for part in PARTS for value in PARTS[part]])
def test_a_part_of_another_kind_is_named(part: str, value: Any, content: dict[str, Any]) -> None:
    torch.save({**content, part: value}, "bad.ckpt")
    run = trainer(Path.cwd())
    keep_files_whole(run)
    ways = (
        lambda: read_checkpoint("bad.ckpt"),
        lambda: MMCL.load_from_checkpoint("bad.ckpt"),
        lambda: run.fit(mmcl(), shapes(), ckpt_path="bad.ckpt", weights_only=True),
    )
    for way in ways:
        with pytest.raises(ConfigError, match=rf"^bad\.ckpt: its part {part} should be "):
            way()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


WEIGHTS = {
    "float8": (lambda: torch.zeros(2).to(torch.float8_e4m3fn), "of the type torch.float8_e4m3fn"),
    "quantized": (quantized, "a quantized tensor"),
    "expanded": (lambda: torch.zeros(1).expand(10**12), "of shape .10{12},., of which the file holds 4"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "a torch.sparse_coo tensor"),
    "meta": (lambda: torch.zeros(3, device="meta"), "a tensor without values"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_weights_are_named(name: str, content: dict[str, Any]) -> None:
    make, said = WEIGHTS[name]
    key = "backbone.blocks.0.weight"
    assert key in content["state_dict"]
    torch.save({**content, "state_dict": {**content["state_dict"], key: make()}}, "bad.ckpt")
    torch.save({"blocks.0.weight": make()}, "bare.pt")
    ways = (
        lambda: read_checkpoint("bad.ckpt"),
        lambda: MMCL.load_from_checkpoint("bad.ckpt"),
        lambda: export_backbone("bad.ckpt", "out.pt"),
        lambda: export_backbone("bare.pt", "out.pt"),
        lambda: LinearEvaluation("bad.ckpt"),
    )
    for way in ways:
        with pytest.raises(ConfigError, match=rf"^ba.*: the weight .*blocks\.0\.weight is {said}"):
            way()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int64, torch.uint8])
def test_weights_of_another_type_are_not_made_to_fit(dtype: torch.dtype, content: dict[str, Any]) -> None:
    changed, key = copy.deepcopy(content), "backbone.blocks.0.weight"
    changed["state_dict"][key] = changed["state_dict"][key].to(dtype)
    torch.save(changed, "bad.ckpt")
    said = rf"the weight {key} of the checkpoint is of the type {dtype}, and the module's of torch\.float32"
    with pytest.raises(ConfigError, match=said):
        MMCL.load_from_checkpoint("bad.ckpt")
    with pytest.raises(ConfigError, match=said):
        trainer(Path.cwd()).fit(mmcl(), shapes(), ckpt_path="bad.ckpt", weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_another_precision_are_taken(dtype: torch.dtype, content: dict[str, Any]) -> None:
    weights = {k: v.to(dtype) if v.is_floating_point() else v for k, v in content["state_dict"].items()}
    torch.save({**content, "state_dict": weights}, "other.ckpt")
    assert MMCL.load_from_checkpoint("other.ckpt").backbone.blocks[0].weight.dtype == torch.float32


@pytest.mark.parametrize("arguments", [[1, 2], "x", 5, None, {1: 2}, {"in_features": "x"}, {"nothing": 1}])
def test_arguments_of_a_description_are_by_name(arguments: Any, content: dict[str, Any]) -> None:
    described = {"class_path": "torch.nn.Linear", "init_args": arguments}
    with pytest.raises(ConfigError, match=r"^backbone: "):
        from_spec(described, torch.nn.Module, "backbone")
    torch.save({**content, "hyper_parameters": {"backbone": described}}, "bad.ckpt")
    for way in (LinearEvaluation, lambda path: export_backbone(path, "out.pt"), MMCL.load_from_checkpoint):
        with pytest.raises(ConfigError, match="backbone"):
            way("bad.ckpt")


def test_last_passes_over_a_hostile_one(content: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/version_0/checkpoints")
    folder.mkdir(parents=True)
    torch.save(content, folder / "good.ckpt")
    torch.save({**content, "hyper_parameters": None}, folder / "last.ckpt")
    assert newest_good(Path("runs"))[0] == str(folder / "good.ckpt")
    assert "its part hyper_parameters should be a mapping by name" in capsys.readouterr().err


def test_safetensors_are_known_by_what_they_hold() -> None:
    weights = {"conv1.weight": torch.ones(2, 3, 3, 3)}
    save_file(weights, "weights.safetensors")
    for name in ("weights", "weights.bin", "weights.pt"):
        Path(name).write_bytes(Path("weights.safetensors").read_bytes())
        assert torch.equal(read_backbone(name).tensors["conv1.weight"], weights["conv1.weight"])
    torch.save(weights, "torch.safetensors")  # and torch's whatever they are called
    assert torch.equal(read_backbone("torch.safetensors").tensors["conv1.weight"], weights["conv1.weight"])


def test_metadata_of_safetensors_may_be_anything() -> None:
    for told in ("[" * 100_000, "{" * 100_000, "[1]", "nonsense", '{"hyper_parameters": [1]}'):
        save_file({"a": torch.zeros(2)}, "x.safetensors", metadata={"mmcl_lightning": told})
        deep = len(told) > 1000 or told == "nonsense"
        said = r"^x\.safetensors cannot be read as weights of safetensors: it is damaged$"
        with pytest.raises(ConfigError, match=said) if deep else contextlib.nullcontext():
            assert read_backbone("x.safetensors").options == {}
    head = json.dumps({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4]}}).encode()
    Path("short.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    with pytest.raises(ConfigError, match=r"short\.safetensors cannot be read as weights of safetensors"):
        read_backbone("short.safetensors")


@pytest.mark.parametrize(
    "text", [b"", b"i am a text\n", b"\x89PNG\r\n\x1a\n", bytes(100), b"\x80", b"PK", b"{}"]
)
@pytest.mark.parametrize("name", ["bad.ckpt", "bad.safetensors"])
def test_what_is_no_file_of_weights_is_called_that(
    text: bytes, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_bytes(text)
    ways = (read_backbone, read_checkpoint, MMCL.load_from_checkpoint)
    for way in ways:
        with pytest.raises(ConfigError, match=rf"^{name} (cannot be read as|is damaged)") as caught:
            way(name)
        assert "Error" not in str(caught.value)
    with pytest.raises(SystemExit):
        main(["export", f"--checkpoint={name}"])
    assert f"error: {name} cannot be read as weights" in capsys.readouterr().err


def test_a_file_that_may_not_be_read_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("locked.ckpt").write_bytes(b"PK")

    def refuse(*_: Any, **__: Any) -> None:  # root may read everything
        raise PermissionError(13, "Permission denied", "locked.ckpt")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ConfigError, match=r"^locked\.ckpt cannot be read: Permission denied$"):
        read_backbone("locked.ckpt")
    with pytest.raises(ConfigError, match=r"^locked\.ckpt cannot be read: Permission denied$"):
        read_checkpoint("locked.ckpt")
