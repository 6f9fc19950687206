"""Differences seed by seed, against numbers by hand and against SciPy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from records import record
from scipy.stats import t

from mmcl_lightning.errors import ConfigError
from mmcl_lightning.ledger import Metric
from mmcl_lightning.studies.columns import Column
from mmcl_lightning.studies.groups import Group
from mmcl_lightning.studies.paired import chance_beyond_two, paired_difference
from mmcl_lightning.studies.report import write_report

KNN = Column("knn/top1", "k=20 T=0.07 cosine h")
LOGISTIC = Column("logistic/top1")


def group(name: str, values: dict[int, float], second: float | None = None) -> Group:
    records = []
    for seed, value in values.items():
        metrics = {"knn/top1": Metric([[2.0, 20, 60.0, value]])}
        if second is not None:
            metrics["logistic/top1"] = Metric([[2.0, 20, 60.0, second * seed]])
        records.append(record(label=name, config_hash=name, seed=seed, metrics=metrics))
    return Group(name, tuple(records))


def test_the_difference_is_over_common_seeds() -> None:
    ours, theirs = group("a", {0: 0.5, 1: 0.7, 2: 0.6, 7: 0.9}), group("b", {2: 0.5, 0: 0.45, 1: 0.6, 8: 0.1})
    found = paired_difference(ours, theirs, [KNN])
    assert found is not None
    assert (found.mean, found.seeds) == (pytest.approx((0.05 + 0.1 + 0.1) / 3), 3)
    spread = math.sqrt(((0.05 - 0.25 / 3) ** 2 + 2 * (0.1 - 0.25 / 3) ** 2) / 2)
    assert found.error == pytest.approx(spread / math.sqrt(3))
    assert found.counts
    assert paired_difference(ours, group("b", {9: 0.5}), [KNN]) is None
    assert paired_difference(ours, theirs, [Column("linear/top1")]) is None


def test_one_seed_has_no_error() -> None:
    found = paired_difference(group("a", {0: 0.9}), group("b", {0: 0.1}), [KNN])
    assert found is not None
    assert not found.counts


def test_the_mean_of_several_metrics_is_compared() -> None:
    ours, theirs = group("a", {1: 0.5, 2: 0.5}, second=0.2), group("b", {1: 0.4, 2: 0.4}, second=0.1)
    found = paired_difference(ours, theirs, [KNN, LOGISTIC])
    assert found is not None
    assert found.mean == pytest.approx((0.1 + 0.15) / 2)


@pytest.mark.parametrize("seeds", [2, 3, 4, 6, 20])
def test_chance_equals_scipy(seeds: int) -> None:
    assert chance_beyond_two(seeds) == pytest.approx(2 * t.sf(2, seeds - 1), abs=1e-6)


def test_the_report_has_the_differences(tmp_path: Path) -> None:
    for name, values in (("ours", {0: 0.50, 1: 0.52, 2: 0.51}), ("theirs", {0: 0.40, 1: 0.43, 2: 0.42})):
        for part in group(name, values).records:
            part.write(tmp_path / f"{name}{part.seed}.json")
    text = write_report(tmp_path, tmp_path / "r.md", reference="ours")
    assert "### Differences from ours, seed by seed" in text
    assert "| theirs | 3 | **-0.0933 ± 0.0033** |" in text
    assert "In bold where it exceeds two standard errors: 1 of 1 comparisons." in text
    assert "about 0 of 1 would still do so by chance" in text
    assert "best epoch" not in text  # one readout each
    with pytest.raises(ConfigError, match="no run is of the reference 'mine'; there are ours, theirs"):
        write_report(tmp_path, tmp_path / "r.md", reference="mine")


def test_a_reference_with_two_configurations_is_named_as_the_table_does(tmp_path: Path) -> None:
    for index, C in enumerate((1.0, 5.0)):
        for part in group("ours", {0: 0.5 + index / 10, 1: 0.6}).records:
            part.config = {**part.config, "model": {"init_args": {"C": C}}}
            part.config_hash = str(C)
            part.started = f"2026-01-0{index + 1}T00:00:00+00:00"
            part.write(tmp_path / f"{C}{part.seed}.json")
    with pytest.raises(ConfigError, match=r"reference 'ours'; there are ours \(C=1.0\), ours \(C=5.0\)"):
        write_report(tmp_path, tmp_path / "r.md", reference="ours")
    text = write_report(tmp_path, tmp_path / "r.md", reference="ours (C=1.0)")
    assert "| ours (C=5.0) | 2 | +0.0500 ± 0.0500 |" in text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_no_comparison(value: float, tmp_path: Path) -> None:
    for name, values in (("ours", {0: 0.5, 1: value}), ("theirs", {0: 0.4, 1: 0.43})):
        for part in group(name, values).records:
            part.write(tmp_path / f"{name}{part.seed}.json")
    assert f"| theirs | 2 | {-value:+.4f} |" in write_report(tmp_path, tmp_path / "r.md", reference="ours")


def test_the_best_try_is_the_one_that_was_chosen_by(tmp_path: Path) -> None:
    for name, knn, logistic in (("1", 0.5, 0.9), ("2", 0.6, 0.1)):
        (part,) = group("ours", {1: knn}, second=logistic).records
        part.data = {**part.data, "held_out": "validation"}
        part.config_hash, part.config = name, {"model": {"init_args": {"x": name}}}
        part.write(tmp_path / f"{name}.json")
    assert "| ours | x = 2 | **0.600** |" in write_report(tmp_path, tmp_path / "r.md")
    both = ["knn/top1", "logistic/top1"]
    text = write_report(tmp_path, tmp_path / "r.md", tuned_by=both)
    assert "| ours | x = 1 | 0.500 | 0.900 | **0.700** |" in text


def test_equal_differences_are_no_sign_against_chance(tmp_path: Path) -> None:
    """Accuracies over few images repeat: a standard error of zero is none."""
    ours, theirs = group("a", {0: 0.3, 1: 0.6}), group("b", {0: 0.2, 1: 0.5})
    found = paired_difference(ours, theirs, [KNN])
    assert found is not None
    assert (found.error, found.counts) == (0, False)
    for part in (*ours.records, *theirs.records):
        part.write(tmp_path / f"{part.label}{part.seed}.json")
    text = write_report(tmp_path, tmp_path / "r.md", reference="b")
    assert "| a | 2 | +0.1000 ± 0.0000 |" in text
    assert "comparisons" not in text
