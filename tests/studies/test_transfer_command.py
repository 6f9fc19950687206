"""``mmcl transfer``: one run per set, none twice, on after a failed one, and the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from records import record
from runs import generators

from mmcl_lightning.cli import main
from mmcl_lightning.datamodules import FewShotDataModule
from mmcl_lightning.datamodules.transfer_names import FEW_SHOT_SETS, MANY_SHOT_SETS
from mmcl_lightning.datamodules.transfer_sets import TRANSFER_SETS
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Metric, Record
from mmcl_lightning.studies.paper import finetune_values
from mmcl_lightning.studies.report import write_report
from mmcl_lightning.studies.study import Run
from mmcl_lightning.studies.sweep import Sweep
from mmcl_lightning.studies.transfer_tables import JudgedSet, few_shot_table, finetune_table, linear_table


def judged(name: str, value: float = 0.5, **changes: Any) -> Any:
    """The record of a set, of as many images as published ones."""
    train, validation, test = TRANSFER_SETS[name].sizes
    found = {TRANSFER_SETS[name].metric: value, "chosen_C": 0.0562341, "validation": 0.75}
    shown = {"bank": f"{train + (validation or 0)} images, 1a", "query": f"{test} images, 2b"}
    options: dict[str, Any] = {
        "metrics": {f"logistic/{key}": Metric([[1.0, 0, 9.0, value]]) for key, value in found.items()},
        "data": {"fingerprint": shown, "prepared": "EvalTransform(resize=224, crop=224), in [0, 1]"},
        "protocols": {f"logistic/{TRANSFER_SETS[name].metric}": f"protocol of {name}"},
        "steps": 0,
    }
    return record(**(options | changes))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Runs that only write what a run leaves; one of the set cars fails."""
    made: list[tuple[str, ...]] = []

    def call(self: Sweep, run: Run) -> int:
        folder = self.folder / run.name
        (folder / "run" / "version_0").mkdir(parents=True, exist_ok=True)
        made.append(tuple(self._command(run)[3:]))
        (folder / "arguments.json").write_text(json.dumps(self._arguments(run)))
        if run.label == "cars":
            (folder / "output.txt").write_text("error: no cars\n")
            return 1
        judged(run.label).write(folder / "run" / "version_0" / "ledger.json")
        return 0

    monkeypatch.setattr(Sweep, "_call", call)
    monkeypatch.chdir(tmp_path)
    Path("weights.ckpt").write_bytes(b"some weights")
    return made


GIVEN = ["transfer", "linear", "--checkpoint", "weights.ckpt", "--root", "elsewhere"]


def test_what_is_finished_is_not_repeated_and_a_failed_set_does_not_stop_the_others(
    calls: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*GIVEN, "--sets", "dtd", "cars", "aircraft", "--normalize", "none", "--data.num_workers", "0"]
    with pytest.raises(SystemExit) as stop:
        main(given)
    assert stop.value.code == 1
    assert [call[call.index("--data.dataset") + 1] for call in calls] == ["aircraft", "cars", "dtd"]
    text = " ".join(calls[0])
    assert text.startswith("fit --config transfer_linear.yaml --model.checkpoint weights.ckpt --data.norm")
    assert "--data.normalize none --data.dataset aircraft" in text
    assert "--data.root elsewhere --data.num_workers 0" in text
    (table,) = Path("runs", "transfer").rglob("TRANSFER.md")
    assert "| dtd | top-1 | 50.00 | 0.0562 | 75.00 | 3,760 + 1,880 |" in table.read_text()
    assert "| cars | top-1 | - | - | - | - |" in table.read_text()
    assert "* cars/seed 0: failed: error: no cars" in table.read_text()
    calls.clear()
    with pytest.raises(SystemExit):
        main(given)
    assert [call[call.index("--data.dataset") + 1] for call in calls] == ["cars"]
    calls.clear()
    main([*GIVEN[:-1], "moved", "--sets", "dtd", "--normalize", "none", "--data.num_workers", "0"])
    assert calls == [], "where the data lies is not what they are"
    assert "dtd/seed 0: top-1 50.00 %, finished before" in capsys.readouterr().out
    Path("weights.ckpt").write_bytes(b"other weights")
    main([*GIVEN, "--sets", "dtd", "--normalize", "none", "--data.num_workers", "0", "--out", "other.md"])
    assert len(calls) == 1
    assert "| dtd | top-1 |" in Path("other.md").read_text()


