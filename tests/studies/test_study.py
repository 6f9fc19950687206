"""Studies: what their runs are, that none runs twice, and that the best value is chosen."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from records import record

from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.ledger import Metric, Record
from mmcl_lightning.studies import Study, Sweep, Variant
from mmcl_lightning.studies.report import write_report
from mmcl_lightning.studies.study import Run

TEXT = """
name: small
options: {config: base.yaml, trainer.max_epochs: 2}
tuning: {data.validation_subset: 10}
seeds: [0, 1]
variants:
  ours:
    options: {config: more.yaml, model.solver: Exact}
    tune: {model.gamma: [1.0, 2.0, 4.0]}
  plain:
"""


def study(folder: Path, text: str = TEXT) -> Study:
    (folder / "study.yaml").write_text(text)
    return Study.load(folder / "study.yaml")


def test_runs_and_their_arguments(tmp_path: Path) -> None:
    ours, plain = study(tmp_path).variants
    tuning = study(tmp_path).tuning_runs(ours)
    assert [run.name for run in tuning] == [f"tuning/ours/gamma={gamma}" for gamma in (1.0, 2.0, 4.0)]
    assert study(tmp_path).tuning_runs(plain) == []
    expected = "fit --config base.yaml --config more.yaml --trainer.max_epochs 2 --model.solver Exact "
    assert " ".join(tuning[1].arguments) == expected + (
        "--data.validation_subset 10 --model.gamma 2.0 --seed_everything 0 --data.seed 0"
    )
    run = study(tmp_path).runs(ours, {"model.gamma": 4.0})[1]
    assert " ".join(run.arguments) == expected + "--model.gamma 4.0 --seed_everything 1 --data.seed 1"
    assert (run.name, run.label, run.seed) == ("ours/seed 1", "ours", 1)


def test_values_of_any_kind_become_one_argument(tmp_path: Path) -> None:
    text = TEXT.replace("model.solver: Exact", "model.schedule: {C: {1: .inf}}, a: true, b: null, c: a b")
    arguments = study(tmp_path, text).runs(study(tmp_path, text).variants[0], {})[0].arguments
    found = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert (found["--model.schedule"], found["--a"]) == ("{C: {1: .inf}}", "true")
    assert (found["--b"], found["--c"]) == ("null", "a b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no YAML"),
        ("- a", "must be a mapping"),
        ("name: x", "at least one variant"),
        (TEXT.replace("seeds: [0, 1]", "seeds: []"), "at least one variant and one seed"),
        (TEXT.replace("seeds: [0, 1]", "seeds: 3"), "seeds must be a list of different integers >= 0, got 3"),
        (TEXT.replace("seeds: [0, 1]", "seeds: [1, 1]"), "different integers"),
        (TEXT.replace("seeds: [0, 1]", "seeds: [true]"), "different integers"),
        (TEXT.replace("name: small", "name: ../small"), "one that a folder can have"),
        (TEXT.replace("name: small", "name: 3"), "one that a folder can have, got 3"),
        (TEXT.replace("plain:", "'':"), "cannot be called ''"),
        (TEXT.replace("plain:", "..:"), r"cannot be called '\.\.'"),
        (TEXT.replace("plain:", "ledger:"), "cannot be called 'ledger'"),
        (TEXT.replace("plain:", "OURS?:\n  ours*:"), "would share a folder"),
        (TEXT.replace("[1.0, 2.0, 4.0]", "[a/b, a_b]"), "would share a folder"),
        (TEXT.replace("plain:", "1: {}\n  '1':"), "two variants are called '1'"),
        (TEXT.replace("seeds: [0, 1]", "seeds: [-1]"), "different integers >= 0"),
        (TEXT + "3: 4", "names of the parts of a study must be text"),
        (TEXT.replace("[1.0, 2.0, 4.0]", "[" + "a" * 250 + ", b]"), "too long to name a folder by"),
        (TEXT.replace("plain:", "plain: {options: [a]}"), "plain: options must be a mapping"),
        (TEXT.replace("plain:", "plain: 3"), "variants must be a mapping"),
        (TEXT.replace("{data.validation_subset: 10}", "3"), "tuning must be a mapping"),
        (TEXT.replace("tuning: {data.validation_subset: 10}", ""), "chosen on the test images"),
        (TEXT.replace("[1.0, 2.0, 4.0]", "1.0"), "must be a list"),
        (TEXT.replace("{model.gamma: [1.0, 2.0, 4.0]}", "[{a: 1}, {b: 2}]"), "a value to the same options"),
        (TEXT.replace("{model.gamma: [1.0, 2.0, 4.0]}", "[{a: 1}, 3]"), "ours: tune must be a mapping"),
        (TEXT + "reference: theirs", "reference 'theirs' is no variant; there are ours, plain"),
        (TEXT + "metrics: knn/top1", "metrics must be a list of names, got 'knn/top1'"),
        (TEXT + "tuning_metric: []", r"a name or a list of names, .* got \[\] and 0"),
        (TEXT.replace("seeds:", "seedz:"), "a study has no 'seedz': it has name, options, variants"),
        (TEXT.replace("    tune:", "    tunes:"), "variant 'ours' has options and tune, and no 'tunes'"),
    ],
)
def test_a_study_that_cannot_run_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(tmp_path, text)
    with pytest.raises(ConfigError, match="cannot be read"):
        Study.load(tmp_path / "missing.yaml")


def test_a_study_may_be_laid_over_another(tmp_path: Path) -> None:
    study(tmp_path)
    (tmp_path / "more.yaml").write_text(
        "base: study.yaml\noptions: {data.batch_size: 64}\nseeds: [3]\nreference: plain\n"
        "metrics: [knn/top1]\nvariants: {other: {options: {a: 1}}}\n"
    )
    more = Study.load(tmp_path / "more.yaml")
    assert (more.name, more.seeds, more.reference, more.metrics) == ("more", (3,), "plain", ("knn/top1",))
    assert more.options == {"config": "base.yaml", "trainer.max_epochs": 2, "data.batch_size": 64}
    assert [variant.name for variant in more.variants] == ["ours", "plain", "other"]
    assert more.tuning == {"data.validation_subset": 10}
    (tmp_path / "more.yaml").write_text("base: more.yaml\n")
    with pytest.raises(ConfigError, match=r"base 'more\.yaml' leads back to a study"):
        Study.load(tmp_path / "more.yaml")


def test_bases_of_studies(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "below.yaml").write_text("options: {p: 1}\nvariants: {a: {}}\n")
    (tmp_path / "above.yaml").write_text("base: sub/below.yaml\noptions:\n")
    assert Study.load(tmp_path / "above.yaml").options == {"p": 1}  # nothing given is nothing changed
    (tmp_path / "sub" / "below.yaml").write_text("base: ../above.yaml\n")
    with pytest.raises(ConfigError, match=r"base '../above.yaml' leads back"):
        Study.load(tmp_path / "above.yaml")
    (tmp_path / "above.yaml").write_text("base: ''\n")
    with pytest.raises(ConfigError, match="base must be the path of another study from here, got ''"):
        Study.load(tmp_path / "above.yaml")
    (tmp_path / "above.yaml").write_text("base: none.yaml\n")
    with pytest.raises(ConfigError, match=r"none.yaml cannot be read as a study"):
        Study.load(tmp_path / "above.yaml")


def test_long_and_negative_values(tmp_path: Path) -> None:
    optimizer = {
        "class_path": "torch.optim.AdamW",
        "init_args": {"betas": [0.9, 0.98], "eps": 0.125, "lr": 0.001},
    }
    text = TEXT.replace("  plain:", f"  plain: {{options: {{model.optimizer: {optimizer}, a: -1.0e-5}}}}")
    arguments = study(tmp_path, text).runs(study(tmp_path, text).variants[1], {})[0].arguments
    assert yaml.safe_load(arguments[arguments.index("--model.optimizer") + 1]) == optimizer
    assert "--a=-1.0e-05" in arguments


def test_one_seed_for_all_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--seed_everything would be the seed of every run"):
        Sweep(study(tmp_path), tmp_path, extra=["--seed_everything", "3"])


def test_the_records_of_an_edited_study(tmp_path: Path) -> None:
    """A variant that was taken out is not in the report any more, and one that failed is listed."""
    sweep = Sweep(study(tmp_path), tmp_path)
    names = {path.stem for path in sweep.records}
    assert {"ours, seed 0", "ours, seed 1", "plain, seed 0", "plain, seed 1"} < names
    assert len(names) == 7
    edited = Sweep(study(tmp_path, TEXT.replace("  plain:", "  other:")), tmp_path)
    for path in sweep.records:
        if "ours" in path.name or "plain" in path.name:
            record(label=path.stem.split(",")[0]).write(path)
    text = write_report(
        tmp_path / "ledger", tmp_path / "R.md", only=edited.records, missing=["other/seed 0: failed: no disk"]
    )
    assert "| ours |" in text
    assert "plain" not in text
    assert "## Not counted\n\n* other/seed 0: failed: no disk" in text


LASTING = """
import sys, time, pathlib
pathlib.Path(sys.argv[1]).touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1] + ".stopped").touch()
"""


class Lasting(Sweep):
    """A sweep whose runs wait to be interrupted."""

    def _command(self, run: Run) -> list[str]:
        folder = self.folder / run.name
        return [sys.executable, "-c", LASTING, str(folder / "started")]


def test_an_interrupt_reaches_the_runs_and_starts_no_other(tmp_path: Path) -> None:
    sweep = Lasting(study(tmp_path, TEXT.split("  ours:")[0] + "  a:\n  b:\n"), tmp_path / "runs")

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "runs" / "a" / "seed 0" / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(ConfigError, match="another sweep"):
            Lasting(sweep.study, sweep.folder).run()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sweep.run()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "runs" / "a" / "seed 0" / "started.stopped").exists()
    assert len(list((tmp_path / "runs").rglob("started"))) == 1


@pytest.mark.parametrize(
    ("given", "expected"), [({}, ("1", "1")), ({"OMP_NUM_THREADS": "3"}, ("3", None))], ids=["share", "own"]
)
def test_threads_of_a_run(
    given: dict[str, str], expected: tuple[str | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("mmcl_lightning.studies.sweep.available_cores", lambda: 2)
    sweep = Lasting(study(tmp_path, TEXT.split("  ours:")[0] + "  a:\n"), tmp_path / "runs", parallel=2)
    show = f"import os; print([os.environ.get(name) for name in {names}])"
    monkeypatch.setattr(sweep, "_command", lambda run: [sys.executable, "-c", show])
    assert not sweep.run()
    shown = (tmp_path / "runs" / "a" / "seed 0" / "output.txt").read_text().strip()
    assert shown == str(list(expected))


def test_a_try_that_is_not_a_number_is_not_the_best(tmp_path: Path) -> None:
    sweep = Rehearsal(study(tmp_path), tmp_path / "runs")
    sweep.scores = {1.0: math.nan, 2.0: 0.2, 4.0: 0.1}
    assert sweep.run()
    assert sweep.choose(sweep.study.variants[0]) == {"model.gamma": 2.0}


def test_tries_may_be_listed_one_by_one(tmp_path: Path) -> None:
    listed = study(tmp_path, TEXT.replace("{model.gamma: [1.0, 2.0, 4.0]}", "[{a: 1, b: 2}, {a: 3, b: 2}]"))
    tuning = listed.tuning_runs(listed.variants[0])
    assert [run.name for run in tuning] == ["tuning/ours/a=1, b=2", "tuning/ours/a=3, b=2"]
    assert tuning[1].choice == {"a": 3, "b": 2}


def test_values_are_not_chosen_on_the_test_images(tmp_path: Path) -> None:
    sweep = Rehearsal(study(tmp_path), tmp_path / "runs")
    sweep.tuned_on = "test"
    with pytest.raises(DataError, match=r"tuning/ours/gamma=1.0 was judged on the test images, and a choice"):
        sweep.run()
    assert not (tmp_path / "runs" / "ours").exists()


def test_the_mean_of_several_metrics_chooses(tmp_path: Path) -> None:
    several = study(tmp_path, TEXT + "tuning_metric: [knn/top1, knn/top5]\n")
    sweep = Rehearsal(several, tmp_path / "runs")
    sweep.second = {1.0: 0.9, 2.0: 0.1, 4.0: 0.1}  # means 0.6, 0.35 and 0.3
    assert sweep.run()
    assert sweep.choose(several.variants[0]) == {"model.gamma": 1.0}


def test_reported_runs_go_seed_by_seed(tmp_path: Path) -> None:
    sweep = Rehearsal(study(tmp_path), tmp_path / "runs")
    assert sweep.run()
    assert sweep.called[3:] == ["ours/seed 0", "plain/seed 0", "ours/seed 1", "plain/seed 1"]


class Rehearsal(Sweep):
    """A sweep whose runs write their record at once: gamma 2 is best on the validation part."""

    def __init__(self, *args: Any, failing: tuple[str, ...] = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.called: list[str] = []
        self.failing = failing
        self.scores = {1.0: 0.3, 2.0: 0.6, 4.0: 0.5}
        self.second: dict[float, float] = {}
        self.tuned_on = "validation"

    def _call(self, run: Run) -> int:
        self.called.append(run.name)
        folder = self.folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "arguments.json").write_text(json.dumps(self._arguments(run)))
        score = self.scores.get(run.choice.get("model.gamma", 0), 0.1)
        status = "failed: no" if run.name in self.failing else "finished"
        metrics = {"knn/top1": Metric([[1.0, 1, 1.0, score]])}
        if self.second:
            score = self.second.get(run.choice.get("model.gamma", 0), 0.1)
            metrics["knn/top5"] = Metric([[1.0, 1, 1.0, score]])
        held_out = self.tuned_on if run.name.startswith("tuning/") else "test"
        data = {"held_out": held_out, "fingerprint": {"query": "100 images, 1f"}}
        record(status=status, seed=run.seed, metrics=metrics, data=data).write(
            folder / "run" / "version_0" / "ledger.json"
        )
        return int(run.name in self.failing)


def test_the_best_value_is_run_with_every_seed_and_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Rehearsal(study(tmp_path), tmp_path / "runs", parallel=2)
    assert first.run()
    tuning = [f"tuning/ours/gamma={gamma}" for gamma in (1.0, 2.0, 4.0)]
    assert sorted(first.called) == sorted(
        ["ours/seed 0", "ours/seed 1", "plain/seed 0", "plain/seed 1", *tuning]
    )
    chosen = json.loads((tmp_path / "runs" / "ours" / "seed 0" / "arguments.json").read_text())
    assert chosen[chosen.index("--model.gamma") + 1] == "2.0"
    filed = Record.read(tmp_path / "runs" / "ledger" / "ours, seed 1.json")
    assert (filed.label, filed.seed) == ("ours", 1)
    assert "[0 left]" in capsys.readouterr().out

    again = Rehearsal(study(tmp_path), tmp_path / "runs")
    assert again.run()
    assert again.called == []


def test_a_record_alone_is_a_finished_run_wherever_the_data_lies(tmp_path: Path) -> None:
    records = tmp_path / "records"
    first = Rehearsal(study(tmp_path), tmp_path / "one", extra=["--data.root", "here"], records=records)
    assert first.run()
    assert len(list(records.glob("*.json"))) == 7
    filed = Record.read(records / "plain, seed 1.json")
    assert filed.arguments[-2:] == ["--data.seed", "1"]
    again = Rehearsal(study(tmp_path), tmp_path / "two", extra=["--data.root=there"], records=records)
    assert again.run()
    assert again.called == []
    other = Rehearsal(study(tmp_path), tmp_path / "three", extra=["--trainer.max_epochs=3"], records=records)
    assert other.run()
    assert len(other.called) == 7
    set_aside = [Record.read(path) for path in records.glob("*.old1")]  # not removed
    assert [record.arguments[-2:] for record in set_aside if record.seed == 1] == [["--data.seed", "1"]] * 2


def test_other_options_run_again_and_set_the_old_aside(tmp_path: Path) -> None:
    text = "variants: {plain: }\noptions: {trainer.max_epochs: 2}"
    assert Rehearsal(study(tmp_path, text), tmp_path / "runs").run()
    longer = Rehearsal(study(tmp_path, text.replace("2}", "3}")), tmp_path / "runs")
    assert longer.run()
    assert longer.called == ["plain/seed 0"]
    assert (tmp_path / "runs" / "plain" / "seed 0.old1").is_dir()


def test_a_failure_leaves_the_other_runs_alone_and_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Rehearsal(study(tmp_path), tmp_path / "runs", failing=("tuning/ours/gamma=4.0",))
    assert not first.run()
    assert "plain/seed 1" in first.called
    assert "ours/seed 0" not in first.called
    assert "output.txt" in capsys.readouterr().err
    again = Rehearsal(study(tmp_path), tmp_path / "runs")
    assert again.run()
    assert again.called == ["tuning/ours/gamma=4.0", "ours/seed 0", "ours/seed 1"]


def test_a_missing_tuning_metric_names_those_there_are(tmp_path: Path) -> None:
    wrong = study(tmp_path, TEXT + "tuning_metric: linear/top1\n")
    with pytest.raises(DataError, match=r"no linear/top1.*it has knn/top1"):
        Rehearsal(wrong, tmp_path / "runs").run()


def test_a_real_run(tmp_path: Path) -> None:
    options = {
        "config": "quickstart.yaml",
        "data.train_size": 16,
        "data.test_size": 16,
        "data.batch_size": 8,
        "data.num_workers": 0,
        "trainer.max_steps": 2,
        "trainer.limit_val_batches": 0,
    }
    small = Study("small", options, (Variant("Exact", {"model.solver": "Exact"}),), seeds=(5,))
    assert Sweep(small, tmp_path).run(), next(tmp_path.rglob("output.txt")).read_text()
    found = Record.read(tmp_path / "ledger" / "Exact, seed 5.json")
    assert (found.label, found.method, found.seed, found.steps) == ("Exact", "MMCL log, Exact", 5, 2)

    # As a stop leaves it: a checkpoint, and a record that is not of a finished run.
    found.status = "interrupted"
    found.write(next(tmp_path.glob("Exact/seed 5/run/*/ledger.json")))
    (tmp_path / "ledger" / "Exact, seed 5.json").unlink()
    assert Sweep(small, tmp_path).run()
    assert "Restored all states from the checkpoint" in next(tmp_path.rglob("output.txt")).read_text()
    again = Record.read(tmp_path / "ledger" / "Exact, seed 5.json")
    assert (again.status, again.started) == ("finished", found.started)
