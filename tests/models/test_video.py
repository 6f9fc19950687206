"""S3D: torchvision's weights, CoCLR's constants, clips of any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import build_backbone, explained, feature_dim
from mmcl_lightning.models.video import S3D
from mmcl_lightning.modules.weights import backbone_from


def test_it_is_the_network_of_the_paper() -> None:
    net = build_backbone("s3d")
    assert isinstance(net, S3D)
    convolutions = [part for part in net.modules() if isinstance(part, nn.Conv3d)]
    assert len(convolutions) == 77
    assert sum(p.numel() for p in net.parameters()) == 7_910_048
    assert feature_dim(net) == 1024
    norms = [part for part in net.modules() if isinstance(part, nn.BatchNorm3d)]
    assert {(part.eps, part.momentum) for part in norms} == {(1e-5, 0.1)}
    spread = torch.cat([part.weight.detach().flatten() for part in convolutions]).std()
    assert float(spread) == pytest.approx(0.01, rel=0.01)


def test_a_file_of_torchvision_fits(tmp_path: Path) -> None:
    theirs = torchvision.models.video.s3d(num_classes=7)
    torch.save(theirs.state_dict(), tmp_path / "s3d.pth")
    own, _, report = backbone_from(str(tmp_path / "s3d.pth"), "s3d")
    assert report.endswith("left out: classifier.1.weight, classifier.1.bias")
    for part in theirs.features.modules():
        if isinstance(part, nn.BatchNorm3d):
            part.eps = 1e-5
    clips = torch.rand(1, 3, 8, 48, 48)
    with torch.no_grad():
        expected = theirs.features.eval()(clips).mean(dim=(2, 3, 4))
        assert torch.equal(own.eval()(clips), expected)


@pytest.mark.parametrize("shape", [(5, 32, 32), (8, 112, 112), (9, 40, 56), (16, 64, 64)])
def test_clips_of_any_size(shape: tuple[int, int, int]) -> None:
    net = S3D().eval()
    with torch.no_grad():
        h = net(torch.rand(1, 3, *shape))
    assert h.shape == (1, 1024)
    assert 0 < float(h.norm()) < 1e-10  # of an untrained network: the readouts work with it


@pytest.mark.parametrize("shape", [(2, 3, 4, 32, 32), (2, 3, 8, 31, 32), (2, 3, 32, 32)])
def test_clips_that_are_too_small(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"s3d takes clips .* of 5 frames and 32 x 32 pixels or more, got"):
        S3D()(torch.rand(shape))


def test_running_statistics_follow() -> None:
    torch.manual_seed(0)
    stem = S3D().features[0].train()
    norm = next(part for part in stem.modules() if isinstance(part, nn.BatchNorm3d))
    seen: list[torch.Tensor] = []
    norm.register_forward_pre_hook(lambda _, given: seen.append(given[0].mean(dim=(0, 2, 3, 4))))
    clips = torch.rand(4, 3, 5, 32, 32)
    for _ in range(50):
        stem(clips)
    torch.testing.assert_close(norm.running_mean, seen[-1], rtol=0.01, atol=1e-8)  # 1 - 0.9^50 of it


def test_options() -> None:
    with pytest.raises(ConfigError, match="no published weights for 's3d'"):
        build_backbone("s3d", pretrained=True)
    with pytest.raises(ConfigError, match=r"s3d takes clips of 3 channels, got in_channels=2"):
        build_backbone("s3d", in_channels=2)


def test_backbones_of_other_items_are_sentences() -> None:
    from torch_geometric.data import Batch, Data

    graphs = Batch.from_data_list([Data(x=torch.ones(2, 7), edge_index=torch.tensor([[0], [1]]))] * 2)
    clips = torch.rand(2, 3, 5, 32, 32)
    with pytest.raises(ShapeError, match=r"s3d takes clips .* got DataBatch: set data to videos"):
        build_backbone("s3d")(graphs)
    with pytest.raises(ShapeError, match=r"conv4 takes images \(B, C, H, W\), got \(2, 3, 5, 32, 32\)"):
        build_backbone("conv4")(clips)
    net = build_backbone("resnet18")
    with (
        pytest.raises(
            ShapeError, match=r"takes images \(B, C, H, W\), and these are clips \(2, 3, 5, 32, 32\)"
        ),
        explained(net, clips),
    ):
        net(clips)
