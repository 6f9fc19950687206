"""What an attacker found: bad input has to end in one clear sentence and lose nothing."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BASELINES, make_views
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

from mmcl_lightning import MMCL, MMCLLoss
from mmcl_lightning.callbacks import SVMSolverCallback
from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import ImageFolderDataModule, ShapesDataModule
from mmcl_lightning.datamodules.pictures import PictureReader
from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.kernels import Polynomial
from mmcl_lightning.losses import (
    ContrastiveLoss,
    DebiasedLoss,
    DecoupledLoss,
    HCLLoss,
    HingeLoss,
    InfoNCELoss,
    NTXentLoss,
)
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient, max_margin_dual

TINY = [
    *(
        "--config",
        "quickstart",
        "--data.train_size",
        "64",
        "--data.test_size",
        "32",
        "--data.batch_size",
        "32",
    ),
    *("--data.num_workers", "0", "--trainer.enable_progress_bar", "false"),
]


class Poison(Callback):
    """Breaks a weight after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_step == self.step:
            next(pl_module.parameters()).data.fill_(torch.nan)


@pytest.mark.parametrize("step", [5, 6], ids=["within an epoch", "at its end"])
def test_weights_that_are_not_finite_overwrite_no_checkpoint(step: int, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=True, save_on_exception=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, callbacks=[saver, Poison(step)], logger=False,
        limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = MMCL(backbone="conv4", projection_head="cifar", output_dim=16)
    with pytest.raises(NumericalError, match="no checkpoint is written") as error:
        trainer.fit(module, ShapesDataModule(train_size=64, test_size=32, batch_size=32, num_workers=0))
    if step == 5:
        assert "training step 5: projections are not finite" in str(error.value)
    left = list(tmp_path.glob("*.ckpt"))
    assert {path.name for path in left} == {"epoch=1-step=4.ckpt", "last.ckpt"}
    for path in left:
        weights = torch.load(path, weights_only=True)["state_dict"]
        assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.parametrize("loss", [*BASELINES, MMCLLoss(), MMCLLoss(solver=Exact())], ids=repr)
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-25])
def test_a_row_without_length_has_a_finite_gradient(loss: ContrastiveLoss, scale: float) -> None:
    z0, z1 = (z.float() for z in make_views(8, 4, seed=3))
    z0[3] *= scale
    z0.requires_grad_()
    loss(z0, z1).backward()
    assert z0.grad is not None
    assert z0.grad.isfinite().all()
    assert scale != 0 or torch.equal(z0.grad[3], torch.zeros(4))
    assert z0.grad[2].abs().max() > 0


@pytest.mark.parametrize("solver", [Inverse(), Exact(), ProjectedGradient(), ProjectedGradient.reference()])
def test_a_kernel_that_overflows_is_named(solver: Any) -> None:
    z0, z1 = (10 * z.float() for z in make_views(8, 4, seed=3))
    with pytest.raises(NumericalError, match=r"Polynomial\(degree=60.*is not finite"):
        MMCLLoss(Polynomial(degree=60, gamma=50.0), solver)(z0, z1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"C": "1"}, "C must be a number > 0, got '1'"),
        ({"C": None}, "C .* got None"),
        ({"C": True}, "C .* got True"),
        ({"C": 1e-300}, "C=1e-300 is too small for torch.float32"),
        ({"reg": "x"}, "reg must be a finite number >= 0, got 'x'"),
        ({"reg": 1e300}, "reg=1e[+]300 is too large for torch.float32"),
        ({"solver": Exact(rho=1e200)}, "a ridge of 1e[+]200 .* too large for torch.float32"),
        ({"symmetric": "no"}, "symmetric must be True or False, got 'no'"),
        ({"normalize": "false"}, "normalize must be True or False, got 'false'"),
        ({"drop_at_bound": 1}, "drop_at_bound must be True or False, got 1"),
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_or_size_are_named(options: dict[str, Any], match: str) -> None:
    z0, z1 = (z.float() for z in make_views(8, 4, seed=3))
    with pytest.raises(ConfigError, match=match):
        MMCLLoss(**options)(z0, z1)


@pytest.mark.parametrize(
    "build",
    [NTXentLoss, DebiasedLoss, HCLLoss, DecoupledLoss, HingeLoss, InfoNCELoss],
    ids=lambda c: c.__name__,
)
def test_numbers_of_the_other_losses_are_checked(build: type) -> None:
    names = set(inspect.signature(build).parameters) & {"temperature", "tau_plus", "beta", "sigma", "margin"}
    for name in names:
        with pytest.raises(ConfigError, match=f"{name} .*got '0.5'"):
            build(**{name: "0.5"})


def test_a_bound_beyond_the_precision_is_no_bound() -> None:
    z0, z1 = (z.float() for z in make_views(8, 4, seed=3))
    for solver in (Inverse(), Exact(), ProjectedGradient()):
        losses = [MMCLLoss(solver=solver, C=C)(z0, z1) for C in (1e300, math.inf)]
        assert torch.equal(*losses)


