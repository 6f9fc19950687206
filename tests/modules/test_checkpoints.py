"""A checkpoint rebuilds its module by itself, with weights_only=True."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import BASELINES
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import TINY, FlatNet, mmcl, shapes, simclr, trainer

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF, Intersection, Linear, Polynomial, Tanh
from mmcl_lightning.losses import ContrastiveLoss, HCLLoss, MMCLLoss, NTXentLoss
from mmcl_lightning.modules import MMCL, ContrastiveModule, SimCLR, export_backbone
from mmcl_lightning.optim import LARS
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient

IMAGES = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def representation(module: ContrastiveModule) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        return module(IMAGES)


def saved(folder: Path, module: ContrastiveModule, steps: int = 1) -> str:
    """Train for a step, and return the path of the checkpoint."""
    run = trainer(folder, limit_train_batches=steps)
    run.fit(module, shapes())
    path = folder / "module.ckpt"
    run.save_checkpoint(path)
    torch.load(path, weights_only=True)
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": RBF(gamma="median"), "solver": ProjectedGradient(max_steps=5), "C": float("inf")},
        {"kernel": RBF(sigma2=2.0), "solver": Exact(rho=0.5), "negatives": "one", "symmetric": True},
        {"kernel": Linear(), "reg": 1.0, "optimizer": torch.optim.Adam},
        {"kernel": Polynomial(degree=2), "optimizer": functools.partial(LARS, lr=0.1)},
        {"kernel": Tanh(), "C": 1.0, "solver": ProjectedGradient(), "assume_unit_diag": True},
        {
            "kernel": Intersection(),
            "solver": Inverse(),
            "optimizer": functools.partial(torch.optim.AdamW, lr=1e-3, betas=(0.8, 0.9)),
            "schedule": {"C": {3: 1.0}},
            "drop_at_bound": True,
            "lr_scaling": "linear",
            "lr_schedule": "cosine",
            "warmup": 0.1,
        },
    ],
    ids=lambda options: type(options.get("kernel")).__name__,
)
def test_mmcl_built_in_python(options: dict[str, Any], tmp_path: Path) -> None:
    module = mmcl(**options)
    loaded = MMCL.load_from_checkpoint(saved(tmp_path, module))
    assert torch.equal(representation(loaded), representation(module))
    ours, theirs = loaded.criterion, module.criterion
    assert repr(ours) == repr(theirs)
    assert ours.assume_unit_diag == theirs.assume_unit_diag
    assert loaded.configure_callbacks()[0].schedule == module.configure_callbacks()[0].schedule
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    assert loaded.optimizer([parameter]).defaults == module.optimizer([parameter]).defaults
    for name in ("lr_scaling", "lr_schedule", "warmup"):
        assert getattr(loaded, name) == getattr(module, name)
    saved(tmp_path, loaded)  # and it trains on


def test_simclr_built_in_python(tmp_path: Path) -> None:
    module = simclr(temperature=0.3)
    loaded = SimCLR.load_from_checkpoint(saved(tmp_path, module))
    assert loaded.criterion.temperature == 0.3
    assert torch.equal(representation(loaded), representation(module))


@pytest.mark.parametrize(
    "criterion",
    [
        *{type(loss): loss for loss in BASELINES}.values(),  # the last setting of each class
        MMCLLoss(C=2.0),
        MMCLLoss(Tanh(gamma=0.5), ProjectedGradient(max_steps=5), C=1.0, symmetric=True),
        MMCLLoss(RBF(gamma="median"), Exact(rho=0.5), reg=0.2, negatives="one", drop_at_bound=True),
    ],
    ids=repr,
)
def test_contrastive_module_brings_its_loss(criterion: ContrastiveLoss, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = ContrastiveModule(copy.deepcopy(criterion), **TINY)
    path = saved(tmp_path, module)
    loaded = ContrastiveModule.load_from_checkpoint(path)
    assert type(loaded.criterion) is type(criterion)
    assert loaded.criterion.options() == criterion.options()
    assert torch.equal(representation(loaded), representation(module))
    saved(tmp_path, loaded)  # and it trains on


class Sharpened(ContrastiveModule):
    """A user's module that has the loss as an option, and passes others on."""

    def __init__(self, criterion: ContrastiveLoss, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(criterion, **kwargs)
        self.factor = factor


class Fixed(ContrastiveModule):
    """One that sets an option of the base by itself."""

    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(NTXentLoss(1 / factor), lr_schedule="cosine", **kwargs)


def test_a_module_of_the_user_is_rebuilt_from_what_it_was_given(tmp_path: Path) -> None:
    module = Sharpened(HCLLoss(beta=2.0), factor=3.0, **TINY)
    loaded = Sharpened.load_from_checkpoint(saved(tmp_path, module))
    assert isinstance(loaded.criterion, HCLLoss)
    assert (loaded.criterion.beta, loaded.factor) == (2.0, 3.0)
    assert torch.equal(representation(loaded), representation(module))

    fixed = Fixed(5.0, **TINY)
    assert dict(fixed.hparams) == {"factor": 5.0, **TINY}
    again = Fixed.load_from_checkpoint(saved(tmp_path, fixed))
    assert (again.criterion.temperature, again.lr_schedule) == (0.2, "cosine")
    assert torch.equal(representation(again), representation(fixed))


def test_a_loss_can_be_changed_on_load(tmp_path: Path) -> None:
    module = ContrastiveModule(MMCLLoss(C=2.0), **TINY)
    path = saved(tmp_path, module)
    loaded = ContrastiveModule.load_from_checkpoint(path, criterion=NTXentLoss(0.2))
    assert loaded.criterion.options() == NTXentLoss(0.2).options()
    assert torch.equal(representation(loaded), representation(module))


class Forgetful(NTXentLoss):
    """Does not keep its argument under its name."""

    def __init__(self, sharpness: float) -> None:
        super().__init__(1 / sharpness)


def test_a_loss_that_does_not_keep_its_arguments_is_passed_again(tmp_path: Path) -> None:
    path = saved(tmp_path, ContrastiveModule(Forgetful(5.0), **TINY))
    with pytest.raises(ConfigError, match=r"live object for criterion .*Forgetful.*criterion=\.\.\."):
        ContrastiveModule.load_from_checkpoint(path)
    assert ContrastiveModule.load_from_checkpoint(path, criterion=Forgetful(5.0)).criterion.temperature == 0.2


def test_live_backbone_and_head_are_passed_again(tmp_path: Path) -> None:
    module = mmcl(backbone=FlatNet(), projection_head=torch.nn.Linear(8, 4))
    path = saved(tmp_path, module)
    with pytest.raises(ConfigError, match=r"live object for backbone \(runs\.FlatNet\).*backbone=\.\.\."):
        MMCL.load_from_checkpoint(path)
    with pytest.raises(ConfigError, match=r"projection_head=\.\.\."):
        MMCL.load_from_checkpoint(path, backbone=FlatNet())
    loaded = MMCL.load_from_checkpoint(path, backbone=FlatNet(), projection_head=torch.nn.Linear(8, 4))
    assert torch.equal(representation(loaded), representation(module))


def test_live_backbone_is_not_copied_into_the_options(tmp_path: Path) -> None:
    module = mmcl(backbone=FlatNet())
    assert module.hparams_initial["backbone"] == {"live_object": "runs.FlatNet"}
    assert dict(module.hparams_initial) == dict(module.hparams)


def test_a_class_that_is_gone_is_named(tmp_path: Path) -> None:
    class Mine(torch.optim.SGD):
        pass

    path = saved(tmp_path, mmcl(optimizer=functools.partial(Mine, lr=0.1)))
    with pytest.raises(ConfigError, match=r"optimizer: .*Mine cannot be imported"):
        MMCL.load_from_checkpoint(path)
    assert MMCL.load_from_checkpoint(path, optimizer=Mine).optimizer is Mine


def test_options_can_be_changed_on_load(tmp_path: Path) -> None:
    path = saved(tmp_path, mmcl(C=3.0))
    assert MMCL.load_from_checkpoint(path, C=7.0).criterion.C == 7.0


@pytest.mark.parametrize("kind", [MMCL, SimCLR])
def test_module_built_by_the_command_line(
    kind: type[ContrastiveModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        f"--model={kind.__module__}.{kind.__name__}",
        *[f"--model.{name}={value}" for name, value in TINY.items()],
        "--model.optimizer=mmcl_lightning.optim.LARS",
        "--model.optimizer.lr=0.05",
    ]
    if kind is MMCL:
        options += [
            "--model.kernel=mmcl_lightning.kernels.RBF",
            "--model.kernel.gamma=0.25",
            "--model.solver=mmcl_lightning.svm.Exact",
            "--model.C=4",
        ]
    data = ["--data=mmcl_lightning.datamodules.ShapesDataModule", "--data.train_size=16"]
    data += ["--data.test_size=10", "--data.image_size=16", "--data.batch_size=8", "--data.num_workers=0"]
    run = ["--trainer.max_steps=2", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    main(["fit", *options, *data, *run])
    path = next(tmp_path.rglob("last.ckpt"))
    torch.load(path, weights_only=True)
    loaded = kind.load_from_checkpoint(path)
    assert type(loaded) is kind
    assert loaded.optimizer([torch.nn.Parameter(torch.ones(2, 2))]).defaults["lr"] == 0.05
    if isinstance(loaded, MMCL):
        assert loaded.criterion.kernel == RBF(gamma=0.25)
        assert loaded.criterion.solver == Exact()
        assert loaded.criterion.C == 4.0
    saved_weights = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved_weights[name]) for name, value in loaded.state_dict().items())


def test_keys_are_those_of_torchvision() -> None:
    import torchvision

    keys = {name.partition(".")[0] for name in mmcl().state_dict()}
    assert keys == {"backbone", "projection_head"}
    module = mmcl(backbone="resnet18", cifar_stem=True)
    ours = {name.removeprefix("backbone.") for name in module.state_dict() if name.startswith("backbone.")}
    theirs = set(torchvision.models.resnet18().state_dict()) - {"fc.weight", "fc.bias"}
    assert ours == theirs


def test_the_latest_checkpoint_of_a_run_is_the_module_at_its_end(tmp_path: Path) -> None:
    module = mmcl()
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, saver, max_epochs=2).fit(module, shapes())
    assert torch.equal(
        representation(MMCL.load_from_checkpoint(saver.last_model_path)), representation(module)
    )


@pytest.mark.parametrize("compiled", ["saved", "loaded"])
def test_a_compiled_part_has_the_same_weights(compiled: str, tmp_path: Path) -> None:
    def build(compile_it: bool, seed: int) -> MMCL:
        module = mmcl(seed)
        if compile_it:
            module.backbone = torch.compile(module.backbone, backend="eager")
        return module

    run = trainer(tmp_path)
    run.fit(build(compiled == "saved", 0), shapes())
    run.save_checkpoint(tmp_path / "end.ckpt")
    again = trainer(tmp_path, max_epochs=1)
    module = build(compiled == "loaded", 5)
    again.fit(module, shapes(), ckpt_path=str(tmp_path / "end.ckpt"))
    expected, found = (
        {key.replace("_orig_mod.", ""): value for key, value in one.state_dict().items()}
        for one in (run.lightning_module, module)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    MMCL.load_from_checkpoint(tmp_path / "end.ckpt")
    export_backbone(str(tmp_path / "end.ckpt"), str(tmp_path / "b.pt"))
    assert not any("_orig_mod" in key for key in torch.load(tmp_path / "b.pt", weights_only=True))
