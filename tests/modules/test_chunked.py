"""Chunked encoding: the gradient of the whole batch from one chunk of activations at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import BASELINES
from torch import nn

from mmcl_lightning import ContrastiveModule, MMCLLoss, NTXentLoss
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import ContrastiveLoss
from mmcl_lightning.modules.chunked import encode_in_chunks
from mmcl_lightning.svm import Exact, ProjectedGradient

LOSSES = (*BASELINES, MMCLLoss(), MMCLLoss(solver=Exact()), MMCLLoss(solver=ProjectedGradient()))


def network(norm: nn.Module, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), norm, nn.ReLU(), nn.Linear(16, 6)).double()


def views(images: int = 10) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(images, 3, 2, 2, generator=generator, dtype=torch.float64) for _ in range(2)]


def pair(net: nn.Module) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Encode as a module does: a representation, here the pixels, and a projection."""
    return lambda x: (x.flatten(1), net(x))


def gradients(net: nn.Module, loss: ContrastiveLoss, chunk_size: int | None) -> list[torch.Tensor]:
    net.zero_grad()
    module = ContrastiveModule(loss, net, projection_head=nn.Identity(), chunk_size=chunk_size)
    loss(*module.project(views())[1]).backward()
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{loss.extra_repr()[:40]}")
@pytest.mark.parametrize("chunk_size", [1, 3, 10, 64])
def test_gradient_equals_that_of_one_pass(loss: ContrastiveLoss, chunk_size: int) -> None:
    net = network(nn.LayerNorm(16))
    for chunked, whole in zip(gradients(net, loss, chunk_size), gradients(net, loss, None), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-12)


def test_gradient_equals_that_of_one_pass_with_frozen_batch_norm() -> None:
    net = network(nn.BatchNorm1d(16))
    net(views()[0].double())  # statistics other than 0 and 1
    net[2].eval()
    for chunked, whole in zip(gradients(net, MMCLLoss(), 4), gradients(net, MMCLLoss(), None), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-12)


def test_running_statistics_move_once_per_chunk() -> None:
    net, twin = network(nn.BatchNorm1d(16)), network(nn.BatchNorm1d(16))
    gradients(net, MMCLLoss(), 4)
    for chunk in zip(*(view.split(4) for view in views()), strict=True):
        twin(torch.cat(chunk))
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(net.get_buffer(name), buffer)


def test_dropout_draws_the_same_in_both_runs_of_a_chunk() -> None:
    net, drawn = network(nn.Dropout(0.5)), []
    net[2].register_forward_hook(lambda module, inputs, output: drawn.append(output.detach() == 0))
    gradients(net, NTXentLoss(), 5)
    first, second, again_second, again_first = drawn  # backward reaches the last chunk first
    assert torch.equal(first, again_first)
    assert torch.equal(second, again_second)
    assert not torch.equal(first, second)


def test_one_chunk_of_activations_is_alive_at_a_time() -> None:
    """Saved activations grow with the chunk, not with the batch."""
    net = network(nn.LayerNorm(16))

    def saved(chunk_size: int | None) -> int:
        total = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel() if tensor.numel() >= 16 * 10 else 0  # batch-sized ones
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if chunk_size is None:
                net(torch.cat(views(200)))
            else:
                encode_in_chunks(pair(net), views(200), chunk_size, [net])
        return total

    assert saved(5) <= saved(None) / 5


def test_order_of_images_is_kept() -> None:
    net = network(nn.LayerNorm(16))
    h, z = encode_in_chunks(pair(net), views(), 4, [net])
    torch.testing.assert_close(torch.cat(z), net(torch.cat(views())))
    assert torch.equal(torch.cat(h), torch.cat(views()).flatten(1))


def test_chunk_size_is_checked() -> None:
    with pytest.raises(ConfigError, match="chunk_size must be an integer >= 1"):
        ContrastiveModule(NTXentLoss(), nn.Flatten(), projection_head=nn.Identity(), chunk_size=0)
