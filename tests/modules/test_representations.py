"""h is the representation: also where the head works in place, and whatever a view is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import FlatNet, mmcl, moco, trainer
from torch import Tensor, nn

from mmcl_lightning.features import encode, evaluating


class Linear(FlatNet):
    """Has outputs on both sides of zero, as no activation comes last."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def with_in_place_head() -> Any:
    head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4))
    return mmcl(backbone=Linear(), projection_head=head)


def test_h_is_what_the_backbone_gave_though_the_head_works_in_place(tmp_path: Path) -> None:
    module, x = with_in_place_head(), torch.randn(4, 3, 16, 16)
    h = module.backbone(x).detach()
    assert (h < 0).any()
    assert torch.equal(module.project([x, x])[0], torch.cat([h, h]))
    assert torch.equal(module.predict_step((x, torch.zeros(4, dtype=torch.int64)), 0)["h"], h)
    with evaluating(module):
        assert torch.equal(encode(trainer(tmp_path), module, [x], ["h", "z"])["h"], h)


class TwoInputs(nn.Module):
    """A backbone of views that are no single tensor: a picture and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16 + 1, 8)
        self.num_features = 8

    def forward(self, x: Mapping[str, Any]) -> Tensor:
        return torch.tanh(self.fc(torch.cat([x["picture"].flatten(1), x["more"][0]], dim=1)))


def view(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "picture": torch.randn(6, 3, 16, 16, generator=generator),
        "more": [torch.randn(6, 1, generator=generator)],
    }


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("build", [mmcl, moco])
def test_views_may_be_nested(build: Any, chunk_size: int | None) -> None:
    views = [view(0), view(1)]
    module = build(backbone=TwoInputs(), projection_head=nn.Linear(8, 4), chunk_size=chunk_size)
    loss, h = module.loss_of_views(views)
    loss.backward()
    assert module.backbone.fc.weight.grad.abs().sum() > 0
    passed = views if build is mmcl else views[:1]
    torch.testing.assert_close(h, torch.cat([module.backbone(one) for one in passed]))
