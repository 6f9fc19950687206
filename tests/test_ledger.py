"""Records: what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import record

from mmcl_lightning.errors import DataError
from mmcl_lightning.ledger import Metric, Record, commit, config_hash, hardware, peak_memory, read_records


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = record(label="ours", pretraining={"name": "x", "config": {}})
    written.write(tmp_path / "deep" / "ledger.json")
    assert Record.read(tmp_path / "deep" / "ledger.json") == written
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ledger.json"]


def test_the_file_can_be_read_without_this_package(tmp_path: Path) -> None:
    record().write(tmp_path / "ledger.json")
    content = json.loads((tmp_path / "ledger.json").read_text())
    assert content["metrics"]["knn/top1"]["last"] == 0.4
    assert content["metrics"]["knn/top1"]["best"] == 0.5
    assert len((tmp_path / "ledger.json").read_text().splitlines()) < 70, "one line per point of a curve"


def test_best_depends_on_the_direction() -> None:
    curve = [[0.0, 0, 0.0, 3.0], [1.0, 1, 1.0, 1.0], [2.0, 2, 2.0, 2.0]]
    assert (Metric(curve).best, Metric(curve, smaller_is_better=True).best) == (3.0, 1.0)
    assert Metric(curve).last == 2.0


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"ledger": 99}', '{"ledger": 1, "status": "finished"}', "\0"]
)
def test_what_is_no_record_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.json"):
        Record.read(tmp_path / "x.json")


def test_other_json_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    record(seed=1).write(tmp_path / "b" / "ledger.json")
    record(seed=0).write(tmp_path / "a" / "ledger.json")
    assert [found.seed for _, found in read_records(tmp_path)] == [0, 1]


def test_the_hash_ignores_the_seed_and_no_other_number() -> None:
    def config(seed: int, batch_size: int) -> dict[str, Any]:
        return {"seed_everything": seed, "data": {"init_args": {"seed": seed, "batch_size": batch_size}}}

    assert config_hash(config(0, 8)) == config_hash(config(1, 8))
    assert config_hash(config(0, 8)) != config_hash(config(0, 16))


@pytest.mark.parametrize("option", ["cache", "num_workers", "predict_split"])
def test_the_hash_ignores_what_changes_no_number(option: str) -> None:
    one, other = ({"data": {"init_args": {"batch_size": 8, option: value}}} for value in (0, 4))
    assert config_hash(one) == config_hash(other) == config_hash({"data": {"init_args": {"batch_size": 8}}})
    assert config_hash(one) != config_hash({"data": {"init_args": {"batch_size": 8, "eval_batch_size": 4}}})


def test_where_it_ran() -> None:
    assert commit() == "" or len(commit().rstrip("+")) == 40
    assert hardware()["cores"] >= 1
    assert (peak_memory() or 0) > 10_000_000, "this process holds more than 10 MB"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("config", []), ("seed", "0"), ("data", None), ("started", 3), ("seconds", "60"), ("protocols", []),
        ("config", {"data": None}), ("config", {"model": {"init_args": [1]}}), ("pretraining", {}),
        ("pretraining", {"name": "a", "config": None}), ("data", {"fingerprint": "x"}),
        ("data", {"held_out": []}), ("protocols", {"knn/top1": None}), ("seconds", 10**400),
        ("metrics", {"a": {"curve": [[1, 2, 3, 10**400]], "smaller_is_better": False}}),
        ("metrics", {"a": {"curve": [], "smaller_is_better": False}}),
        ("metrics", {"a": {"curve": [[1, 2, 3]], "smaller_is_better": False}}),
        ("metrics", {"a": {"curve": [[1, 2, 3, "x"]], "smaller_is_better": False}}),
    ],
)  # fmt: skip
def test_a_record_that_was_edited_is_named(part: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    record().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    with pytest.raises(DataError, match=r"ledger.json is no record of a run"):
        Record.read(path)
