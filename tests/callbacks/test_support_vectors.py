"""The picture of support vectors: the right images in the right places, and no trace of having looked."""

from __future__ import annotations

import functools
import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import box_optimum, generator
from lightning.pytorch import Callback, LightningDataModule
from PIL import Image
from runs import FlatNet, Plain, events, image_loader, mmcl, shapes, simclr, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision.transforms import Compose, Normalize, ToTensor

from mmcl_lightning.callbacks import SupportVectorGrid
from mmcl_lightning.callbacks.drawing import BLUE, GREEN, GREY, ORANGE, SIDE, readable
from mmcl_lightning.callbacks.findings import SupportVectors
from mmcl_lightning.callbacks.held_out import HeldOutImages, held_out_loader, take_images
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError, ShapeError
from mmcl_lightning.kernels import RBF
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.svm import Exact
from mmcl_lightning.transforms import CIFAR_MEAN, CIFAR_STD, EvalTransform

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


def look(folder: Path, views: int, module: Any = None, **options: Any) -> SupportVectors:
    given = options.pop("loader", None) or loader(views)
    grid = SupportVectorGrid(loader=given, **options)
    module = Colours() if module is None else module
    return grid.look(trainer(folder), module)


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
    read = tiles(found.draw(queries, shown, others), [1, shown, others, others])
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
    found = look(tmp_path, 2, loader=loader(2, torch.full((IMAGES,), -1)))
    assert len(found.describe()) == 2
    assert not any("false_negative" in name for name in found.stats())
    assert not any(colour == ORANGE for colour, _, _ in found._legend())
    picture = found.draw(3, 2, 1)
    assert len(tiles(picture, [1, 2, 1, 1])) == 3
    assert not (np.asarray(picture) == rgb(ORANGE)).all(-1).any()


def test_is_written_where_due_and_only_with_a_board(tmp_path: Path) -> None:
    grid = SupportVectorGrid(every_n_epochs=2, images=10, queries=3, support_vectors=2, others=1)
    module = mmcl(C=0.5)
    runner = trainer(tmp_path, grid, log=True, max_epochs=3)
    runner.fit(module, shapes())
    written = events(tmp_path).Images("svm/support_vectors")
    assert [event.step for event in written] == [8, 12]
    last = SupportVectorGrid(images=10, queries=3, support_vectors=2, others=1)
    expected = last.draw(last.look(runner, module), "after 3 epochs")
    shown = np.asarray(Image.open(io.BytesIO(written[-1].encoded_image_string)).convert("RGB"))
    assert np.array_equal(shown, np.asarray(expected))
    silent = SupportVectorGrid(images=10)
    trainer(tmp_path / "none", silent).fit(mmcl(), shapes())
    assert silent._chosen is None


