"""The benchmarks run and write what they promise; their dense twin solves the problem that we solve."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from mmcl_lightning.kernels import RBF
from mmcl_lightning.svm import Inverse, ProjectedGradient, max_margin_dual

pytestmark = pytest.mark.starts_threads

HERE = Path(__file__).resolve().parent.parent / "benchmarks"


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module(name)


@pytest.mark.parametrize("stem", ["solvers", "step"])
def test_a_quick_run_writes_table_numbers_and_targets(
    stem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = "# Mine\n\n<!-- cpu -->\nold\n<!-- end of cpu -->\n<!-- cuda -->\nkept\n"
    (tmp_path / f"{stem}.md").write_text(before)
    load(monkeypatch, f"bench_{stem}").main(["--quick", "--out", str(tmp_path)])
    text = (tmp_path / f"{stem}.md").read_text()
    record = json.loads((tmp_path / f"{stem}_cpu.json").read_text())
    assert "## Targets" in text
    assert "Exact" in text
    begin, end = "<!-- cpu -->\n\n# Measured on CPU\n\n", "\n<!-- end of cpu -->\n"
    assert text.startswith(f"# Mine\n\n{begin}")
    assert text.endswith(f"{end}<!-- cuda -->\nkept\n")
    assert text.partition(begin)[2].partition(end)[0] in capsys.readouterr().out
    assert record["machine"]["torch"] == torch.__version__
    assert {target["verdict"] for target in record["targets"]} <= {"met", "missed", "not measured"}
    assert record["rows" if stem == "solvers" else "cases"]
    assert (tmp_path / f"{stem}_cpu.png").stat().st_size > 0


def test_the_logistic_benchmark_compares_with_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(monkeypatch, "bench_logistic").main(["--quick", "--Cs", "3", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "transfer_linear_cpu.json").read_text())
    assert [row["C"] for row in record["rows"]] == pytest.approx([1e6, 10**0.5, 1e-5])
    assert all(row["difference"] < 1e-3 for row in record["rows"])
    assert set(record["seconds"]) == {"ours", "scikit-learn"}


def test_the_losses_benchmark_counts_what_a_device_would_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = load(monkeypatch, "bench_losses")
    bench.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "losses_cpu.json").read_text())
    assert set(record["launches"]) == set(bench.LOSSES)
    assert "## Targets" not in capsys.readouterr().out
    x = torch.arange(4.0)
    found = bench.count(lambda: (x.view(2, 2) * 2).sum().item())  # a view, two operations, a wait
    assert (found.launches, found.waits) == (2, 1)
    assert bench.count(lambda: x[x > 1]).waits == 1


def test_the_data_benchmark_times_the_same_files_in_all_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, threads = load(monkeypatch, "bench_data"), torch.get_num_threads()
    bench.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "data_cpu.json").read_text())["pairs_per_second"]
    assert set(record) == {*bench.CASES, "small, in memory", "fit"}
    assert {"worker", "loader", "loader and device", "torchvision"} <= set(record["large"])
    assert torch.get_num_threads() == threads
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with pytest.raises(SystemExit, match="holds 0 JPEGs, and --images asks for 8"):
        bench.main(["--quick", "--small", str(pictures)])
    image = bench.Image.new("RGB", (40, 30), (200, 100, 50))
    views = bench.torchvision_pair(bench.SimCLRTransform.imagenet(32))(image)
    assert [view.shape for view in views] == [(3, 32, 32)] * 2


def test_the_knn_benchmark_compares_equal_predictions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(monkeypatch, "bench_knn").main(["--quick", "--out", str(tmp_path)])
    text = (tmp_path / "knn.md").read_text()
    record = json.loads((tmp_path / "knn_cpu.json").read_text())
    assert "## Targets" in capsys.readouterr().out
    assert {"ours", "ours, bank in float16", "scikit-learn"} <= set(record["methods"])
    for name, row in record["methods"].items():
        assert f"| {name} |" in text
        assert len(row["seconds"]) == 2
        assert row["agreement"] >= 0.9, name  # near ties may fall the other way


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("regime", ["half-trained", "untrained"])
def test_dense_twin_agrees_with_the_package(monkeypatch: pytest.MonkeyPatch, views: int, regime: str) -> None:
    common, images = load(monkeypatch, "common"), 12
    points = torch.cat(common.projections(images, regime)[:views]).double()
    excluded = torch.arange(len(points)).view(views, images).T
    gram = RBF()(points, points)
    problem = max_margin_dual(gram, excluded[:, 0], excluded[:, 1:], C=3.0, reg=0.1)
    delta, own = common.dense_delta(gram, excluded, 0.1), common.dense_negatives(excluded, len(gram))

    alpha = common.dense_inverse(delta, 3.0)
    torch.testing.assert_close(Inverse()(problem).alpha.gather(1, own), alpha, rtol=1e-5, atol=1e-5)
    assert alpha.max() > 0

    gradient = ProjectedGradient(
        tol=0.0, max_steps=40, step_size=1e-2, nesterov=False, start="zero", stop="relative_change"
    )
    alpha = common.dense_gradient(delta, 3.0, 40, 1e-2)
    torch.testing.assert_close(gradient(problem).alpha.gather(1, own), alpha, rtol=1e-5, atol=1e-5)
    assert alpha.max() > 0


def test_memory_counts_what_lives_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    common = load(monkeypatch, "common")

    def two_at_a_time() -> None:
        for _ in range(5):
            first = torch.ones(1000)
            second = first + 1
            del first, second

    assert common.peak_bytes(two_at_a_time, torch.device("cpu")) == 8000


def test_projections_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    common = load(monkeypatch, "common")
    z0, z1 = common.projections(50)
    cosines = z0 @ z1.T
    assert cosines.diagonal().mean() > 0.9
    assert cosines[0, 10] > cosines[0, 5]  # image 10 is of the cluster of image 0, image 5 is not
    assert cosines.mean() < 0.5
    u0, u1 = common.projections(50, "untrained")
    assert (u0 @ u1.T).min() > 0.8


def test_the_scan_benchmark_reads_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load(monkeypatch, "bench_scan").main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "scan_cpu.json").read_text())
    assert (record["files"], record["classes"], set(record["seconds"])) == (60, 20, {"scan", "walk"})


def test_the_predict_benchmark_checks_every_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = load(monkeypatch, "bench_predict")
    monkeypatch.setattr(bench.logging, "getLogger", lambda *_: bench.logging.Logger("quiet"))
    bench.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "predict_cpu.json").read_text())
    assert (record["images"], record["wrong"], set(record["seconds"])) == (30, 0, {"predict", "bare"})
    root, out = tmp_path / "photos", tmp_path / "out.npz"
    bench.write_pictures(root, 12, 32)
    module = bench.PretrainedBackbone("random", "conv4").eval()
    bench.predict(module, root, 32, 0, out)
    assert bench.wrong_names(module, root, out) == 0
    table = bench.read_table(out)
    table["path"][[0, 1]] = table["path"][[1, 0]]
    out.unlink()
    np.savez(out, **table)
    assert bench.wrong_names(module, root, out) == 2


@pytest.mark.parametrize("group", ["Pictures", "Folders", "Batches"])
def test_use_cases_end_as_they_should(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other groups, which take longer, are for the command."""
    load(monkeypatch, "use_cases.__main__").main(["--group", group])
    assert capsys.readouterr().out.count("\n| ") > 15


