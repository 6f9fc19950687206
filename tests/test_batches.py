"""The structures of batches that loaders give, and sentences for those that mean nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from runs import mmcl, simclr, trainer
from torch import Tensor
from torch.utils.data import DataLoader

from mmcl_lightning.batches import image_count, images_and_labels, labels_of, views_of
from mmcl_lightning.errors import DataError, ShapeError
from mmcl_lightning.views import concatenate, split

A, B = torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)
LABELS = torch.arange(4)

VIEWS: list[Any] = [
    ([A, B], LABELS),
    ((A, B), LABELS, ["a", "b", "c", "d"]),
    [[A, B]],
    {"views": [A, B], "label": LABELS},
    {"image": (A, B), "target": LABELS},
]


@pytest.mark.parametrize("batch", VIEWS)
def test_views(batch: Any) -> None:
    found = views_of(batch)
    assert found[0] is A
    assert found[1] is B
    assert image_count(batch) == 4


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        ((A, LABELS), "list of two views, each .*; got Tensor: the transform must give both views"),
        (([A], LABELS), "got 1 views"),
        (([A, B, A], LABELS), "got 3 views"),
        ({"pixels": [A, B]}, "got NoneType"),
        (None, "got NoneType"),
        ([], "got NoneType"),
        (([A, "b"], LABELS), r"must be a tensor \(B, 3, H, W\), got Tensor, str: end the transform"),
        (
            ([A.to(torch.uint8)] * 2, LABELS),
            r"floating-point, got torch.uint8, torch.uint8: let",
        ),
        (([A, B[:, :, :8]], LABELS), r"one shape, got \(4, 3, 16, 16\), \(4, 3, 8, 16\)"),
    ],
)
def test_what_is_no_pair_of_views_is_said(batch: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        views_of(batch)


@pytest.mark.parametrize(
    "batch",
    [
        (A, LABELS),
        [A, LABELS, ["a"] * 4],
        (A, LABELS.int()),
        (A, LABELS[:, None]),
        (A, LABELS.tolist()),
        {"image": A, "label": LABELS},
        {"images": A, "targets": LABELS},
        {"x": A, "y": LABELS},
    ],
)
def test_images_and_labels(batch: Any) -> None:
    images, labels = images_and_labels(batch)
    assert images is A
    assert torch.equal(labels, LABELS)
    assert labels.dtype == torch.int64
    assert labels_of(batch) is not None
    assert image_count(batch) == 4


@pytest.mark.parametrize("batch", [A, [A], (A,), {"image": A}])
def test_images_alone(batch: Any) -> None:
    images, labels = images_and_labels(batch)
    assert images is A
    assert labels.tolist() == [-1] * 4
    assert labels_of(batch) is None


@pytest.mark.parametrize(
    ("batch", "found"),
    [([[A, B], LABELS], "2 views"), ({"a": A}, r"keys \['a'\]"), ((3, LABELS), "int")],
)
def test_what_is_no_batch_of_images_is_said(batch: Any, found: str) -> None:
    with pytest.raises(DataError, match=rf"expected a batch \(images, labels\) .*, got {found}"):
        images_and_labels(batch)


@pytest.mark.parametrize("batch", [None, 3, [], {}, ([],), "text"])
def test_nothing_has_no_images(batch: Any) -> None:
    assert image_count(batch) == 0


def loader(structure: Any, count: int = 3) -> DataLoader[Any]:
    return DataLoader([0] * count, batch_size=1, collate_fn=lambda items: structure)


@pytest.mark.parametrize("batch", VIEWS)
def test_a_module_trains_on_each(batch: Any, tmp_path: Path) -> None:
    for module in (simclr(), mmcl()):
        run = trainer(tmp_path, max_steps=2)
        run.fit(module, loader(batch))
        assert run.global_step == 2


@pytest.mark.parametrize("batch", [A, (A, LABELS), {"image": A}, (A, LABELS[:, None].int(), ["a"] * 4)])
def test_a_module_embeds_each(batch: Any, tmp_path: Path) -> None:
    run: Trainer = trainer(tmp_path)
    (found, *_) = run.predict(simclr(), loader(batch))  # type: ignore[misc]
    assert found.pop("name", ["a"] * 4) == ["a"] * 4
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "h": (4, 256), "z": (4, 8), "target": (4,),
    }  # fmt: skip
    assert isinstance(found["target"], Tensor)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (8, 4, [4, 4]),
        (9, 4, [4, 3, 2]),
        (5, 4, [3, 2]),
        (7, 3, [3, 2, 2]),
        (3, 2, [2, 1]),
        (1, 4, [1]),
        (4, 9, [4]),
    ],
)
def test_no_item_is_left_alone_where_another_can_go_with_it(
    count: int, size: int, expected: list[int]
) -> None:
    view = {"a": torch.arange(count), "b": [torch.arange(2 * count).view(count, 2)]}
    parts = split(view, size)
    assert [len(part["a"]) for part in parts] == expected
    assert torch.equal(concatenate(*parts)["b"][0], view["b"][0])
