"""Views of any kind: joined and cut, tensors, nestings and graphs alike."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.views import concatenate, cut, is_view, item_count, map_tensors, shape_of, split


def graph(nodes: int, edges: int) -> Data:
    return Data(
        x=torch.rand(nodes, 3), edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.rand(edges, 2), y=torch.tensor([nodes]), name=f"{nodes} nodes",
        root_index=torch.tensor([nodes - 1]),
    )  # fmt: skip


def graphs() -> Batch:
    torch.manual_seed(0)
    return Batch.from_data_list(
        [graph(3, 4), graph(1, 0), graph(5, 9), graph(1, 1), graph(4, 0), graph(2, 2)]
    )


def without_features() -> Batch:
    torch.manual_seed(0)
    sizes = ((3, 4), (1, 0), (5, 2), (2, 2), (2, 0), (1, 1))
    return Batch.from_data_list(
        [Data(edge_index=torch.randint(0, nodes, (2, edges)), num_nodes=nodes) for nodes, edges in sizes]
    )


def images() -> Tensor:
    return torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def nested() -> Any:
    return {"image": images(), "others": [images()[:, 0], (graphs(), images()[:, 1])]}


VIEWS = (images, graphs, without_features, nested)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Batch):
        pairs = zip(one.to_data_list(), other.to_data_list(), strict=True)
        return (
            sorted(one.keys()) == sorted(other.keys())
            and all(equal(one[key], other[key]) for key in one.keys())  # noqa: SIM118
            and len(one) == len(other)
            and all(equal(a[key], b[key]) for a, b in pairs for key in a.keys())  # noqa: SIM118
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("make", VIEWS)
@pytest.mark.parametrize("size", [1, 3, 4, 6, 7])
@pytest.mark.parametrize("pickled", [False, True])
def test_what_is_cut_and_joined_is_the_same(make: Any, size: int, pickled: bool) -> None:
    view = pickle.loads(pickle.dumps(make())) if pickled else make()
    parts = split(view, size)
    assert sum(map(item_count, parts)) == item_count(view) == 6
    assert all(is_view(part) for part in parts)
    assert equal(concatenate(*parts), view)
    assert equal(concatenate(*split(concatenate(view, view), size)), concatenate(view, view))
    assert equal(cut(concatenate(view, view), 6, 12), view)


def test_graphs_are_those_of_torch_geometric() -> None:
    view = graphs()
    one = view.to_data_list()
    assert equal(concatenate(view, view), Batch.from_data_list(one + one))
    assert equal(cut(view, 1, 4), Batch.from_data_list(one[1:4]))
    assert len(concatenate(view, view, view)) == 18
    assert cut(view, 2, 3)[0].x.shape == (5, 3)


def test_a_part_that_is_changed_leaves_the_whole_alone() -> None:
    view = graphs()
    moved = map_tensors(view, lambda x: x.double() if x.is_floating_point() else x)
    assert (moved.x.dtype, moved.edge_index.dtype, view.x.dtype) == (
        torch.float64,
        torch.int64,
        torch.float32,
    )
    part = cut(view, 1, 3)
    part.x = part.x + 1
    part.edge_index = part.edge_index + 1
    assert equal(view, graphs())


def test_shapes_of_views() -> None:
    assert shape_of(images()) == (6, 3, 4, 4)
    assert shape_of(graphs()) == (6, "graphs", 3, "features")
    assert shape_of(without_features()) == (6, "graphs")
    assert shape_of([images(), {"a": graphs()}]) == [(6, 3, 4, 4), [(6, "graphs", 3, "features")]]


def test_gradients_pass() -> None:
    view = graphs()
    view.x.requires_grad_()
    concatenate(*split(view, 2)).x.square().sum().backward()
    assert torch.equal(view.x.grad, 2 * view.x.detach())


class Points:
    """A type of somebody else."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)


def test_a_type_of_ones_own() -> None:
    assert not is_view(Points([1]))
    with pytest.raises(ShapeError, match="got Points; a type of your own has to be registered"):
        split(Points([1, 2]), 1)
    concatenate.register(Points, lambda view, *others: Points([i for v in (view, *others) for i in v.values]))
    cut.register(Points, lambda view, start, end: Points(view.values[start:end]))
    shape_of.register(Points, len)
    parts = split(Points([1, 2, 3, 4, 5]), 2)
    assert [part.values for part in parts] == [[1, 2], [3, 4], [5]]
    assert concatenate(*parts).values == [1, 2, 3, 4, 5]
    assert is_view(Points([1]))


@pytest.mark.parametrize("thing", [None, 1, "a", [], {}, torch.tensor(1.0), [images(), []], ["a"], Data()])
def test_what_is_no_view(thing: Any) -> None:
    assert not is_view(thing)


def test_a_batch_that_does_not_know_its_graphs() -> None:
    bare = Batch(x=torch.rand(2, 3), batch=torch.tensor([0, 1]), ptr=torch.tensor([0, 1, 2]))
    with pytest.raises(ShapeError, match=r"must be one of Batch\.from_data_list"):
        concatenate(bare, bare)
