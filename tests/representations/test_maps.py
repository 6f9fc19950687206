"""Maps of representations: right components, neighbours kept, every class told apart or counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import complaint

from mmcl_lightning._plots import COLOURS, GREY
from mmcl_lightning.callbacks.tables import write_table
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.representations import EmbeddedImages, draw_map, map_points
from mmcl_lightning.representations.maps import _looks, sample


def images(h: torch.Tensor, classes: list[str] | None = None) -> EmbeddedImages:
    names = [f"{row}.png" for row in range(len(h))]
    return EmbeddedImages(h, names, classes or [""] * len(h), [""] * len(h))


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_principal_components(shape: tuple[int, int]) -> None:
    h = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) + 0.3
    points = map_points(h)
    rows = (h / h.norm(dim=1, keepdim=True)).numpy().astype(np.float64)
    _, values, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    expected = (rows - rows.mean(axis=0)) @ directions[:2].T
    np.testing.assert_allclose(np.abs(points.xy.numpy()), np.abs(expected), atol=1e-6)
    shares = 100 * values**2 / (values**2).sum()
    assert points.axes == tuple(
        f"principal component {i}: {share:.0f} % of the variance" for i, share in enumerate(shares[:2], 1)
    )
    assert points.how == f"PCA, {shares[:2].sum():.0f} % of the variance"


def test_lengths_do_not_count() -> None:
    h = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    scaled = h * torch.arange(1, 11)[:, None]
    torch.testing.assert_close(map_points(scaled).xy, map_points(h).xy)


def test_a_collapsed_network_is_one_point() -> None:
    points = map_points(torch.ones(5, 3))
    assert points.xy.abs().max() < 1e-6
    assert points.how == "PCA, 0 % of the variance"


def test_tsne_keeps_neighbours() -> None:
    group = torch.arange(30) % 3
    noise = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    points = map_points(torch.eye(8)[group] + 0.05 * noise, "tsne")
    distances = torch.cdist(points.xy, points.xy).fill_diagonal_(torch.inf)
    assert torch.equal(group[distances.argmin(dim=1)], group)
    assert points.axes == ("", "")
    assert points.how.startswith("t-SNE (perplexity 10), ")


def test_what_has_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="at least 3 images, got 2"):
        map_points(torch.eye(2))
    with pytest.raises(NumericalError, match="h of row 1 is not finite"):
        map_points(torch.tensor([[1.0], [float("nan")], [2.0]]))
    with pytest.raises(ConfigError, match="method must be 'pca' or 'tsne', got 'umap'"):
        map_points(torch.eye(3), "umap")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises((ConfigError, ValueError), match=r"scikit-learn|sklearn"):
        map_points(torch.eye(3), "tsne")


def test_at_most_5000_images_evenly_spaced() -> None:
    found = sample(images(torch.arange(10_000.0)[:, None]))
    assert found.h[:, 0].tolist() == list(range(0, 10_000, 2))
    assert found.paths[1] == "2.png"
    assert sample(images(torch.eye(3))).paths == ["0.png", "1.png", "2.png"]


def test_twenty_classes_are_told_apart_and_the_rest_is_grey() -> None:
    names = [f"{index:02}" for index in range(23)]
    looks = _looks([*names, *names[3:], ""])  # the first three are the smallest
    told = {name: look for name, look in looks.items() if look.marker}
    assert sorted(told) == names[3:]
    assert len(set(told.values())) == 20
    assert {looks[name].colour for name in ("00", "01", "02", "")} == {GREY}
    assert _looks([""])[""].colour == COLOURS[0], "of a folder without classes no image is a lesser one"


def test_the_legend_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.axes

    texts: list[str] = []
    monkeypatch.setattr(
        matplotlib.axes.Axes, "legend", lambda self, handles, labels, **rest: texts.extend(labels)
    )
    classes = [f"{index:02}" for index in range(22)] * 2 + ["a $very$ long name of a class that goes on", ""]
    h = torch.randn(len(classes), 4)
    assert draw_map(images(h, classes), map_points(h), tmp_path / "m.png")
    assert texts[:2] == ["00 (2)", "01 (2)"]
    assert texts[20:] == ["3 more classes (5)", "without a class (1)"]
    texts.clear()
    draw_map(images(h[:3], classes[-2:-1] * 3), map_points(h[:3]), tmp_path / "n.png")
    assert texts == [r"a \$very\$ long ...hat goes on (3)"]


def test_the_picture_has_the_colours_of_the_classes(tmp_path: Path) -> None:
    h = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    draw_map(images(h, ["cat", "dog"] * 10), map_points(h), tmp_path / "m.png", ["two classes"])
    with Image.open(tmp_path / "m.png") as picture:
        colours = {pixel for _, pixel in picture.convert("RGB").getcolors(2**24)}
    rgb = [tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in COLOURS]
    assert set(rgb[:2]) <= colours
    assert not set(rgb[2:6]) & colours


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images of two classes, with their pictures."""
    monkeypatch.chdir(tmp_path)
    paths = [f"{name}/{index}.png" for name in ("cat", "dog") for index in range(3)]
    for index, path in enumerate(paths):
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 30), (40 * index, 0, 0)).save(tmp_path / "photos" / path)
    columns = {
        "h": np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32),
        "path": np.array(paths),
        "class": np.array([path[:3] for path in paths]),
        "split": np.array(["train"] * 6),
    }
    write_table(tmp_path / "out.npz", columns)
    return tmp_path / "out.npz"


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["map", "out.npz"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Wrote out.png: 6 images by PCA, ")
    assert said[1:] == ["next: mmcl map out.npz --method tsne"]
    main(["map", "out.npz", "--method=tsne", "--out=made/t.png"])
    assert capsys.readouterr().out.splitlines() == [
        "Wrote made/t.png: 6 images by t-SNE (perplexity 2), which keeps neighbours, not distances",
        "next: mmcl neighbours out.npz --picture --root FOLDER",
    ]
    main(["map", "out.npz"])
    assert (file.parent / "out_2.png").is_file()


def test_the_projector_has_classes_and_thumbnails(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["map", "out.npz", "--tensorboard=projector", "--root=photos"])
    said = capsys.readouterr().out
    assert "Wrote projector: 6 of 6 images for the projector, with thumbnails\n" in said
    assert said.endswith("next: tensorboard --logdir projector\n")
    (rows,) = file.parent.glob("projector/*/h/metadata.tsv")
    lines = rows.read_text().splitlines()
    assert lines[:2] == ["class\tsplit\tpath", "cat\ttrain\tcat/0.png"]
    assert len(lines) == 7
    with Image.open(rows.with_name("sprite.png")) as sprite:
        assert sprite.size == (3 * 48, 3 * 48)
        pixel = [sprite.convert("RGB").getpixel((48 + 24, y)) for y in (5, 24, 43)]
    assert pixel == [(255, 255, 255), (40, 0, 0), (255, 255, 255)], "wide ones are whole, in a white square"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none.npz"], "there is no file none.npz: give one that predict or embed wrote"),
        (["out.npz", "--out=out.npz"], "--out is a picture whose name ends in .png, got out.npz"),
        (["out.npz", "--tensorboard=photos"], "photos exists: give another path to write to, or remove it"),
        (["out.npz", "--tensorboard=p", "--root=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_work(
    options: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(["map", *options], capsys, code=1)
    assert not list(file.parent.glob("*.png"))


def test_without_matplotlib(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmcl_lightning.representations import command

    monkeypatch.setattr(command, "draw_map", lambda *given: False)
    command.write_map(EmbeddedImages.read("out.npz"), file, "pca", Path("m.png"))
    assert capsys.readouterr().out == 'no map: it needs matplotlib, pip install "mmcl-lightning[map]"\n'


def test_equal_representations_have_no_map_by_tsne() -> None:
    with pytest.raises(DataError, match="all 20 h are equal, as those of a collapsed network"):
        map_points(torch.ones(20, 4), "tsne")
