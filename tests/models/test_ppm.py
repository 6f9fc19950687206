"""The decoder of surface normals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import PyramidPooling

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_dense.json").read_text())


def test_it_has_the_published_number_of_weights() -> None:
    with torch.device("meta"):
        decoder = PyramidPooling()
    assert sum(weight.numel() for weight in decoder.parameters()) == GOLDEN["normals_decoder_parameters"]


def test_it_is_the_formula() -> None:
    torch.manual_seed(0)
    decoder = PyramidPooling(6, 5, hidden=4, pools=(1, 3)).eval()
    x = torch.randn(1, 6, 7, 9)
    parts = [x]
    for pool, (_, conv, norm, _) in zip((1, 3), decoder.pools, strict=True):
        y = norm(conv(F.adaptive_avg_pool2d(x, pool))).relu()
        parts.append(F.interpolate(y, (7, 9), mode="bilinear", align_corners=False))
    conv, norm, _, _, last = decoder.last
    expected = last(norm(conv(torch.cat(parts, 1))).relu())
    assert torch.equal(decoder(x), expected)
    assert expected.shape == (1, 5, 7, 9)


def test_input_is_checked() -> None:
    decoder = PyramidPooling(6, 5, hidden=4)
    assert decoder(torch.randn(2, 6, 7, 9)).shape == (2, 5, 7, 9)
    with pytest.raises(
        ShapeError, match=r"2 images or more in training, got 1: .* set data\.batch_size to 2"
    ):
        decoder(torch.randn(1, 6, 7, 9))
    with pytest.raises(ConfigError, match="pools must name one number of parts or more"):
        PyramidPooling(pools=())
    with pytest.raises(ConfigError, match=r"dropout must be a finite number in \[0, 1\), got 1"):
        PyramidPooling(dropout=1)