def test_what_is_no_tensor_is_named() -> None:
    array = np.eye(8, dtype=np.float32)
    with pytest.raises(ShapeError, match="views must be tensors, got ndarray and ndarray"):
        MMCLLoss()(array, array)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"with D >= 1, got \(4, 0\)"):
        MMCLLoss()(torch.empty(4, 0), torch.empty(4, 0))
    with pytest.raises(ShapeError, match="must be tensors: convert"):
        max_margin_dual(array, torch.arange(8))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="must be tensors: convert"):
        max_margin_dual(torch.eye(8), [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\(B,\) with B >= 1, got \(0,\)"):
        max_margin_dual(torch.eye(8), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ShapeError, match="int64 indices, got torch"):
        max_margin_dual(torch.eye(8), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("left_out", [[[0]], [[5, 5]], [[9]], [[-1]]], ids=str)
def test_indices_are_checked(left_out: list[list[int]]) -> None:
    with pytest.raises(ShapeError, match="distinct indices of the 8 candidates"):
        max_margin_dual(torch.eye(8), torch.tensor([0]), torch.tensor(left_out))


def test_a_callback_of_the_user_is_used_in_place_of_the_module_s(tmp_path: Path) -> None:
    def fit(callback: SVMSolverCallback, **options: Any) -> MMCL:
        module = MMCL(backbone="conv4", projection_head="cifar", output_dim=16, **options)
        trainer = Trainer(
            accelerator="cpu", max_steps=1, callbacks=[callback], logger=False, enable_checkpointing=False,
            limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, ShapesDataModule(train_size=32, test_size=16, batch_size=16, num_workers=0))
        return module

    module = fit(SVMSolverCallback(schedule={"kernel.gamma": {1: 3.5}}))
    assert module.criterion.kernel.gamma == 3.5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="both the module and a SVMSolverCallback have a schedule"):
        fit(SVMSolverCallback(schedule={"C": {1: 2.0}}), schedule={"C": {1: 1.0}})


def write(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)


def test_a_class_called_train_hides_no_other_class(tmp_path: Path) -> None:
    for name in ("bus", "train", "car"):
        write(tmp_path / name / "a.png")
    with pytest.raises(DataError, match="if train is a class, rename it"):
        ImageFolderDataModule(str(tmp_path), image_size=8).setup("fit")


def test_a_loop_of_links_repeats_no_image(tmp_path: Path) -> None:
    for index in range(6):
        write(tmp_path / "ab"[index % 2] / f"{index}.png", index)
    (tmp_path / "a" / "self").symlink_to(tmp_path)
    data = ImageFolderDataModule(str(tmp_path / "a"), image_size=8, holdout=0.0, batch_size=2)
    data.setup("fit")
    assert len(data.splits.pretrain) == 3  # the link, which leads to what is above, is not followed
    (tmp_path / "a" / "self").unlink()
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a")
    data = ImageFolderDataModule(str(tmp_path), image_size=8, holdout=0.0, batch_size=2)
    data.setup("fit")
    assert len(data.splits.pretrain) == 6


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert np.array_equal(np.asarray(PictureReader()(tmp_path / "deep.png"))[..., 0], np.rint(values / 257))


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code in (1, 2)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04truncated"])
def test_a_damaged_checkpoint_is_named(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.ckpt").write_bytes(content)
    assert "bad.ckpt cannot be read as a checkpoint" in fails(
        ["fit", *TINY, "--ckpt_path", "bad.ckpt"], capsys
    )
    torch.save({"weights": 1}, "foreign.ckpt")
    assert "no checkpoint of this package" in fails(["fit", *TINY, "--ckpt_path", "foreign.ckpt"], capsys)


def test_checkpoints_by_name_and_of_other_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run with a checkpoint" in fails(["fit", *TINY, "--ckpt_path", "last"], capsys)
    main(["fit", *TINY, "--trainer.max_epochs", "1"])
    capsys.readouterr()
    other = ["fit", *TINY, "--ckpt_path", "last", "--model.output_dim", "8"]
    assert "does not fit this model" in fails(other, capsys)
    main(["validate", *TINY, "--ckpt_path", "last"])
    assert "knn/top1" in capsys.readouterr().out
    main(["validate", *TINY])
    assert "these are random weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.kernel", "RBFF"], "there is no class 'RBFF'; did you mean RBF?"),
        (["--model.solver", "Exactt"], "did you mean Exact?"),
        (["--data", "Shapes1DataModule"], "did you mean ShapesDataModule?"),
        (["--model.optimizer.lr", "-1"], "optimizer: Invalid learning rate"),
    ],
)
def test_names_and_values_get_help(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(["fit", *TINY, *options], capsys)


def test_a_binary_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes("seed: ä".encode("utf-16"))
    assert "binary.yaml is no YAML text in UTF-8" in fails(["fit", "--config", str(path)], capsys)
