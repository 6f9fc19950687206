"""Networks of graphs against loops, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphSAGE, global_mean_pool

from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models import GIN, GraphEncoder, build_backbone, feature_dim


def graphs(features: int = 3, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for nodes, edges in ((5, 6), (1, 0), (4, 0), (7, 12), (2, 1)):
        pairs = torch.combinations(torch.arange(nodes))
        pairs = pairs[torch.randperm(len(pairs), generator=generator)[:edges]].T
        x = torch.rand(nodes, features, generator=generator, dtype=torch.float64)
        made.append(Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1)))
    return Batch.from_data_list(made)


def twin(net: GIN, batch: Batch) -> Tensor:
    """Graph by graph, with dense adjacency, and batch norm from its definition."""
    count = len(batch)
    x = [batch[i].x for i in range(count)]
    sums: list[list[Tensor]] = [[] for _ in range(count)]
    for layer, norm in zip(net.layers, net.norms, strict=True):
        out = []
        for i in range(count):
            dense = torch.eye(len(x[i]), dtype=torch.float64)
            for a, b in batch[i].edge_index.T.tolist():
                dense[b, a] += 1
            hidden = F.relu(dense @ x[i] @ layer[0].weight.T + layer[0].bias)
            out.append(F.relu(hidden @ layer[2].weight.T + layer[2].bias))
        rows = torch.cat(out)
        mean, var = rows.mean(0), rows.var(0, unbiased=False)
        x = [(rows - mean) / torch.sqrt(var + norm.eps) * norm.weight + norm.bias for rows in out]
        for i in range(count):
            sums[i].append(x[i].sum(0))
    return torch.stack([torch.cat(parts) for parts in sums])


def test_gin_equals_a_twin_with_dense_adjacency() -> None:
    torch.manual_seed(0)
    net = GIN(3, hidden=8).double()
    for norm in net.norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    batch = graphs()
    torch.testing.assert_close(net(batch), twin(net, batch), rtol=0, atol=1e-12)


def test_permuting_nodes_changes_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    net, batch = GIN(3).double(), graphs()
    shuffled = []
    for i in range(len(batch)):
        order = torch.randperm(len(batch[i].x))
        place = order.argsort()
        shuffled.append(Data(x=batch[i].x[order], edge_index=place[batch[i].edge_index]))
    torch.testing.assert_close(net(Batch.from_data_list(shuffled)), net(batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("features", "weights"), [(7, 5728), (89, 8352), (1, 5536)])
def test_it_is_built_by_name_with_the_published_weights(features: int, weights: int) -> None:
    net = build_backbone(f"gin:{features}")
    assert sum(p.numel() for p in net.parameters()) == weights
    assert feature_dim(net) == 96
    wide = build_backbone({"name": f"gin:{features}", "hidden": 8, "layers": 2})
    assert feature_dim(wide) == 16
    assert wide(graphs(features)).shape == (5, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_features_of_any_type_meet_the_weights(dtype: torch.dtype) -> None:
    batch = graphs()
    batch.x = (10 * batch.x).to(dtype)
    assert build_backbone("gin:3")(batch).dtype == torch.float32
    assert build_backbone("gin:3").double()(batch).dtype == torch.float64


def test_sums_of_many_nodes_are_not_rounded_by_a_mixed_precision() -> None:
    torch.manual_seed(0)
    net = GIN(1, layers=1).eval()
    many = Batch.from_data_list(
        [Data(x=torch.ones(3000, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))]
    )
    exact = net(many)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net(many)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=2.0)


class Mean(nn.Module):
    """Somebody's network, pooled within."""

    def __init__(self, pool: bool = True) -> None:
        super().__init__()
        self.net, self.pool = GraphSAGE(3, 8, 2), pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        rows = self.net(x.float(), edge_index)
        return global_mean_pool(rows, batch) if self.pool else rows


def test_anybodys_network() -> None:
    net = GraphEncoder(Mean(), 8)
    assert feature_dim(net) == 8
    assert net(graphs()).shape == (5, 8)
    assert GraphEncoder(GraphSAGE(3, 8, 2)).num_features == 8  # its out_channels
    with pytest.raises(ShapeError, match=r"expected \(5, 8\), a row per graph, from Mean, got \(19, 8\)"):
        GraphEncoder(Mean(pool=False), 8)(graphs())
    with pytest.raises(ConfigError, match="needs num_features, the width F of what Mean gives"):
        GraphEncoder(Mean())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gin:x", {}, "named by the features of a node, such as 'gin:7', got 'gin:x'"),
        ("gin:", {}, "such as 'gin:7'"),
        ("gin:0", {}, "in_features must be an integer >= 1"),
        ("gin:7", {"width": 3}, "the options hidden and layers, and no 'width'"),
        ("gin:7", {"hidden": 0}, "hidden must be an integer >= 1"),
        ("gin:7", {"pretrained": True}, "no published weights for 'gin:7'"),
        ("gin:7", {"cifar_stem": True}, "cifar_stem=True works with torchvision ResNets"),
        ("gni:7", {}, "Unknown backbone 'gni:7'.*for graphs, 'gin:7'"),
    ],
)
def test_bad_names(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_backbone(name, **options)


def test_what_it_does_not_take() -> None:
    with pytest.raises(
        ShapeError, match=r"features \(89,\), and the backbone takes 7 .* --model.backbone gin:89"
    ):
        build_backbone("gin:7")(graphs(89))
    with pytest.raises(ShapeError, match=r"takes a batch of torch_geometric .* got Tensor \(2, 3, 8, 8\)"):
        build_backbone("gin:7")(torch.rand(2, 3, 8, 8))
    with pytest.raises(ShapeError, match=r"x, edge_index and batch, got Data"):
        build_backbone("gin:3")(Data(x=torch.rand(2, 3), edge_index=torch.tensor([[0], [1]])))
