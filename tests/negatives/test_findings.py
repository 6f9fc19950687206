"""What the SVMs of some images found: the right alpha, and the right images in the right places."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import box_optimum, generator
from PIL import Image
from runs import Plain, shapes, simclr, trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.negatives import (
    HeldOutImages,
    Selection,
    SupportVectors,
    choose_images,
    find_support_vectors,
)
from mmcl_lightning.negatives.drawing import BLUE, GREEN, GREY, ORANGE, SIDE, readable
from mmcl_lightning.svm import Exact

IMAGES, C, REG, GAMMA = 12, 0.4, 0.1, 2.0


class Colours(Plain):
    """Its projection of an image of one colour is the colour's red and green: points in the plane."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = {"solver": Exact(tol=1e-7), "C": C, "reg": REG, "normalize": False} | options
        self.criterion = MMCLLoss(RBF(gamma=GAMMA), **options)

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return 4 * x[:, :2, 0, 0]


def colours(views: int) -> Tensor:
    """One colour per view and image, all different, in 256 steps; shape ``(views, IMAGES, 3)``."""
    steps = torch.randperm(256, generator=generator(6))[: views * IMAGES * 3].view(views, IMAGES, 3)
    return steps / 255


def loader(views: int, labels: Tensor | None = None) -> DataLoader[Any]:
    """Images of one colour each, ``(3, 8, 8)``; of two views, a list."""
    pictures = [view[:, :, None, None].expand(-1, -1, 8, 8) for view in colours(views)]
    targets = torch.arange(IMAGES) % 3 if labels is None else labels
    if views == 1:
        return DataLoader(TensorDataset(pictures[0], targets), batch_size=5)
    return DataLoader([([a, b], int(y)) for a, b, y in zip(*pictures, targets, strict=True)], batch_size=5)  # type: ignore[arg-type]


@functools.cache
def alpha_by_hand(views: int) -> dict[tuple[int, int, int], float]:
    """Alpha of (query, view, image) by a dense dual and bounded least squares in float64."""
    plane = (4 * colours(views)[..., :2].double()).tolist()
    points = {(v, i): plane[v][i] for v in range(views) for i in range(IMAGES)}

    def k(a: tuple[int, int], b: tuple[int, int]) -> float:
        return math.exp(-GAMMA * math.dist(points[a], points[b]) ** 2)

    alpha = {}
    for query in range(IMAGES):
        p = (0, query)
        negatives = [c for c in points if c[1] != query]
        delta = np.array([[k(p, p) + k(i, j) - k(p, i) - k(p, j) for j in negatives] for i in negatives])
        optimum = box_optimum(delta + REG * np.eye(len(negatives)), C)
        alpha |= {(query, *c): a for c, a in zip(negatives, optimum.tolist(), strict=True)}
    return alpha


def look(folder: Path, views: int, module: Any = None, given: Any = None) -> SupportVectors:
    module = Colours() if module is None else module
    images = choose_images(module, None, 128, "augmented", 0, given or loader(views))
    return find_support_vectors(trainer(folder), module, images)


@pytest.mark.parametrize("views", [1, 2])
def test_alpha_is_that_of_a_dense_solver(views: int, tmp_path: Path) -> None:
    found = look(tmp_path, views)
    expected = alpha_by_hand(views)
    assert found.problem.negatives == views * (IMAGES - 1)
    for (query, view, image), value in expected.items():
        assert float(found.alpha[query, view * IMAGES + image]) == pytest.approx(value, abs=2e-5)
    stats, values = found.stats(), np.array(list(expected.values()))
    assert stats["zero_fraction"] == pytest.approx((values < 1e-6).mean())
    assert stats["bound_fraction"] == pytest.approx((values > C - 1e-6).mean())
    assert min(stats["zero_fraction"], stats["free_fraction"], stats["bound_fraction"]) > 0.02
    support = {key: value for key, value in expected.items() if value > 1e-6}
    same = {(query, view, image) for query, view, image in support if query % 3 == image % 3}
    assert stats["false_negative_share"] == pytest.approx(len(same) / len(support))
    weight = sum(support[key] for key in same) / sum(support.values())
    assert stats["false_negative_share_by_alpha"] == pytest.approx(weight, abs=1e-5)
    assert stats["false_negative_base_rate"] == pytest.approx(3 / 11)


def colour_at(page: np.ndarray, x: int, y: int) -> tuple[int, ...]:
    return tuple(int(value) for value in page[y, x])


def tiles(picture: Image.Image, columns: list[int]) -> list[list[list[tuple[tuple[int, ...], ...]]]]:
    """Centre and frame colour of every tile, per row and group, read from the pixels."""
    page = np.asarray(picture)
    green = tuple(int(GREEN[i : i + 2], 16) for i in (1, 3, 5))
    # The first column of pixels that are green for a picture's height are frames of the queries.
    hits = np.argwhere((page == green).all(-1))
    left = hits[:, 1].min()
    rows, run = [], None
    for y in np.sort(np.unique(hits[hits[:, 1] == left, 0])):
        if run is None or y != run[1] + 1:
            run = [y, y]
            rows.append(run)
        run[1] = y
    rows = [run for run in rows if run[1] - run[0] > SIDE]  # the swatch of the legend is shorter
    half, pitch = SIDE // 2, SIDE + 2 * 7 + 6
    found = []
    for top, _ in rows:
        x, groups = int(left) + 3, []
        for number, width in enumerate(columns):
            group = []
            for column in range(width):
                at = x + column * pitch + half, int(top) + 3 + half
                group.append((colour_at(page, *at), colour_at(page, at[0], at[1] - half - 2)))
            groups.append(group)
            x += width * pitch + (12 if number < len(columns) - 1 else 0)
        found.append(groups)
    return found


