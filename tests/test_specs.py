"""Plain descriptions of losses: complete, of plain data alone, and rebuilt into nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import BASELINES, KERNELS, SOLVERS, WEIGHTED, make_views
from torch import Tensor, nn

from mmcl_lightning._specs import from_spec, to_spec
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF, Tanh
from mmcl_lightning.losses import ContrastiveLoss, HCLLoss, HingeLoss, MMCLLoss, NTXentLoss
from mmcl_lightning.losses.contrast import Contrast
from mmcl_lightning.svm import Exact, ProjectedGradient

MMCL_LOSSES = (
    MMCLLoss(),
    *(MMCLLoss(kernel, solver, C=7.0, reg=0.3) for kernel in KERNELS for solver in SOLVERS),
    MMCLLoss(RBF(gamma="median"), ProjectedGradient.reference(), C=float("inf")),
    MMCLLoss(negatives="one", symmetric=True, drop_at_bound=True, assume_unit_diag=True),
    MMCLLoss(normalize=False, gather=False),
)


def plain(value: Any) -> bool:
    """Whether a checkpoint that is read with weights_only=True may hold it."""
    if isinstance(value, dict):
        return all(plain(key) and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (bool, int, float, str)


class OneSided(ContrastiveLoss):
    """A loss of the user that keeps its argument."""

    def __init__(self, weight: float):
        super().__init__()
        self.weight = weight

    def _terms(self, contrast: Contrast) -> Tensor:
        return -self.weight * contrast.of_positive(contrast.similarity)


class Forgetful(OneSided):
    """One that does not."""

    def __init__(self, strength: float):
        super().__init__(strength)


class WithNetwork(OneSided):
    """One whose argument is no plain data."""

    def __init__(self, head: nn.Module):
        super().__init__(1.0)
        self.head = head


@pytest.mark.parametrize("loss", [*BASELINES, *WEIGHTED, *MMCL_LOSSES, OneSided(0.5)], ids=repr)
def test_a_loss_is_described_and_rebuilt(loss: ContrastiveLoss) -> None:
    spec = to_spec(loss)
    assert plain(spec)
    assert spec["class_path"].endswith(f".{type(loss).__name__}")
    again = from_spec(spec, ContrastiveLoss, "criterion")
    assert type(again) is type(loss)
    assert again is not loss
    assert again.options() == loss.options()


def test_every_argument_of_the_loss_is_in_the_description() -> None:
    spec = to_spec(MMCLLoss(Tanh(gamma=0.5), Exact(rho=0.5), 1.0, symmetric=True))
    assert spec == {
        "class_path": "mmcl_lightning.losses.max_margin.MMCLLoss",
        "init_args": {
            "kernel": {
                "class_path": "mmcl_lightning.kernels.Tanh",
                "init_args": {"gamma": 0.5, "offset": 0.0},
            },
            "solver": {
                "class_path": "mmcl_lightning.svm.solvers.exact.Exact",
                "init_args": {
                    "tol": 1e-4, "max_steps": None, "rho": 0.5, "relaxation": 1.7, "check_every": 16,
                    "path": "auto",
                },
            },
            "C": 1.0,
            "reg": 0.1,
            "form": "paper",
            "temperature": None,
            "negatives": "both",
            "symmetric": True,
            "drop_at_bound": False,
            "assume_unit_diag": False,
            "normalize": True,
            "gather": True,
        },
    }  # fmt: skip


def test_what_a_schedule_has_changed_is_in_the_description() -> None:
    loss = MMCLLoss()
    loss.set_option("kernel.gamma", 3.0)
    again = from_spec(to_spec(loss), ContrastiveLoss, "criterion")
    views = make_views(6, 4)
    assert again(*views) == loss(*views) != MMCLLoss()(*views)


def test_numbers_of_numpy_become_plain_ones() -> None:
    spec = to_spec(HCLLoss(beta=np.float64(0.5)))
    assert plain(spec)
    assert spec["init_args"]["beta"] == 0.5


def test_a_loss_that_does_not_keep_its_arguments_says_so() -> None:
    with pytest.raises(ConfigError, match=r"Forgetful .* keep the argument 'strength' of .* self.strength"):
        Forgetful(2.0).options()
    note = to_spec(Forgetful(2.0))
    assert note == {"live_object": f"{__name__}.Forgetful"}
    with pytest.raises(ConfigError, match=r"live object for criterion .*Forgetful.*criterion=\.\.\."):
        from_spec(note, ContrastiveLoss, "criterion")


def test_a_network_inside_of_a_loss_has_to_be_passed_again() -> None:
    spec = to_spec(WithNetwork(nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match=r"live object for criterion .*Linear.*criterion=\.\.\."):
        from_spec(spec, ContrastiveLoss, "criterion")


@pytest.mark.parametrize("path", ["subprocess.Popen", "torch.nn.Linear", "mmcl_lightning.losses.HingeLoss"])
def test_a_description_calls_no_class_that_is_no_part_of_a_loss(path: str) -> None:
    """A checkpoint of a stranger must not run what it likes."""
    spec = to_spec(NTXentLoss())
    spec["init_args"]["kernel"] = {"class_path": path, "init_args": {"args": ["true"]}}
    with pytest.raises(ConfigError, match=f"criterion: {path} is no Kernel or NegativeWeights or Solver"):
        from_spec(spec, ContrastiveLoss, "criterion")
    with pytest.raises(ConfigError, match="is no ContrastiveLoss"):
        from_spec(to_spec(RBF()), ContrastiveLoss, "criterion")


def test_a_description_as_it_stands_in_yaml() -> None:
    spec = {"class_path": "mmcl_lightning.losses.HingeLoss", "init_args": {"margin": 0.3}}
    loss = from_spec(spec, ContrastiveLoss, "criterion")
    assert isinstance(loss, HingeLoss)
    assert loss.margin == 0.3
    assert torch.equal(loss(*make_views(4, 3)), HingeLoss(0.3)(*make_views(4, 3)))