def test_other_options_are_other_runs(calls: list[tuple[str, ...]]) -> None:
    for more in ([], ["--normalize", "imagenet"], ["--normalize", "imagenet"]):
        main([*GIVEN, "--sets", "dtd", *more])
    assert len(calls) == 2
    for backbone in ("resnet18", "resnet50", "resnet18"):
        main(["transfer", "linear", "--checkpoint", "random", "--backbone", backbone, "--sets", "dtd"])
    assert len(calls) == 4


def test_all_sets_are_the_default(calls: list[tuple[str, ...]]) -> None:
    with pytest.raises(SystemExit):
        main(GIVEN)
    assert [call[call.index("--data.dataset") + 1] for call in calls] == list(TRANSFER_SETS)


def test_the_table_marks_what_does_not_compare() -> None:
    few = judged("pets", 0.25, data={"fingerprint": {"bank": "90 images, 1", "query": "9 images, 2"}})
    text = linear_table([JudgedSet("voc2007", judged("voc2007")), JudgedSet("pets", few)], "w|eights")
    assert "Weights: w\\|eights" in text
    assert "| voc2007 | 11-point mAP | 50.00 | 0.0562 | 75.00 | 5,011 + 4,952 |\n" in text
    assert "| pets | mean per-class accuracy | 25.00 | 0.0562 | 75.00 | 90 + 9 * |\n" in text
    assert "The paper prints no values of linear many-shot transfer" in text
    assert "\n* voc2007: protocol of voc2007; EvalTransform" in text
    assert "paper |" not in text


def test_a_report_shows_what_each_set_is_judged_by_and_keeps_sets_apart(tmp_path: Path) -> None:
    for name in ("pets", "voc2007", "dtd"):
        found = judged(name, 0.25 if name == "pets" else 0.5)
        found.data |= {"class": "TransferDataModule", "folder": name, "held_out": "test"}
        found.metrics["logistic/loss"] = Metric([[1.0, 0, 9.0, 1.0]])
        found.write(tmp_path / name / "ledger.json")
    text = write_report(tmp_path, tmp_path / "REPORT.md")
    heads = sorted(line.split(",")[0] for line in text.splitlines() if line.startswith("## "))
    assert heads == ["## Transfer dtd", "## Transfer pets", "## Transfer voc2007"]
    assert text.count("logistic regression mean per class |") == 1
    assert text.count("logistic regression 11-point mAP |") == 1
    assert text.count("logistic regression top-1 |") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--sets", "flower"], r"--sets takes aircraft, .*; got 'flower'; did you mean flowers\?"),
        (["--out", "table.csv"], "--out must end in .md, got table.csv"),
        (["--checkpoint", "nothing.ckpt"], "there is no such file, nor is it random or pretrained"),
    ],
)
def test_input_is_checked(
    given: list[str], message: str, calls: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*GIVEN, *given])
    assert stop.value.code == 1
    assert re.search(message, capsys.readouterr().err)
    assert calls == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_record_of_a_run_has_what_the_table_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generators("fake_transfer").write("dtd", tmp_path / "data")
    small = ["--data.image_size=16", "--data.num_workers=0", "--trainer.accelerator=cpu"]
    named = ["--model.checkpoint=random", "--model.backbone=conv4", "--data.normalize=none"]
    main(["fit", "--config", "transfer_linear", "--data.dataset=dtd", *named, *small])
    (path,) = Path("runs").rglob("ledger.json")
    found = Record.read(path)
    value, validation = (100 * found.metrics[f"logistic/{name}"].last for name in ("top1", "validation"))
    chosen = found.metrics["logistic/chosen_C"].last
    text = linear_table([JudgedSet("dtd", found)], "random")
    assert f"| dtd | top-1 | {value:.2f} | {chosen:.3g} | {validation:.2f} | 24 + 12 * |" in text
    assert "* dtd: transfer: logistic regression on h, " in text
    assert "EvalTransform(resize=16, crop=16), in [0, 1]" in text
    assert found.data["folder"] == "dtd"