class Watch(Callback):
    """Modes of the network and what the loss found, at the start of every batch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.look(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.look(pl_module)

    def look(self, module: Any) -> None:
        stats = {name: float(value) for name, value in module.criterion.last_stats.items()}
        self.seen.append(([child.training for child in module.modules()], stats, repr(module.criterion)))


def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    ends = []
    for with_it in (False, True):
        watch = Watch()
        extra = [SupportVectorGrid(every_n_epochs=1, images=10, queries=2, loader=None)] if with_it else []
        module = mmcl(symmetric=True)
        module.projection_head.eval()  # a mode of its own has to come back
        torch.manual_seed(7)
        # Callbacks run in their order: the watch comes after the grid.
        trainer(tmp_path / str(with_it), *extra, watch, log=True, max_epochs=2).fit(module, shapes())
        ends.append((module.state_dict(), watch.seen, torch.rand(3).tolist()))
    (alone, seen, draws), (watched, watched_seen, watched_draws) = ends
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    assert seen == watched_seen
    assert draws == watched_draws


def still(folder: Path, **options: Any) -> bytes:
    """Picture of a network that does not move."""
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    torch.manual_seed(0)
    module = mmcl(
        backbone=FlatNet(), projection_head=head, optimizer=functools.partial(torch.optim.SGD, lr=0.0)
    )
    grid = SupportVectorGrid(every_n_epochs=1, images=12, queries=2)
    size = 16 // options.get("devices", 1)
    trainer(folder, grid, log=True, **options).fit(module, shapes(batch_size=size))
    (event,) = events(folder).Images("svm/support_vectors")
    return event.encoded_image_string


def test_two_processes_draw_the_picture_of_one_once(tmp_path: Path) -> None:
    torch.manual_seed(3)
    one = still(tmp_path / "one")
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = still(tmp_path / "two", devices=2, strategy="ddp_fork")
    assert one == two


def test_the_images_are_a_fixed_choice_of_all(tmp_path: Path) -> None:
    data = shapes(test_size=60)
    runs = [take_images(held_out_loader(data, "augmented"), 20, seed, data) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].positions, runs[1].positions)
    assert torch.equal(runs[0].views[1], runs[1].views[1])
    assert not torch.equal(runs[0].positions, runs[2].positions)
    assert runs[0].positions.max() >= 20
    assert runs[0].class_names == data.class_names
    dataset = data.val_dataloader().dataset
    for row, position in enumerate(runs[0].positions.tolist()):
        (view0, view1), target = dataset[position]
        assert torch.equal(runs[0].views[0][row], view0)
        assert torch.equal(runs[0].views[1][row], view1)
        assert int(runs[0].targets[row]) == target
    clean = take_images(held_out_loader(data, "clean"), 20, 0, data)
    assert len(clean.views) == 1
    assert torch.equal(clean.positions, runs[0].positions)
    assert torch.equal(clean.views[0][3], data.knn_dataloaders()[1].dataset[int(clean.positions[3])][0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.full((3, 4, 4), i / 10), i) for i in range(10)])


@pytest.mark.parametrize("given", ["stream", "list"])
def test_images_of_a_loader_without_length_are_those_of_its_first_batch(given: str) -> None:
    batches = DataLoader(Stream(), batch_size=6)
    images = take_images(batches if given == "stream" else list(batches), 4, seed=0)
    assert images.targets.tolist() == images.positions.tolist() == [0, 1, 2, 3]
    assert take_images(batches, 40, seed=0).positions.tolist() == list(range(6))


@pytest.mark.parametrize(
    "transform",
    [
        EvalTransform.cifar(),
        Compose([ToTensor(), Normalize(CIFAR_MEAN, CIFAR_STD)]),
    ],
)
def test_normalisation_is_undone(transform: Any) -> None:
    pixels = torch.randint(256, (2, 6, 6, 3), generator=generator(4)).byte().numpy()

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.transform = transform

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return self.transform(Image.fromarray(pixels[index])), index

    images = take_images(DataLoader(torch.utils.data.Subset(Data(), [1, 0])), 2, seed=0)
    assert images.views[0].min() < -0.5
    expected = torch.from_numpy(pixels[1]).permute(2, 0, 1) / 255
    torch.testing.assert_close(images.picture(0, 0), expected)


def test_unknown_normalisation_is_scaled() -> None:
    views = torch.tensor([-2.0, 0.0, 2.0, 1.0]).view(2, 2, 1, 1).expand(2, 2, 3, 3)[:, :1].expand(2, 3, 3, 3)
    images = HeldOutImages((views,), torch.tensor([0, 9]), torch.arange(2), class_names=["cat"])
    assert images.picture(0, 0).unique().tolist() == [0.0]
    assert images.picture(0, 1).unique().tolist() == [1.0]
    assert images.class_name(0) == "cat"
    assert images.class_name(1) == "class 9"  # a label without a name


def test_letters_that_the_font_lacks() -> None:
    assert readable("café") == "cafe"
    assert readable("猫") == "?"
    images = HeldOutImages(
        (torch.zeros(2, 3, 4, 4),), torch.tensor([0, 1]), torch.arange(2), None, ["猫", "é"]
    )
    found = SupportVectors(images, None, None)  # type: ignore[arg-type]
    assert [found._caption(i) for i in (0, 1)] == ["class 0", "é"]


def test_unlabelled_folder(tmp_path: Path) -> None:
    for index in range(20):
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(tmp_path / f"{index}.png")
    data = ImageFolderDataModule(str(tmp_path), image_size=16, batch_size=8, num_workers=0, holdout=0.5)
    for views, count in (("augmented", 2), ("clean", 1)):
        images = take_images(held_out_loader(data, views), 8, 0, data)  # type: ignore[arg-type]
        assert len(images.views) == count
        assert images.targets.tolist() == [-1] * 8
    grid = SupportVectorGrid(images=8, queries=2)
    trainer(tmp_path / "run", grid, log=True).fit(mmcl(), data)
    assert len(events(tmp_path / "run").Images("svm/support_vectors")) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1, got 0"),
        ({"images": 1}, "images must be an integer >= 2, got 1"),
        ({"support_vectors": 0}, "support_vectors must be an integer >= 1"),
        ({"views": "both"}, "views must be 'augmented' or 'clean', got 'both'"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SupportVectorGrid(**options)


class Bare(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return image_loader(24, seed=5)


def test_a_loss_without_support_vectors_has_no_pictures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        trainer(tmp_path, SupportVectorGrid(), log=True).fit(simclr(), shapes())
    assert caplog.text.count("the loss has no support vectors") == 1


def test_what_cannot_work_stops_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"a picture of support vectors needs .* MMCLLoss; that of SimCLR is NTXentLoss"
    ):
        SupportVectorGrid().look(trainer(tmp_path), simclr(), shapes())
    with pytest.raises(ConfigError, match=r"no held-out images to look at: give a loader"):
        trainer(tmp_path, SupportVectorGrid(), log=True).fit(mmcl(), Bare())
    with pytest.raises(DataError, match="loader is empty"):
        take_images([], 8, 0)
    with pytest.raises(DataError, match="one held-out image has no negatives"):
        take_images(image_loader(1, seed=0), 8, 0)
    with pytest.raises(ShapeError, match=r"images \(B, 3, H, W\) or a list of two views"):
        take_images([([torch.zeros(4, 3, 8, 8)] * 3, torch.zeros(4))], 8, 0)
