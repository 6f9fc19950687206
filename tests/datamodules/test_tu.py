"""TUDataModule: what is read from the official files, and what is said of damaged ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import tu, write_tu
from torch_geometric.datasets import TUDataset
from torch_geometric.utils import is_undirected

from mmcl_lightning.datamodules import TUDataModule
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import DropNodes


def opened(root: Path, **changes: Any) -> TUDataModule:
    data = tu(root, **changes)
    data.setup()
    return data


def test_graphs_are_those_of_torch_geometric(tmp_path: Path) -> None:
    data = opened(tmp_path)
    reference = TUDataset(str(tmp_path), "MUTAG")
    assert len(data.graphs) == len(reference) == 24
    assert data.num_features == reference.num_features == 7
    assert (data.class_names, data.num_classes) == (["-1", "1"], 2)
    for i, other in enumerate(reference):
        graph, target = data.graphs[i]
        assert torch.equal(graph.x, other.x)
        assert torch.equal(graph.edge_index, other.edge_index)
        assert target == int(other.y)


def test_splits_and_loaders(tmp_path: Path) -> None:
    data = opened(tmp_path)
    splits = data.splits
    assert len(splits.pretrain) == 24
    assert splits.heldout is None
    assert np.bincount(splits.query.targets).tolist() == [2, 1]
    assert np.bincount(splits.bank.targets).tolist() == [10, 11]
    assert data.val_dataloader() == []
    other = opened(tmp_path, seed=1).splits
    assert other.query.indices.tolist() != splits.query.indices.tolist()
    batches = list(data.train_dataloader())
    assert [len(targets) for _, targets in batches] == [8, 8, 8]
    (first, second), targets = batches[0]
    assert (len(first), len(second)) == (8, 8)
    assert (first.x.dtype, first.edge_index.dtype, targets.dtype) == (
        torch.float32, torch.int64, torch.int64,
    )  # fmt: skip
    assert len(second.x) < len(first.x)
    assert is_undirected(second.edge_index, num_nodes=len(second.x))
    assert "y" not in first
    labelled = list(data.labelled_dataloader())
    assert [len(view) for view, _ in labelled] == [10, 10, 4]
    assert torch.cat([labels for _, labels in labelled]).tolist() == [0, 1] * 12  # in order
    views, _, positions = next(iter(data.predict_dataloader()))
    assert (len(views), positions.tolist()) == (10, list(range(10)))
    assert data.rows([0, 1]) == {"path": ["0", "1"], "class": ["-1", "1"], "split": ["train", "train"]}


def test_the_last_batch_is_kept_but_for_one_of_a_single_graph(tmp_path: Path) -> None:
    write_tu(tmp_path, graphs=25)
    for size, expected in ((8, [8, 8, 8]), (10, [10, 10, 5]), (128, [25])):
        data = opened(tmp_path, batch_size=size)
        assert [len(targets) for _, targets in data.train_dataloader()] == expected


def views_of_epoch(data: TUDataModule, epoch: int) -> list[torch.Tensor]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return [part for (_, view), _ in loader for part in (view.x, view.edge_index)]


def test_views_are_a_function_of_seed_epoch_and_position(tmp_path: Path) -> None:
    data = opened(tmp_path)
    torch.manual_seed(1)
    first = views_of_epoch(data, 3)
    torch.manual_seed(2)
    again = views_of_epoch(opened(tmp_path, num_workers=2), 3)
    assert all(map(torch.equal, first, again))
    later = views_of_epoch(data, 4)
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, later, strict=True))


def test_nodes_without_labels_have_the_feature_1(tmp_path: Path) -> None:
    (write_tu(tmp_path) / "MUTAG_node_labels.txt").unlink()
    data = opened(tmp_path)
    assert data.num_features == 1
    assert data.graphs.item(3).x.unique().tolist() == [1.0]
    other = opened(tmp_path).fingerprint()
    assert data.fingerprint() == other
    assert other["pretrain"].startswith("24 graphs, ")


def test_several_columns_of_labels_are_features_side_by_side(tmp_path: Path) -> None:
    file = write_tu(tmp_path) / "MUTAG_node_labels.txt"
    nodes = len(file.read_text().splitlines())
    file.write_text("\n".join(f"{5 + i % 2}, {i % 3}" for i in range(nodes)))
    data = opened(tmp_path)
    assert data.num_features == 5
    assert data.graphs.item(0).x[:3].tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]


def test_loops_and_edges_that_are_there_twice_are_left_out(tmp_path: Path) -> None:
    before = opened(tmp_path / "a").graphs.item(0).edge_index
    folder = write_tu(tmp_path / "b")
    with (folder / "MUTAG_A.txt").open("a") as file:
        file.write("1, 1\n1, 2\n2, 1\n")
    assert torch.equal(opened(tmp_path / "b").graphs.item(0).edge_index, before)


def test_the_fingerprint_knows_edges_and_labels(tmp_path: Path) -> None:
    found = {opened(tmp_path / "a").fingerprint()["pretrain"]}
    for part, old in (("A", "1, 2\n2, 1\n"), ("node_labels", "1\n")):
        folder = write_tu(tmp_path / part)
        file = folder / f"MUTAG_{part}.txt"
        file.write_text(file.read_text().replace(old, "" if part == "A" else "2\n", 1))
        found.add(opened(tmp_path / part).fingerprint()["pretrain"])
    assert len(found) == 3


def test_without_labels_it_trains_and_says_so_once(tmp_path: Path) -> None:
    (write_tu(tmp_path) / "MUTAG_graph_labels.txt").unlink()
    data = tu(tmp_path)
    with pytest.warns(UserWarning, match=r"no MUTAG_graph_labels.txt, so there is no k-NN and no cross-val"):
        data.setup()
    assert data.class_names is None
    assert data.knn_dataloaders() is None
    assert data.labelled_dataloader() is None
    assert len(next(iter(data.train_dataloader()))[1]) == 8


def test_held_out_graphs_are_not_judged_among_all(tmp_path: Path) -> None:
    data = opened(tmp_path, validation_subset=6)
    assert (len(data.splits.bank), len(data.splits.query)) == (15, 6)
    assert sum(len(labels) for _, labels in data.labelled_dataloader()) == 21


def test_nothing_is_written_and_an_archive_as_it_is_unpacked_is_read(tmp_path: Path) -> None:
    folder = write_tu(tmp_path)
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    folder.rmdir()
    before = sorted(tmp_path.rglob("*"))
    os.chmod(tmp_path / "MUTAG", 0o555)
    try:
        assert len(opened(tmp_path).graphs) == 24
    finally:
        os.chmod(tmp_path / "MUTAG", 0o755)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_was_read_is_said(tmp_path: Path) -> None:
    folder = write_tu(tmp_path)
    edges = len((folder / "MUTAG_A.txt").read_text().splitlines())
    (folder / "MUTAG_edge_labels.txt").write_text("0\n" * edges)
    assert opened(tmp_path).description() == (
        f"MUTAG: 24 graphs, 142 nodes of 7 features, {edges} directed edges; not read: edge_labels"
    )


def test_transforms_are_options(tmp_path: Path) -> None:
    data = opened(tmp_path, train_transform=DropNodes(0.5), eval_transform=DropNodes(0.0))
    (first, second), _ = next(iter(data.train_dataloader()))
    assert len(first.x) != len(second.x) or not torch.equal(first.x, second.x)
    assert data.prepared() == "DropNodes(ratio=0.0)"
    assert opened(tmp_path).prepared() == ""


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "no edges": ("A", None, r"the file .*MUTAG_A.txt is missing; --data.download true fetches it"),
    "no graphs": ("graph_indicator", None, r"MUTAG_graph_indicator.txt is missing"),
    "cut": ("A", lambda text: text + "3,", r"MUTAG_A.txt: line 261 must have 2 whole numbers, got '3,'"),
    "cut in a number": ("A", lambda text: text + "3", r"line 261 must have 2 whole numbers, got '3'"),
    "no such node": (
        "A",
        lambda text: text + "1, 143\n",
        r"A.txt, line 261: there is no node 143, .* has 142",
    ),
    "node 0": ("A", lambda text: "0, 1\n" + text, r"line 1: there is no node 0"),
    "across": (
        "A",
        lambda text: text + "1, 9\n",
        r"line 261: an edge from node 1 of graph 1 to node 9 of gr",
    ),
    "lines": ("A", lambda text: text[: text[:-1].rindex("\n")], r"from node 142 to node 136 and none back"),
    "text": ("node_labels", lambda text: "a\n" + text, r"line 1 must have a whole number, got 'a'"),
    "huge": (
        "node_labels",
        lambda text: "1000000000\n" + text[text.index("\n") + 1 :],
        r"which would be 1,000,000,\d{3} features of a node, more than 10,000: number them",
    ),
    "float": ("graph_labels", lambda text: text + "0.5\n", r"line 25 must have a whole number, got '0.5'"),
    "more": ("graph_labels", lambda text: text + "1\n", r"has 25 lines, and 24 are expected"),
    "fewer": ("node_labels", lambda text: text[:-2], r"has 141 lines, and 142 are expected"),
    "empty": ("A", lambda text: "", r"MUTAG_A.txt is empty"),
    "columns": ("graph_labels", lambda text: text.replace("\n", ", 1\n"), r"has 2 numbers in a line, and 1"),
    "gap": ("graph_indicator", lambda text: text.replace("2\n", "3\n", 3), r"a node of graph \d+ after one"),
    "from 0": ("graph_indicator", lambda text: "0" + text[1:], r"line 1: a node of graph 0 at first"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(damage: str, tmp_path: Path) -> None:
    part, change, words = DAMAGES[damage]
    file = write_tu(tmp_path) / f"MUTAG_{part}.txt"
    if change is None:
        file.unlink()
    else:
        file.write_text(change(file.read_text()))
    with pytest.raises(DataError, match=words):
        opened(tmp_path)


def test_labels_of_edges_show_that_edges_are_cut_off(tmp_path: Path) -> None:
    folder = write_tu(tmp_path)
    (folder / "MUTAG_edge_labels.txt").write_text("0\n" * 300)
    with pytest.raises(DataError, match=r"has 300 lines, and 260 are expected, as MUTAG_A.txt has"):
        opened(tmp_path)


def test_names(tmp_path: Path) -> None:
    write_tu(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no data set 'MUTAGG' in .*; did you mean MUTAG\?"):
        opened(tmp_path, name="MUTAGG")
    with pytest.raises(ConfigError, match=r"did you mean MUTAG\?"):
        opened(tmp_path, name="mutag")
    with pytest.raises(ConfigError, match="did you mean PROTEINS"):
        opened(tmp_path, name="PROTEIN")
    with pytest.raises(DataError, match=r"REDDIT-MULTI-5K_A.txt is missing; --data.download true fetches it"):
        opened(tmp_path, name="REDDIT-MULTI-5K")
    with pytest.raises(DataError, match="missing"):
        opened(tmp_path / "nowhere", name="quite another")


def test_a_download_goes_where_the_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(url: str, root: str, **options: Any) -> None:
        asked.append(url)
        folder = write_tu(Path(root))
        for file in folder.iterdir():
            file.rename(folder.parent / file.name)

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    data = TUDataModule(str(tmp_path), "MUTAG", download=True, batch_size=8, num_workers=0)
    for _ in range(2):
        data.prepare_data()
    assert asked == [f"{TUDataset.url}/MUTAG.zip"]
    data.setup()
    assert len(data.graphs) == 24

    def fail(url: str, root: str, **options: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fail)
    with pytest.raises(DataError, match=r"DD: the download failed \(no network\)"):
        TUDataModule(str(tmp_path), "DD", download=True).prepare_data()


def test_without_torch_geometric_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        TUDataModule()
    assert str(caught.value) == ('TUDataModule needs torch_geometric: pip install "mmcl-lightning[graph]"')