def few(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "metrics": {
            "few_shot/accuracy": Metric([[0.0, 0, 9.0, 0.8844]]),
            "few_shot/half_width": Metric([[0.0, 0, 9.0, 0.0041]]),
        },
        "protocols": {
            "few_shot/accuracy": "5-way 20-shot, 15 queries a class, 600 episodes of seed 0, "
            "images of 224 x 224 pixels"
        },
        "config": {"model": {"init_args": {"backbone": "resnet50"}}},
    }
    return record(**(options | changes))


def test_few_shot_is_run_by_test_and_stands_beside_the_papers_values_where_it_compares(
    calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Sweep._call

    def call(self: Sweep, run: Run) -> int:
        before(self, run)
        few().write(self.folder / run.name / "run" / "version_0" / "ledger.json")
        return 0

    monkeypatch.setattr(Sweep, "_call", call)
    monkeypatch.setattr("test_transfer_command.judged", lambda name: few())
    given = ["transfer", "few_shot", "--checkpoint", "weights.ckpt", "--sets", "isic", "eurosat"]
    main([*given, "--normalize", "imagenet", "--out", "few.md"])
    assert [call[call.index("--data.dataset") + 1] for call in calls] == ["eurosat", "isic"]
    assert calls[0][:3] == ("test", "--config", "few_shot.yaml")
    assert "--data.mean [0.485, 0.456, 0.406]" in " ".join(calls[0])
    text = Path("few.md").read_text()
    assert "| eurosat | 88.44 ± 0.41 | 88.75 ± 0.40 | 88.36 ± 0.44 |" in text
    assert "| isic | 88.44 ± 0.41 | 48.79 ± 0.53 | 48.79 ± 0.53 |" in text
    calls.clear()
    main([*given, "--normalize", "imagenet", "--out", "few.md"])
    assert calls == []
    other = few(config={"model": {"init_args": {"backbone": "conv4"}}})
    sets = [JudgedSet("eurosat", other), JudgedSet("chestx")]
    table = few_shot_table(sets, "w", ["chestx: no such folder"])
    assert "| eurosat | 88.44 ± 0.41 |  |  |" in table
    assert "| chestx | - |  |  |" in table
    assert "* chestx: no such folder" in table
    for wrong in (["--sets", "dtd"], ["--normalize", "none"]):
        with pytest.raises(SystemExit):
            main(["transfer", "few_shot", "--checkpoint", "weights.ckpt", *wrong])
    assert calls == []


def tuned(name: str, lr: float, decay: float, value: float, **changes: Any) -> Any:
    """The record of a set that was fine-tuned as the paper's were."""
    metric = f"finetune/{TRANSFER_SETS[name].metric}"
    options: dict[str, Any] = {
        "metrics": {metric: Metric([[1.0, 5000, 9.0, value]])},
        "protocols": {
            metric: "many_shot: SGD lr=1 wd=0 cosine, batch 64, 5000 steps, all weights trained, weights w"
        },
        "config": {"model": {"init_args": {"backbone": "resnet50", "lr": lr, "relative_decay": decay}}},
    }
    return judged(name, **(options | changes))


@pytest.fixture
def trainings(calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Fine-tunings that only write a record, best with lr 0.01 and decay 1e-5; those of cars fail."""
    before = Sweep._call

    def call(self: Sweep, run: Run) -> int:
        given = dict(zip(run.arguments[1::2], run.arguments[2::2], strict=False))
        lr, decay = float(given["--model.lr"]), float(given["--model.relative_decay"])
        before(self, run)
        if run.label == "cars":
            return 1
        value = 0.9 if (lr, decay) == (0.01, 1e-5) and "search" in run.arguments else 0.5
        found = tuned(run.label, lr, decay, value)
        found.data["held_out"] = "validation" if "search" in run.arguments else "test"
        found.write(self.folder / run.name / "run" / "version_0" / "ledger.json")
        return 0

    monkeypatch.setattr(Sweep, "_call", call)
    return calls


def test_fine_tuning_is_searched_on_validation_images_and_run_once_on_all(
    trainings: list[tuple[str, ...]],
) -> None:
    given = ["transfer", "finetune", "--checkpoint", "weights.ckpt", "--normalize", "imagenet"]
    main([*given, "--sets", "dtd", "pets", "--out", "tuned.md"])
    assert len(trainings) == 2 * 21
    texts = [" ".join(call) for call in trainings]
    assert [("--data.part search" in text) for text in texts] == 2 * ([True] * 20 + [False])
    rates = [call[call.index("--model.lr") + 1] for call in trainings[:20]]
    assert rates == [value for value in ("0.1", "0.01", "0.001", "0.0001") for _ in range(5)]
    assert "--model.lr 0.01 --model.relative_decay 1.0e-05" in texts[20]
    assert texts[20].startswith("fit --config transfer_finetune.yaml --model.checkpoint weights.ckpt")
    text = Path("tuned.md").read_text()
    row = "| dtd | top-1 | 50.00 | 0.01 / 1e-05 | 90.00 | 3,760 + 1,880 | 73.51 | 73.51 | 73.30 |"
    assert row in text
    row = "| pets | mean per-class accuracy | 50.00 | 0.01 / 1e-05 | 90.00 | 3,680 + 3,669 | 87.81 | 92.42 |"
    assert row in text
    trainings.clear()
    main([*given, "--sets", "dtd", "pets", "--out", "tuned.md"])
    assert trainings == []


def test_a_set_whose_search_failed_does_not_stop_the_others(trainings: list[tuple[str, ...]]) -> None:
    given = ["transfer", "finetune", "--checkpoint", "weights.ckpt", "--normalize", "none", "--out", "t.md"]
    with pytest.raises(SystemExit):
        main([*given, "--sets", "cars", "dtd"])
    text = Path("t.md").read_text()
    assert "| cars | top-1 | - | - | - | - |  |  |  |" in text
    assert "| dtd | top-1 | 50.00 |" in text
    assert "* cars: not run, since its tuning failed" in text
    failed = [call for call in trainings if "cars" in call]
    assert len(failed) == 1, "the search ends with the first run that fails"


def test_the_papers_columns_are_empty_where_a_fine_tuning_is_not_the_papers() -> None:
    small = {"data": {"fingerprint": {"bank": "90 images, 1", "query": "9 images, 2"}}}
    other = {"protocols": {"finetune/top1": "many_shot: SGD lr=1 wd=0 cosine, batch 8, 20 steps, all"}}
    for changes in (small, other, {"config": {"model": {"init_args": {"backbone": "resnet18", "lr": 0.1}}}}):
        text = finetune_table([JudgedSet("dtd", tuned("dtd", 0.1, 0.0, 0.5, **changes))], "w")
        assert "|  |  |  |\n" in text, changes
    assert finetune_values("voc2007") == (82.83, 84.76, 84.76)
    assert finetune_values("cars") == (89.23, 89.23, 82.61)


@pytest.mark.parametrize(
    "option", ["--data.part=final", "--model.lr", "--model.init_args.lr", "--data.init_args.part"]
)
def test_what_is_searched_is_not_given(
    option: str, trainings: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["transfer", "finetune", "--checkpoint", "weights.ckpt", option, "1"])
    message = "finetune searches model.lr and model.relative_decay on the validation images itself: leave"
    assert f"{message} {option.partition('=')[0].replace('.init_args', '')}" in capsys.readouterr().err
    assert trainings == []


@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("--data.dataset", "--sets"), ("--data.init_args.dataset=dtd", "--sets"), ("--data.root", "--root"),
        ("--model.checkpoint", "--checkpoint"), ("--model.backbone", "--backbone"),
        ("--data.normalize", "--normalize"),
    ],
)  # fmt: skip
def test_what_the_command_has_an_option_for_is_not_given_twice(
    option: str, own: str, calls: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*GIVEN, option, "dtd"])
    assert f"give {own} in place of {option.partition('=')[0]}" in capsys.readouterr().err
    assert calls == []


def test_a_further_configuration_comes_before_the_options(calls: list[tuple[str, ...]]) -> None:
    main([*GIVEN, "--sets", "dtd", "--config", "mine.yaml"])
    text = " ".join(calls[0])
    assert "--config transfer_linear.yaml --config mine.yaml --model.checkpoint weights.ckpt" in text


def test_the_names_on_the_command_line_are_those_of_the_data_modules() -> None:
    assert set(MANY_SHOT_SETS) == set(TRANSFER_SETS)
    for name in FEW_SHOT_SETS:
        FewShotDataModule(name)
    with pytest.raises(ConfigError, match="dataset must be one of folder, " + ", ".join(FEW_SHOT_SETS)):
        FewShotDataModule("nothing")