@pytest.mark.parametrize("views", [1, 2])
def test_every_image_stands_in_its_place(views: int, tmp_path: Path) -> None:
    found = look(tmp_path, views)
    queries, shown, others = 5, 3, 2
    expected = alpha_by_hand(views)
    pixels = (colours(views) * 255).round().int().tolist()
    read = tiles(found.draw(Selection(queries, shown, others)), [1, shown, others, others])
    assert len(read) == queries
    kinds = set()
    for query, (own, strongest, nearest, random) in zip(found.choose_queries(queries), read, strict=True):
        alpha = {key[1:]: value for key, value in expected.items() if key[0] == query}
        assert own == [(tuple(pixels[0][query]), rgb(GREEN))]
        point = {c: colours(views)[c[0], c[1], :2] for c in [*alpha, (0, query)]}
        far = {c: float((point[c] - point[0, query]).square().sum()) for c in alpha}
        order = {c: (-alpha[c] if alpha[c] < C - 1e-6 else -C, far[c]) for c in alpha}  # at C: nearest first
        ranked = sorted((c for c in alpha if alpha[c] > 1e-6), key=order.__getitem__)[:shown]
        assert len(ranked) == shown
        for (view, image), (centre, frame) in zip(ranked, strongest, strict=False):
            assert centre == tuple(pixels[view][image])
            assert frame == rgb(ORANGE if image % 3 == query % 3 else BLUE)
            kinds.add(frame)
        idle = sorted((c for c in alpha if alpha[c] <= 1e-6), key=far.__getitem__)
        for (view, image), (centre, frame) in zip(idle[:others], nearest, strict=False):
            assert (centre, frame) == (tuple(pixels[view][image]), rgb(GREY))
        rest = {tuple(pixels[view][image]) for view, image in idle[others:]}
        drawn = [centre for centre, frame in random if frame == rgb(GREY)]
        assert len(drawn) == len(set(drawn)) == min(others, len(rest))
        assert set(drawn) <= rest
    assert kinds == {rgb(ORANGE), rgb(BLUE)}


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_queries_are_of_as_many_classes_as_there_are() -> None:
    targets = torch.tensor([2, 2, 2, 0, -1, 0, 1])
    images = HeldOutImages((torch.zeros(7, 3, 4, 4),), targets, torch.arange(7))
    found = SupportVectors(images, None, None)  # type: ignore[arg-type]
    assert found.choose_queries(4) == [0, 3, 4, 6]
    assert found.choose_queries(6) == [0, 1, 3, 4, 5, 6]
    assert found.choose_queries(99) == list(range(7))


def test_a_bound_alpha_has_a_thick_frame_and_is_in_the_legend(tmp_path: Path) -> None:
    found = look(tmp_path, 1)
    alpha = found.alpha
    query, candidate = (int(i) for i in (alpha >= C * (1 - 1e-6)).nonzero()[0])
    tile = found._tile(query, candidate)
    assert tile.thick
    assert tile.corner == "0.400 = C"
    assert (BLUE, True, "alpha = C") in found._legend()
    dropping = look(tmp_path, 1, Colours(drop_at_bound=True))
    assert (BLUE, True, "alpha = C, which the loss leaves out") in dropping._legend()
    unbound = look(tmp_path, 1, Colours(C=math.inf))
    assert not any(thick for _, thick, _ in unbound._legend())
    assert "at C" not in "".join(unbound.describe())


def test_without_labels_nothing_is_said_about_classes(tmp_path: Path) -> None:
    found = look(tmp_path, 2, given=loader(2, torch.full((IMAGES,), -1)))
    assert len(found.describe()) == 2
    assert not any("false_negative" in name for name in found.stats())
    assert not any(colour == ORANGE for colour, _, _ in found._legend())
    picture = found.draw(Selection(3, 2, 1))
    assert len(tiles(picture, [1, 2, 1, 1])) == 3
    assert not (np.asarray(picture) == rgb(ORANGE)).all(-1).any()


def test_letters_that_the_font_lacks() -> None:
    assert readable("café") == "cafe"
    assert readable("猫") == "?"
    images = HeldOutImages(
        (torch.zeros(2, 3, 4, 4),), torch.tensor([0, 1]), torch.arange(2), None, ["猫", "é"]
    )
    found = SupportVectors(images, None, None)  # type: ignore[arg-type]
    assert [found._caption(i) for i in (0, 1)] == ["class 0", "é"]


def test_another_loss_has_none(tmp_path: Path) -> None:
    module = simclr()
    images = choose_images(module, shapes(), 128, "augmented", 0)
    with pytest.raises(
        ConfigError, match=r"a picture of support vectors needs .* MMCLLoss; that of SimCLR is NTXentLoss"
    ):
        find_support_vectors(trainer(tmp_path), module, images)
