"""Projections in half precision: every gradient is finite, or an error says why not."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Iterator, Sequence

import pytest
import torch
from helpers import BASELINES, KERNELS, WEIGHTED, generator, make_views
from torch import Tensor

from mmcl_lightning.errors import NumericalError
from mmcl_lightning.kernels import Linear
from mmcl_lightning.losses import ContrastiveLoss, InfoNCELoss, MMCLLoss, NTXentLoss
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient

SOLVERS = (Inverse(), Exact(), ProjectedGradient())
LOSSES: tuple[ContrastiveLoss, ...] = (
    *BASELINES,
    *WEIGHTED,
    *(
        MMCLLoss(kernel, solver, C=C)
        for kernel in KERNELS
        for solver in SOLVERS
        for C in (1.0, math.inf)
        if kernel.positive_semidefinite or C == 1.0
    ),
    *(MMCLLoss(kernel, C=1.0, normalize=False) for kernel in KERNELS),
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def odd_inputs() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Views with short, long, equal, opposite and missing rows."""
    z0, z1 = make_views(8, 4, seed=3)
    for factor in (0.0, 6e-8, 1e-5, 6e-5, 1e-4, 6e4):
        rows = torch.ones(8, 1, dtype=z0.dtype)
        rows[3] = factor
        yield f"a row of one view times {factor}", rows * z0, z1
        yield f"a row of both views times {factor}", rows * z0, rows * z1
        yield f"all rows times {factor}", factor * z0, factor * z1
    yield "ordinary", z0, z1
    yield "all equal", z0[:1].expand(8, -1), z0[:1].expand(8, -1)
    yield "two equal", z0[[0, 0, 2, 3, 4, 5, 6, 7]], z1
    yield "views equal", z0, z0
    yield "views opposite", z0, -z0
    yield "on the axes", torch.eye(8, 4, dtype=z0.dtype), torch.eye(8, 4, dtype=z0.dtype).flip(0)


ODD = {name: (z0, z1) for name, z0, z1 in odd_inputs()}


def gradients(
    loss: ContrastiveLoss, views: Sequence[Tensor], dtype: torch.dtype, factor: float = 1.0
) -> bool:
    """Whether the gradients are finite; raises what the loss raises."""
    leaves = [view.to(dtype).requires_grad_() for view in views]
    (factor * loss(*leaves)).backward()
    return all(bool(leaf.grad.isfinite().all()) for leaf in leaves if leaf.grad is not None)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_no_gradient_of_any_loss_is_silently_not_finite(name: str) -> None:
    wrong, named = [], []
    for loss in LOSSES:
        try:
            if not gradients(loss, ODD[name], torch.float16):
                wrong.append(repr(loss))
        except NumericalError as error:
            named.append(str(error))
    assert wrong == []
    assert all("finite" in said or "float16 ends at 65504" in said for said in named)
    assert len(named) <= len(LOSSES) // 4, "an error is for what cannot be computed"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nor_in_other_precisions(dtype: torch.dtype) -> None:
    for name in ("all rows times 6e-08", "a row of one view times 1e-05", "all equal"):
        assert all(gradients(loss, ODD[name], dtype) for loss in (*BASELINES, MMCLLoss(), MMCLLoss(Linear())))


def test_short_rows_of_float16_have_no_direction_and_others_keep_theirs() -> None:
    z0, z1 = (view.half() for view in make_views(8, 4, seed=3))
    z0[3] *= 1e-5
    z0.requires_grad_()
    MMCLLoss()(z0, z1).backward()
    assert z0.grad is not None
    assert torch.equal(z0.grad[3], torch.zeros(4, dtype=torch.float16))
    assert z0.grad[2].abs().max() > 0
    scaled = (1e-3 * make_views(8, 4, seed=3)[0]).half()
    single = scaled.float().requires_grad_()
    half = scaled.clone().requires_grad_()
    for leaf in (single, half):
        MMCLLoss()(leaf, z1.to(leaf.dtype)).backward()
    assert torch.allclose(half.grad.float(), single.grad, rtol=1e-2, atol=1e-2)  # type: ignore[union-attr]


def test_short_rows_are_warned_of_once() -> None:
    z0, z1 = (view.half() for view in make_views(8, 4, seed=3))
    z0[3:5] *= 1e-5
    said = r"2 of 16 projections are too short for a direction in float16, .* 6e-05: .* Use bf16-mixed"
    queue = torch.nn.functional.normalize(torch.randn(32, 4, generator=generator(1)), dim=1)
    for loss, views in ((MMCLLoss(), (z0, z1)), (InfoNCELoss(0.2), (z0, z1, queue))):
        with pytest.warns(UserWarning, match=said):
            loss(*views)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss(*views)
            type(loss)()(*(view.float() for view in views))


def test_a_gradient_beyond_float16_is_named() -> None:
    views = [1.5e-4 * view for view in make_views(8, 4, seed=3)]
    loss = NTXentLoss(0.01)
    with pytest.raises(NumericalError, match=r"float16 ends at 65504: .* bf16-mixed in place of 16-mixed"):
        gradients(loss, views, torch.float16)
    assert gradients(loss, views, torch.bfloat16)


def test_what_a_scaler_multiplies_by_is_left_to_it() -> None:
    """It finds what is not finite, leaves the step out, and takes a smaller factor."""
    views = make_views(8, 4, seed=3)
    assert not gradients(MMCLLoss(), views, torch.float16, factor=2.0**24)
    assert gradients(MMCLLoss(), views, torch.float16, factor=2.0**8)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-5, 6e-5, 1.0, 6e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loss_with_a_queue_too(scale: float, dtype: torch.dtype) -> None:
    query, key = (scale * view for view in make_views(8, 4, seed=3))
    queue = torch.nn.functional.normalize(torch.randn(32, 4, generator=generator(1)), dim=1)
    leaf = query.to(dtype).requires_grad_()
    build = functools.partial(InfoNCELoss, temperature=0.2)
    build()(leaf, key.to(dtype), queue).backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