def test_waits_are_counted_where_the_host_needs_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load(monkeypatch, "step_waits")
    on_device, on_host = torch.arange(4.0), torch.arange(4.0)
    with bench.Waits() as waits, bench.Copies(waits):
        waits.add(on_device)
        on_host.sum().item()
        total = (on_device + on_host).sum()
        assert waits.places.total() == 0
        float(total)
        on_device[on_device > 1]
        total.tolist()
        on_device.unique()
        assert waits.places.total() == 4
        torch.tensor(1.0)
        copy = torch.tensor(1.0, device=on_device.device)
        assert waits.places.total() == 5
        copy.item()
        torch.full((), 1.0, device=on_device.device).item()
    assert waits.places.total() == 7


def test_products_are_those_with_the_kernel_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    common = load(monkeypatch, "common")
    gram, alpha = torch.eye(6), torch.ones(3, 6)
    assert common.count(lambda: alpha @ gram).products == 1
    assert common.count(lambda: (alpha @ gram.T, torch.addmm(alpha, alpha, gram))).products == 2
    assert common.count(lambda: (alpha @ alpha.T, gram[:, :2] @ gram[:2])).products == 0


def test_scaling_is_counted_as_the_launches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without values, as one of several processes: what belongs to all candidates is not shared out."""
    scaling = load(monkeypatch, "scaling")
    launches = json.loads((HERE.parent / "docs" / "results" / "launches_cpu.json").read_text())["counts"]
    one, eight = (scaling.count("MMCL, Inverse", 256, gpus) for gpus in (1, 8))
    assert one.launches == launches["MMCL, Inverse"][0]
    assert (one.sent, eight.sent) == (0, 3 * 256 * 2 * 128 * 4 * 7 // 8)
    assert one.bytes > eight.bytes > 4 * 512**2 * 4  # four matrices of all candidates
    assert eight.flops > 512**3
    larger = scaling.count("MMCL, Inverse", 4096, 8)
    assert larger.flops > 8192**3
    rates = scaling.Rates(flops=1, launch=0, bandwidth=1e6, network=1e6)
    assert larger.seconds(rates) == pytest.approx(larger.flops / 1e12, rel=1e-2)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- counted -->\nold\n<!-- end of counted -->\nafter\n")
    scaling.main(["--quick", "--out", str(page)])
    assert page.read_text().startswith("before\n<!-- counted -->\n\nMemory 80 GB")
    assert page.read_text().endswith("\n<!-- end of counted -->\nafter\n")
    (row,) = re.findall(r"### MMCL, Inverse\n.*?\n(\| 256 .*?)\n", page.read_text(), flags=re.DOTALL)
    assert row.rstrip("|") in (HERE.parent / "docs" / "scaling.md").read_text()
