from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmcl_lightning.errors import ConfigError, NumericalError, ShapeError
from mmcl_lightning.metrics import alignment, feature_std, rankme, uniformity


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _unit(row: list[float]) -> list[float]:
    norm = math.sqrt(sum(v * v for v in row))
    return [v / norm for v in row]


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (20, 20)])
def test_rankme_is_the_entropy_of_the_singular_values(shape: tuple[int, int]) -> None:
    z = _random(*shape) @ torch.diag(torch.logspace(0, -3, shape[1]))
    sigma = torch.linalg.svdvals(z.double()).tolist()
    p = [s / sum(sigma) + 1e-7 for s in sigma]
    expected = math.exp(-sum(v * math.log(v) for v in p))
    got = rankme(z, chunk_size=7)
    assert got.value == pytest.approx(expected, rel=1e-5)
    assert got.ceiling == min(shape)


def test_rankme_ends() -> None:
    assert rankme(torch.eye(6)).value == pytest.approx(6, rel=1e-5)
    assert rankme(torch.ones(50, 6)).value == pytest.approx(1, abs=1e-4)
    assert rankme(torch.zeros(50, 6)).value == 1.0


def test_alignment_is_the_mean_squared_distance() -> None:
    z0, z1 = _random(9, 5), _random(9, 5, seed=1)
    distances = [math.dist(_unit(a), _unit(b)) for a, b in zip(z0.tolist(), z1.tolist(), strict=True)]
    assert alignment(z0, z1).item() == pytest.approx(sum(d**2 for d in distances) / 9, rel=1e-5)
    assert alignment(z0, z1, alpha=1.0).item() == pytest.approx(sum(distances) / 9, rel=1e-5)
    raw = [math.dist(a, b) ** 2 for a, b in zip(z0.tolist(), z1.tolist(), strict=True)]
    assert alignment(z0, z1, normalize=False).item() == pytest.approx(sum(raw) / 9, rel=1e-5)
    assert alignment(z0, 3 * z0).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 100])
@pytest.mark.parametrize("normalize", [True, False])
def test_uniformity_is_the_log_mean_over_pairs(chunk_size: int, normalize: bool) -> None:
    z = _random(13, 6)
    rows = [_unit(row) for row in z.tolist()] if normalize else z.tolist()
    total = [math.exp(-2 * math.dist(rows[i], rows[j]) ** 2) for i in range(13) for j in range(i)]
    got = uniformity(z, chunk_size=chunk_size, normalize=normalize)
    assert got.item() == pytest.approx(math.log(sum(total) / len(total)), rel=1e-5)
    assert (got.shape, got.dtype) == ((), torch.float32)


def test_uniformity_keeps_small_distances_of_long_rows_and_does_not_underflow() -> None:
    z = torch.tensor([[4096.0, 0.0], [4096.0, 0.5]])
    assert uniformity(z, normalize=False).item() == pytest.approx(-2 * 0.25, rel=1e-6)
    assert uniformity(torch.tensor([[1.0], [-1.0]]), t=1000.0).item() == pytest.approx(-4000, rel=1e-6)
    assert uniformity(torch.ones(5, 3)).item() == pytest.approx(0, abs=1e-6)


def test_feature_std() -> None:
    z = _random(11, 4)
    rows = [_unit(row) for row in z.tolist()]
    stds = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / 11
        stds.append(math.sqrt(sum((v - mean) ** 2 for v in column) / 10))
    assert feature_std(z).item() == pytest.approx(sum(stds) / 4, rel=1e-5)
    assert feature_std(torch.ones(5, 3)).item() == 0
    assert feature_std(_random(4000, 64)).item() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    z0, z1 = _random(30, 5).to(dtype), _random(30, 5, seed=1).to(dtype)
    assert rankme(z0) == rankme(z0.float())
    assert torch.equal(alignment(z0, z1), alignment(z0.float(), z1.float()))
    assert torch.equal(uniformity(z0), uniformity(z0.float()))
    assert torch.equal(feature_std(z0), feature_std(z0.float()))


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"N >= 2, got \(1, 3\)"):
        uniformity(torch.ones(1, 3))
    with pytest.raises(ShapeError, match=r"N >= 2, got \(1, 3\)"):
        feature_std(torch.ones(1, 3))
    with pytest.raises(ShapeError, match=r"N >= 1, got \(0, 3\)"):
        rankme(torch.ones(0, 3))
    with pytest.raises(ShapeError, match=r"one shape, got \(2, 3\) and \(3, 3\)"):
        alignment(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ConfigError, match="alpha must be > 0"):
        alignment(torch.ones(2, 3), torch.ones(2, 3), alpha=0.0)
    with pytest.raises(ConfigError, match="t must be > 0"):
        uniformity(torch.ones(2, 3), t=-1.0)
    with pytest.raises(NumericalError, match="1 of 2 rows of the health features"):
        rankme(torch.tensor([[1.0, math.nan], [0.0, 1.0]]))
