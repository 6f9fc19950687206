"""Augmentations of graphs: how much they drop, and what they leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.transforms import (
    DropEdges,
    DropNodes,
    GraphTransform,
    GraphViews,
    MaskFeatures,
    MultiView,
    OneOf,
    Subgraph,
    WholeGraph,
)

POOL = (DropNodes(0.2), DropEdges(0.2), Subgraph(0.5), MaskFeatures(0.2), OneOf([DropNodes(0.5)]))


def graph(nodes: int = 10, edges: int = 12, seed: int = 0) -> Data:
    """Undirected, the number of each node in its features, with what views are not to carry."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.combinations(torch.arange(nodes))
    pairs = pairs[torch.randperm(len(pairs), generator=generator)[:edges]].T
    x = torch.stack([torch.arange(nodes).float(), torch.zeros(nodes)], dim=1)
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    return Data(x=x, edge_index=edge_index, y=torch.tensor([1]), name="secret")


def edges_by_name(view: Any) -> set[tuple[int, int]]:
    names = view.x[:, 0].long()
    return {(int(names[a]), int(names[b])) for a, b in view.edge_index.T}


def components(view: Any) -> int:
    reach = torch.eye(len(view.x), dtype=torch.bool)
    reach[view.edge_index[0], view.edge_index[1]] = True
    for _ in range(len(view.x)):
        reach = (reach.float() @ reach.float()) > 0
    return len({tuple(row.tolist()) for row in reach})


@pytest.mark.parametrize("transform", POOL, ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_views_carry_features_and_edges_of_an_undirected_graph(transform: GraphTransform, seed: int) -> None:
    whole, before = graph(seed=seed), graph(seed=seed)
    torch.manual_seed(seed)
    view = transform(whole)
    assert set(view.keys()) == {"x", "edge_index"}
    assert is_undirected(view.edge_index, num_nodes=len(view.x))
    assert len(view.x) >= 1
    assert view.edge_index.numel() == 0 or int(view.edge_index.max()) < len(view.x)
    if not isinstance(transform, MaskFeatures):
        assert edges_by_name(view) <= edges_by_name(whole)
    torch.manual_seed(seed)
    again = transform(graph(seed=seed))
    assert torch.equal(again.x, view.x)  # torch's generator alone
    assert torch.equal(again.edge_index, view.edge_index)
    assert torch.equal(whole.x, before.x)
    assert torch.equal(whole.edge_index, before.edge_index)


def test_counts() -> None:
    whole = graph()
    assert len(DropNodes(0.2)(whole).x) == 8
    assert len(DropNodes(0.0)(whole).x) == 10
    assert len(DropNodes(0.29)(graph(100, 50)).x) == 71  # 0.29 * 100 is 28.999999999999996
    assert DropEdges(0.25)(whole).edge_index.shape == (2, 18)
    assert len(DropEdges(0.25)(whole).x) == 10
    masked = MaskFeatures(0.3)(whole)
    assert int((masked.x != whole.x).any(dim=1).sum()) == 3
    noise = torch.cat([MaskFeatures(0.99)(graph(100, 10)).x for _ in range(50)])
    noise = noise[noise[:, 1] != 0]
    assert noise.mean().item() == pytest.approx(0.5, abs=0.02)
    assert noise.std().item() == pytest.approx(0.5, abs=0.02)


def test_nodes_that_are_kept_keep_all_edges_between_them() -> None:
    whole = graph()
    for transform in (DropNodes(0.4), Subgraph(0.6)):
        view = transform(whole)
        kept = set(view.x[:, 0].long().tolist())
        assert edges_by_name(view) == {(a, b) for a, b in edges_by_name(whole) if {a, b} <= kept}


def test_a_subgraph_is_connected_and_grows_beyond_the_neighbours_of_its_first_node() -> None:
    path = Data(
        x=torch.arange(20.0)[:, None], edge_index=torch.stack([torch.arange(19), torch.arange(1, 20)])
    )
    path.edge_index = torch.cat([path.edge_index, path.edge_index.flip(0)], dim=1)
    for seed in range(20):
        torch.manual_seed(seed)
        view = Subgraph(0.5)(path)
        assert len(view.x) == 10
        assert components(view) == 1
    torch.manual_seed(0)
    starts = {int(Subgraph(0.05)(path).x[0, 0]) for _ in range(300)}
    assert starts == set(range(20))  # any node may be the first


def test_a_subgraph_stops_where_it_can_grow_no_further() -> None:
    apart = Data(x=torch.rand(6, 1), edge_index=torch.tensor([[0, 1], [1, 0]]))
    sizes = set()
    for seed in range(20):
        torch.manual_seed(seed)
        sizes.add(len(Subgraph(1.0)(apart).x))
    assert sizes == {1, 2}


@pytest.mark.parametrize("transform", [*POOL, DropNodes(0.99), Subgraph(0.01)], ids=repr)
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_smallest_graphs_keep_a_node(transform: GraphTransform, nodes: int) -> None:
    bare = Data(x=torch.rand(nodes, 3), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert len(transform(bare).x) >= 1


def test_both_directions_and_loops_go_together() -> None:
    looped = Data(x=torch.rand(3, 1), edge_index=torch.tensor([[0, 1, 2, 1, 1], [1, 0, 2, 2, 2]]))
    for seed in range(10):
        torch.manual_seed(seed)
        kept = DropEdges(0.34)(looped).edge_index.T.tolist()  # one of three pairs
        assert len(kept) in (3, 4)
        assert ([0, 1] in kept) == ([1, 0] in kept)


def test_views_are_the_graph_and_an_augmentation_or_two() -> None:
    whole, views = graph(), GraphViews()
    assert isinstance(views, MultiView)
    assert views.views == 2
    first, second = views(whole)
    assert torch.equal(first.x, whole.x)
    assert "y" not in first
    assert len(second.x) < 10
    assert [len(view.x) < 10 for view in GraphViews("nodes", both=True)(whole)] == [True, True]
    assert repr(WholeGraph()) == "WholeGraph()"
    pools = {"random2": 2, "random3": 3, "random4": 4, "edges": 1}
    assert [len(GraphViews(pool).transform.transforms) for pool in pools] == list(pools.values())
    kinds = set()
    for seed in range(40):
        torch.manual_seed(seed)
        view = GraphViews("random3")(graph(20, 60))[1]
        kinds.add((len(view.x), view.edge_index.shape[1] if len(view.x) == 20 else None))
    assert kinds == {(18, None), (4, None), (20, 108)}  # nodes, subgraph, edges: of 20 and 60


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DropNodes(1.0), r"ratio must be a finite number in \[0, 1\), got 1.0"),
        (lambda: GraphViews(ratio=-0.1), "ratio must be"),
        (lambda: Subgraph(0.0), r"keep must be a finite number in \(0, 1\]"),
        (lambda: GraphViews(pool="random5"), "pool must be one of random2, random3, random4, nodes"),
        (lambda: GraphViews(both="yes"), "both must be True or False"),
        (lambda: OneOf([]), "needs at least one transform"),
    ],
)
def test_bad_options(build: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()
