"""Columns, names and captions of a report: a stranger sees what each number is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest
from records import record

from mmcl_lightning.ledger import Metric
from mmcl_lightning.studies import write_report
from mmcl_lightning.studies.naming import distinct_names, method_name
from mmcl_lightning.studies.paper import paper_value

PAPER, DINO = "k=200 T=0.5 cosine h, bank 50", "k=20 T=0.07 cosine h, bank 50"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [line.strip("| ").split(" | ") for line in lines]


def values(*pairs: tuple[str, float]) -> dict[str, Metric]:
    return {name: Metric([[2.0, 20, 60.0, value]]) for name, value in pairs}


def test_each_protocol_of_a_metric_has_a_column_and_a_run_read_twice_one_row(tmp_path: Path) -> None:
    first = {"readouts": {"knn": {"protocol": "mmcl_paper"}}, "data": {"init_args": {"num_workers": 8}}}
    again = {"readouts": {"knn": {"protocol": "dino"}}, "trainer": {"log_every_n_steps": 5}}
    both = {"knn/top1": PAPER, "knn/top1/dino": DINO}
    seen: list[dict[str, Any]] = [
        {"config": first, "protocols": both, "metrics": values(("knn/top1", 0.4), ("knn/top1/dino", 0.5))},
        {"config": again, "protocols": {"knn/top1": DINO}, "metrics": values(("knn/top1", 0.7)), "seed": 1},
        {"config": again, "protocols": {"knn/top1": PAPER}, "metrics": values(("knn/top1", 0.6)), "seed": 1},
    ]
    for index, changes in enumerate(seen):
        changes["config"].setdefault("data", {"init_args": {}})
        record(**changes, started=f"2026-01-0{index + 1}").write(tmp_path / f"{index}.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    head, row = rows(text)
    assert head[2:4] == ["k-NN top-1 (k=200 T=0.5 cosine h)", "k-NN top-1 (k=20 T=0.07 cosine h)"]
    assert row[:4] == ["MMCL, Exact", "2", "0.500 ± 0.141", "0.600 ± 0.141"]
    assert f"* {head[3]}: {DINO}." in text
    assert "run again later" not in text


def test_images_prepared_in_another_way_are_another_column(tmp_path: Path) -> None:
    for crop in (32, 64):
        data = {**record().data, "prepared": f"Crop(size={crop}, fraction=1), in [0, 1]"}
        record(data=data, seed=crop).write(tmp_path / f"{crop}.json")
    head, row = rows(write_report(tmp_path, tmp_path / "r.md"))
    assert head[2] == "k-NN top-1 (images of Crop(size=32, fraction=1), in [0, 1])"
    assert [cell for cell in row if cell == "0.400"] == ["0.400"] * 2


def test_an_evaluation_that_says_how_its_images_were_made_says_it_once(tmp_path: Path) -> None:
    for size in (32, 64):
        data = {**record().data, "prepared": f"Crop(size={size})"}
        images = f"images of {size} x {size} pixels by Crop(size={size}), in [0, 1]"
        text = f"SGD, frozen, weights a, b.ckpt, {images}"
        metrics = values(("linear/top1", 0.5))
        record(data=data, seed=size, protocols={"linear/top1": text}, metrics=metrics).write(
            tmp_path / f"{size}.json"
        )
    text = write_report(tmp_path, tmp_path / "r.md")
    title = "linear top-1 (images of 32 x 32 pixels by Crop(size=32), in [0, 1])"
    assert rows(text)[0][2] == title
    assert f"* {title}: SGD, frozen, images of 32 x 32 pixels by Crop(size=32), in [0, 1].\n" in text


def test_a_learning_rate_that_was_chosen_is_no_other_protocol(tmp_path: Path) -> None:
    """Each backbone has its own; which weights were judged is said by the row."""
    for index, lr in enumerate(("0.1", "0.01")):
        text = (
            f"many_shot: SGD lr={lr} wd=0 cosine, batch 64, all weights trained, weights a, b {lr}/last.ckpt"
        )
        metrics = values(("finetune/top1", 0.5))
        record(label=f"m{index}", config_hash=lr, protocols={"finetune/top1": text}, metrics=metrics).write(
            tmp_path / f"{index}.json"
        )
    text = write_report(tmp_path, tmp_path / "r.md")
    assert [row[2] for row in rows(text)] == ["fine-tuned top-1", "0.500", "0.500"]
    assert "SGD lr=0.1 wd=0 cosine, batch 64, all weights trained; many_shot: SGD lr=0.01" in text


def test_a_readout_that_was_left_out_on_a_resume_is_no_result(tmp_path: Path) -> None:
    metrics = {"knn/top1": Metric([[1.0, 10, 30.0, 0.3]]), **values(("probe/top1", 0.6))}
    protocols = {"knn/top1": PAPER, "probe/top1": "a probe"}
    record(metrics=metrics, protocols=protocols).write(tmp_path / "a.json")
    text = write_report(tmp_path, tmp_path / "r.md")
    assert rows(text)[0][2] == "online probe top-1"
    assert "0.300" not in text
    assert (
        "* Not read at the end of training, and left out: k-NN top-1 of MMCL, Exact, seed 0 (last read at "
        "step 10 of 20)." in text
    )


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (("NTXent", None, None), "SimCLR"),
        (("MMCL log, Inverse", None, None), "MMCL log, Inverse"),
        (("LinearEvaluation", "NTXent", "a/last.ckpt"), "linear evaluation of SimCLR"),
        (("LinearEvaluation", None, "random"), "linear evaluation of a random start"),
        (("FineTune", None, "/x/y/run/v_0/checkpoints/last.ckpt"), "fine-tuning of run/v_0/last.ckpt"),
        (("MyEvaluation", "HCL", "a.ckpt"), "MyEvaluation of HCL"),
    ],
)
def test_names_of_methods(found: tuple[str, str | None, str | None], name: str) -> None:
    assert method_name(*found) == name


def test_runs_of_one_name_are_told_apart_by_as_few_options_as_that_takes() -> None:
    def config(C: float, solver: str, *callbacks: str) -> dict[str, Any]:
        parts = [
            {"class_path": f"x.{name}", "init_args": {"patience": 3, "mode": "max"}} for name in callbacks
        ]
        init = {"C": C, "reg": C / 10, "solver": {"class_path": f"y.{solver}"}}
        return {"model": {"init_args": init}, "trainer": {"callbacks": parts}}

    assert distinct_names("m", [config(1, "Exact"), config(2, "Exact")]) == ["m (C=1)", "m (C=2)"]
    stopped = [config(1, "Exact", "EarlyStopping", "Other"), config(1, "Exact", "Other")]
    assert distinct_names("m", stopped) == ["m (with EarlyStopping)", "m (without EarlyStopping)"]
    solvers = [config(1, "Exact"), config(1, "Inverse"), config(2, "Inverse")]
    assert distinct_names("m", solvers) == [
        "m (solver=Exact, C=1)", "m (solver=Inverse, C=1)", "m (solver=Inverse, C=2)",
    ]  # fmt: skip
    assert distinct_names("m", [{}, {}]) == ["m", "m (no. 2)"]
    long = [{"x": "a" * 100 + end} for end in "bc"]
    assert distinct_names("m", long) == ["m", "m (no. 2)"], "what is cut off tells nothing apart"


def test_the_heading_names_records_and_images_and_the_band_is_explained(tmp_path: Path) -> None:
    data = {"class": "ImageFolderDataModule", "folder": "leaves", "fingerprint": {"pretrain": "90 images, a"}}
    for seed in (0, 1):
        record(seed=seed, data=data).write(tmp_path / "runs" / f"{seed}.json")
    text = write_report(tmp_path / "runs", tmp_path / "r.md")
    assert "Made of 2 records of runs in runs." in text
    assert "## Image folder leaves, 90 training images, batch 8\n" in text
    caption = text.partition("![k-NN top-1 against epochs and time](r.png)\n\n")[2]
    assert caption.startswith(
        "Lines: means over the seeds of a method; bands: from the lowest to the highest seed. Left against"
    )


def test_no_legend_covers_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "close", lambda figure: None)
    for index in range(12):
        label = f"method {index} with a name " + "that goes on " * 12
        record(label=label, config_hash=str(index)).write(tmp_path / f"{index}.json")
    write_report(tmp_path, tmp_path / "r.md")
    figure = plt.gcf()
    (legend,) = figure.legends
    boxes = [axis.get_window_extent() for axis in figure.axes]
    assert len(legend.get_texts()) == 12
    assert not any(box.overlaps(legend.get_window_extent()) for box in boxes)
    assert min(box.width for box in boxes) > 0.4 * figure.bbox.width
    assert min(box.height for box in boxes) > 300, "and the panels keep their size"


def test_the_papers_value_is_that_of_its_protocol() -> None:
    init = {"backbone": "resnet50"}
    config = {
        "model": {"init_args": init},
        "data": {"class_path": "x.STL10DataModule", "init_args": {"batch_size": 256}},
    }
    run = record(config=config, method="MMCL, Inverse", epochs=200)
    assert paper_value(run, "knn/top1", PAPER) == pytest.approx(0.8133)
    assert paper_value(run, "knn/top1", DINO) is None


def test_networks_classes_and_lengths_are_always_said_where_they_differ() -> None:
    def config(backbone: Any, epochs: int, kernel: str | None = None, workers: int = 0) -> dict[str, Any]:
        part = None if kernel is None else {"class_path": kernel, "init_args": {"gamma": 1.5}}
        return {
            "trainer": {"max_epochs": epochs},
            "model": {"init_args": {"C": 1.0, "kernel": part, "backbone": backbone}},
            "data": {"init_args": {"image_size": workers}},
        }

    assert distinct_names("MMCL", [config("conv4", 3), config("resnet18", 1)]) == [
        "MMCL (backbone=conv4, max_epochs=3)",
        "MMCL (backbone=resnet18, max_epochs=1)",
    ]
    options = {"name": "timm:vit_tiny_patch16_224", "img_size": 32}
    assert distinct_names("MMCL", [config("conv4", 1), config(options, 1)]) == [
        "MMCL (backbone=conv4)",
        "MMCL (backbone=timm:vit_tiny_patch16_224)",
    ]
    own = [config("conv4", 1, "mmcl_lightning.kernels.RBF"), config("conv4", 1, "my_svm.Cauchy")]
    assert distinct_names("MMCL", own) == ["MMCL (kernel=RBF)", "MMCL (kernel=Cauchy)"]
    assert distinct_names("MMCL", [config("conv4", 1), own[1]]) == ["MMCL", "MMCL (kernel=Cauchy)"]
    live = [config({"live_object": "my_nets.Net"}, 1), config("conv4", 1)]
    assert distinct_names("MMCL", live) == ["MMCL (backbone=Net)", "MMCL (backbone=conv4)"]
    assert distinct_names("MMCL", [config("conv4", 1, workers=1), config("conv4", 1, workers=2)]) == [
        "MMCL (image_size=1)",
        "MMCL (image_size=2)",
    ]
