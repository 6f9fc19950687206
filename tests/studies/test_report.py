"""The report: right means, tuning apart from results, the paper's value only where the run is the paper's."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from records import record

from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Metric, config_hash
from mmcl_lightning.studies import write_report
from mmcl_lightning.studies.paper import paper_value


def with_values(*values: float, **changes: Any) -> Any:
    curve = [[float(i), 10 * i, 60.0 * i, value] for i, value in enumerate(values)]
    return record(metrics={"knn/top1": Metric(curve)}, steps=10 * (len(values) - 1), **changes)


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, last in enumerate((0.4, 0.5, 0.6)):
        with_values(0.1, 0.7, last, seed=seed, label="ours").write(tmp_path / f"{seed}.json")
    with_values(0.1, 0.3, 0.2, config_hash="def", label="theirs").write(tmp_path / "t.json")
    text = write_report(tmp_path, tmp_path / "out" / "report.md", "A study")
    assert text == (tmp_path / "out" / "report.md").read_text()
    assert "| ours | 3 | 0.500 ± 0.100 | 0.700 ± 0.000 | 100 | 1.0 | 2.0 |" in text
    assert "| theirs | 1 | 0.200 | 0.300 |" in text
    assert "standard error of 0.049" in text, "sqrt(0.425 * 0.575 / 100)"
    assert "k=20 T=0.07 cosine h" in text
    assert Image.open(tmp_path / "out" / "report.png").width > 800


def test_tuning_and_other_batch_sizes_stand_apart(tmp_path: Path) -> None:
    for gamma, last in ((1.0, 0.4), (2.0, 0.45)):
        config = {"model": {"init_args": {"kernel": {"gamma": gamma}, "C": 1.0}}}
        data = {**record().data, "held_out": "validation"}
        options = {"config": config, "config_hash": str(gamma), "data": data, "label": "ours"}
        with_values(last, **options).write(tmp_path / f"{gamma}.json")
    for batch in (8, 32):
        config = {"data": {"init_args": {"batch_size": batch}}}
        with_values(0.1, 0.5, config=config, config_hash=f"b{batch}").write(tmp_path / f"b{batch}.json")
    text = write_report(tmp_path, tmp_path / "report.md")
    sections = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(sections) == 3
    assert sorted(section.rpartition(", ")[2] for section in sections[:2]) == ["batch 32", "batch 8"]
    assert "validation part" in sections[2]
    assert "| ours | gamma = 2.0 | **0.450** |" in text
    assert "| ours | gamma = 1.0 | 0.400 |" in text
    assert (tmp_path / "report_2.png").exists()


def test_runs_that_broke_off_are_listed_and_not_averaged(tmp_path: Path) -> None:
    with_values(0.1, 0.5).write(tmp_path / "a.json")
    with_values(0.1, 0.9, status="interrupted", seed=7).write(tmp_path / "b.json")
    text = write_report(tmp_path, tmp_path / "report.md")
    assert "| MMCL, Exact | 1 | 0.500 |" in text
    assert "* MMCL, Exact, seed 7: interrupted (b.json)\n" in text
    assert ", 1 of which does not count, see the end." in text


def test_an_evaluation_shows_the_curve_that_moves_and_no_protocol_without_a_column(tmp_path: Path) -> None:
    flat, rising = (
        Metric([[0.0, 0, 0.0, 0.5], [1.0, 9, 60.0, 0.5]]),
        Metric([[1.0, 9, 60.0, 0.5], [2.0, 18, 120.0, 0.6], [3.0, 27, 180.0, 0.7]]),
    )
    protocols = {"knn/top1": "of k-NN", "linear/top1": "of linear", "probe/top1": "of a probe not logged"}
    metrics = {"knn/top1": flat, "linear/top1": rising}
    record(metrics=metrics, protocols=protocols).write(tmp_path / "a.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "![linear top-1 against epochs and time](r.png)" in text
    assert "of linear" in text
    assert "of a probe" not in text
    text = write_report(tmp_path, tmp_path / "k.md", metrics=["knn/top1"])
    assert "of linear" not in text
    assert not (tmp_path / "k.png").exists(), "a line that does not move is no picture"


def test_runs_read_at_start_and_end_only_show_their_ends(tmp_path: Path) -> None:
    record(metrics={"linear/top1": Metric([[0.0, 0, 0.0, 0.3], [2.0, 18, 120.0, 0.6]])}).write(
        tmp_path / "a.json"
    )
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "![every run at the end of training; bars: means](r.png)" in text
    assert (tmp_path / "r.png").stat().st_size > 0


def test_a_section_without_any_of_the_metrics(tmp_path: Path) -> None:
    record().write(tmp_path / "a.json")
    data = {**record().data, "held_out": "validation"}
    record(data=data, metrics={}, config_hash="b").write(tmp_path / "b.json")
    record(metrics={}, label="bare", config={}, config_hash="c").write(tmp_path / "c.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "| MMCL, Exact | - | - |" in text, "tuning"
    assert "| bare | 1 | 100 | 1.0 | 2.0 |" in text


def test_of_several_runs_of_a_seed_the_latest_counts(tmp_path: Path) -> None:
    with_values(0.1, 0.9, started="2026-01-01T00:00:00+00:00").write(tmp_path / "first.json")
    with_values(0.1, 0.5, started="2026-01-02T00:00:00+00:00").write(tmp_path / "again.json")
    with_values(0.1, 0.5, started="2026-01-02T00:00:00+00:00").write(tmp_path / "copy.json")
    with_values(0.1, seed=1, status="interrupted", seconds=5.0).write(tmp_path / "broken.json")
    with_values(0.1, 0.7, seed=1).write(tmp_path / "resumed.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "| MMCL, Exact | 2 | 0.600 ± 0.141 |" in text
    assert text.count("* MMCL, Exact, seed 0: run again later, which counts") == 1, (
        "and a copy is no second run"
    )
    why = "interrupted; another record has the finished run, which counts"
    assert f"* MMCL, Exact, seed 1: {why} (broken.json)\n" in text
    assert "Made of 4 records of runs in" in text
    assert ", 2 of which do not count, see the end." in text


def test_runs_without_a_seed_are_each_one_more(tmp_path: Path) -> None:
    for day in (1, 2):
        with_values(0.1, 0.5, seed=None, started=f"2026-01-0{day}").write(tmp_path / f"{day}.json")
    assert "| MMCL, Exact | 2 | 0.500 ± 0.000 |" in write_report(tmp_path, tmp_path / "r.md")


def test_evaluations_of_the_seeds_of_one_pretraining_are_one_row(tmp_path: Path) -> None:
    for seed, last in enumerate((0.4, 0.6)):
        for method in ("NTXent", "HCL"):
            config = {
                "model": {"class_path": "LinearEvaluation", "init_args": {"checkpoint": f"{method}{seed}"}}
            }
            origin = {
                "name": method,
                "method": method,
                "epochs": 2,
                "config": {"model": {"class_path": method}},
                "seed": seed,
            }
            metrics = {"linear/top1": Metric([[1.0, 9, 60.0, last]])}
            options = {
                "method": "LinearEvaluation",
                "config": config,
                "pretraining": origin,
                "metrics": metrics,
            }
            record(**options, config_hash=f"{method}{seed}").write(tmp_path / f"{method}{seed}.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "| linear evaluation of SimCLR | 2 | 0.500 ± 0.141 |" in text
    assert "| linear evaluation of HCL | 2 | 0.500 ± 0.141 |" in text


def test_what_the_images_were(tmp_path: Path) -> None:
    def seen(images: str) -> dict[str, Any]:
        return {**record().data, "fingerprint": {"query": f"100 images, {images}"}}

    with_values(0.1, 0.5, data=seen("1f")).write(tmp_path / "a.json")
    with_values(0.1, 0.5, data=seen("2f"), seed=1).write(tmp_path / "b.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "query 100 images, 1f (and 1 other choice of images)" in text
    assert "did not see the same images" not in text
    with_values(0.1, 0.5, data=seen("3f"), label="another").write(tmp_path / "c.json")
    assert "did not see the same images" in write_report(tmp_path, tmp_path / "r.md")


def test_a_study_files_its_runs_twice_and_they_count_once(tmp_path: Path) -> None:
    with_values(0.1, 0.5).write(tmp_path / "a" / "run" / "version_0" / "ledger.json")
    with_values(0.1, 0.5, label="a").write(tmp_path / "ledger" / "a.json")
    with_values(0.1, 0.9, seed=1).write(tmp_path / "a.old1" / "run" / "version_0" / "ledger.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert rows[2].startswith("| a | 1 | 0.500 |")


def test_values_and_names_of_any_kind(tmp_path: Path) -> None:
    for seed, last in enumerate((math.nan, 0.4)):
        knn, loss = (
            Metric([[0.0, 0, 0.0, last], [2.0, 20, 60.0, last]]),
            Metric([[1.0, 9, 60.0, -3.0 - seed]]),
        )
        metrics = {"knn/top1": knn, "train/loss": loss}
        record(metrics=metrics, seed=seed, label="$a_$ | b").write(tmp_path / f"{seed}.json")
    with_values(0.1, 50.0, label="_percent").write(tmp_path / "p.json")
    text = write_report(tmp_path, tmp_path / "r.md", metrics=["train/loss", "knn/top1"])
    assert r"| \$a\_\$ \| b | 2 | -3.500 ± 0.707 | nan |" in text
    assert (tmp_path / "r.png").exists()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ledger.json").write_text('{"ledger": 1, "cut')
    with pytest.raises(DataError, match=r"ledger\.json is no record"):
        write_report(tmp_path, tmp_path / "r.md")


def test_without_matplotlib_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    record().write(tmp_path / "a.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert "| MMCL, Exact | 1 | 0.400 |" in text
    assert "needs matplotlib" in text
    assert not (tmp_path / "r.png").exists()


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no record"):
        write_report(tmp_path, tmp_path / "r.md")
    with pytest.raises(DataError, match="no folder"):
        write_report(tmp_path / "none", tmp_path / "r.md")
    with pytest.raises(ConfigError, match=r"--out must end in \.md or \.html, got .*r\.pdf"):
        write_report(tmp_path, tmp_path / "r.pdf")
    record().write(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"no run logged 'acc'; there are knn/top1"):
        write_report(tmp_path, tmp_path / "r.md", metrics=["acc"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record().write(tmp_path / "a.json")
    main(["report", str(tmp_path), "--out", str(tmp_path / "r.md"), "--title", "Mine"])
    assert (tmp_path / "r.md").read_text().startswith("# Mine")
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "none")])
    assert "error: there is no folder" in capsys.readouterr().err


def of_paper(**changes: Any) -> Any:
    init = {"backbone": "resnet50", "kernel": {"class_path": "mmcl_lightning.kernels.RBF"}}
    data = {"class_path": f"x.{changes.pop('data_set', 'STL10DataModule')}", "init_args": {"batch_size": 256}}
    config = {"model": {"init_args": init}, "data": data}
    return record(**{"config": config, "method": "MMCL, Inverse", "epochs": 200, **changes})


def test_the_papers_value_is_there_for_the_papers_run_only() -> None:
    run = of_paper()
    assert paper_value(run, "knn/top1") == pytest.approx(0.8133)
    assert paper_value(of_paper(epochs=100), "knn/top1") is None
    assert paper_value(record(), "knn/top1") is None
    origin = {"method": "MMCL, ProjectedGradient", "config": run.config, "epochs": 400}
    assert paper_value(of_paper(pretraining=origin), "linear/top1") == pytest.approx(0.8803)
    origin = {"method": "HCL", "config": run.config, "epochs": 400}
    assert paper_value(of_paper(pretraining=origin), "linear/top1") == pytest.approx(0.8744)
    run.config["data"]["init_args"]["train_subset"] = 5000
    assert paper_value(run, "knn/top1") is None, "a subset is another experiment"


def of_graphs(*values: float, **changes: Any) -> Any:
    curve = [[20.0 * i, 40 * i, 60.0 * i, value] for i, value in enumerate(values)]
    data = {"init_args": {"name": "MUTAG", "batch_size": 128}}
    config = {"model": {"init_args": {"backbone": "gin:7"}}, "data": data}
    options = {"metrics": {"cv/svc_accuracy": Metric(curve)}, "steps": 40, "epochs": 20, "config": config}
    return record(**{**options, **changes})


def test_the_papers_graphs() -> None:
    run = of_graphs(0.8, 0.9)
    assert paper_value(run, "cv/svc_accuracy") == pytest.approx(0.8842)
    assert paper_value(run, "knn/top1") is None
    assert paper_value(of_graphs(0.9, epochs=10), "cv/svc_accuracy") is None
    assert paper_value(of_graphs(0.9, method="MMCL log, Inverse"), "cv/svc_accuracy") is None
    run.config["data"]["init_args"]["name"] = "PTC_MR"
    assert paper_value(run, "cv/svc_accuracy") is None


def test_the_untrained_network_is_a_row_beside_cross_validation(tmp_path: Path) -> None:
    for seed, first in enumerate((0.80, 0.84)):
        of_graphs(first, 0.9, seed=seed, label="read").write(tmp_path / f"{seed}.json")
        late = Metric([[1.0, 2, 1.0, 0.1], [20.0, 40, 60.0, 0.7]])
        later = {"metrics": {"cv/svc_accuracy": late}, "label": "later", "config_hash": "b"}
        of_graphs(seed=seed, **later).write(tmp_path / f"b{seed}.json")
    text = write_report(tmp_path, tmp_path / "r.md", metrics=["cv/svc_accuracy"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0].startswith("| method | seeds | cross-validated SVC accuracy | paper |")
    assert rows[2] == "| untrained | 2 | 0.820 ± 0.028 | - | - | - | - |"
    assert rows[3].startswith("| read | 2 | 0.900 ± 0.000 | 0.884 |")
    assert rows[4].startswith("| later | 2 | 0.700 ± 0.000 | 0.884 |")


def test_two_metrics_that_were_followed_have_columns_of_their_own(tmp_path: Path) -> None:
    points = [[float(epoch), 10 * epoch, 1.0, 0.5 + 0.1 * epoch] for epoch in range(3)]
    metrics = {name: Metric(points) for name in ("knn/top1", "probe/top1")}
    record(metrics=metrics).write(tmp_path / "run.json")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in write_report(tmp_path, tmp_path / "r.md", metrics=list(metrics)).splitlines()
        if line.startswith("|")
    ]
    head = [name for name in rows[0] if name != "paper"]
    assert len(set(head)) == len(head)
    assert sum(name.endswith(", best epoch") for name in head) == 2
    assert {len(row) for row in rows[:4]} == {len(rows[0])}


def test_the_kernel_is_that_of_the_loss_wherever_the_configuration_has_it() -> None:
    """A criterion of ContrastiveModule has its kernel below it, and a default is in no configuration."""
    linear = {"init_args": {"kernel": {"class_path": "mmcl_lightning.kernels.Linear"}}}
    run = of_paper(loss=linear)
    expected = paper_value(run, "knn/top1")
    assert expected is not None
    assert expected != paper_value(of_paper(), "knn/top1")
    old = of_paper()
    del old.config["model"]["init_args"]["kernel"]
    old.config["model"]["init_args"]["criterion"] = linear
    assert paper_value(old, "knn/top1") == expected
    origin = {"method": "MMCL, Inverse", "config": of_paper().config, "epochs": 200, "loss": linear}
    assert paper_value(of_paper(pretraining=origin), "knn/top1") == expected


def test_methods_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for index, C in enumerate((1.0, 5.0)):
        for seed in (0, 1):
            config = {
                "seed_everything": seed,
                "model": {"init_args": {"C": C, "kernel": {"init_args": {"gamma": 2.0}}}},
                "data": {"init_args": {"batch_size": 8, "seed": seed}},
            }
            started = f"2026-01-0{index + 1}T0{seed}:00:00+00:00"
            made = record(config=config, config_hash=config_hash(config), seed=seed, started=started)
            made.write(tmp_path / f"{C}{seed}" / "ledger.json")
    text = write_report(tmp_path, tmp_path / "R.md")
    assert "| MMCL, Exact (C=1.0) | 2 |" in text
    assert "| MMCL, Exact (C=5.0) | 2 |" in text


def test_seeds_of_a_study_that_several_versions_ran_are_of_one_method(tmp_path: Path) -> None:
    """A later version has more options, with defaults, in the configuration of the same arguments."""
    for seed in (0, 1):
        config: dict[str, Any] = {"model": {"init_args": {}}, "data": {"init_args": {"batch_size": 8}}}
        if seed:
            config["data"]["init_args"]["layout"] = "auto"
        made_by = ["fit", "--model", "MMCL", "--seed_everything", str(seed), "--data.seed", str(seed)]
        run = record(
            label="mine", arguments=made_by, seed=seed, config=config, config_hash=config_hash(config)
        )
        run.write(tmp_path / f"{seed}.json")
    other = ["fit", "--model", "MMCL", "--model.C", "1", "--seed_everything", "0", "--data.seed=0"]
    record(label="other", arguments=other).write(tmp_path / "other.json")
    text = write_report(tmp_path, tmp_path / "out.md")
    assert "| mine | 2 |" in text
    assert "| other | 1 |" in text
    assert "Seeds were run by several versions, whose options differ in data.init_args.layout." in text


def test_the_same_options_on_another_folder_are_another_run(tmp_path: Path) -> None:
    for index, images in enumerate((41, 37)):
        data = {"class": "ImageFolderDataModule", "fingerprint": {"pretrain": f"{images} images, {index}f"}}
        record(data=data, started=f"2026-01-0{index + 1}T00:00:00+00:00").write(tmp_path / f"{index}.json")
    text = write_report(tmp_path, tmp_path / "out.md")
    assert "41 training images" in text
    assert "37 training images" in text
    assert "Not counted" not in text


@pytest.mark.parametrize(
    "given", [["--data.num_workers=8"], ["--data.num_workers", "8", "--data.cache=true"]]
)
def test_other_workers_make_no_other_variant(given: list[str], tmp_path: Path) -> None:
    for seed, more in enumerate(([], given)):
        run = with_values(0.1, 0.5, label="ours", seed=seed, arguments=["fit", *more])
        run.write(tmp_path / f"{seed}.json")
    assert "| ours | 2 |" in write_report(tmp_path, tmp_path / "r.md")
