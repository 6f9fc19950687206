"""Few-shot accuracy: the published numbers, and episodes that depend on seed and number alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from mmcl_lightning.errors import ConfigError, DataError, NumericalError, ShapeError
from mmcl_lightning.metrics import (
    FewShotProtocol,
    FewShotResult,
    draw_episode,
    few_shot_accuracy,
    nearest_prototype,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference_few_shot.json").read_text())


def test_prototypes_equal_the_published_ones() -> None:
    golden = GOLDEN["prototypes"]
    features, shots = torch.tensor(golden["features"]), golden["support"]
    found = nearest_prototype(features[:, :shots], features[:, shots:].flatten(0, 1))
    assert found.tolist() == golden["predicted"]
    truth = torch.arange(len(features)).repeat_interleave(features.shape[1] - shots)
    assert float((found == truth).double().mean()) == pytest.approx(golden["accuracy"], abs=1e-7)


def test_the_distance_survives_features_far_from_zero() -> None:
    support = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]) + 4096.0
    assert nearest_prototype(support, support.flatten(0, 1)).tolist() == [0, 1]


def test_mean_and_half_width_equal_the_published_ones() -> None:
    values = np.round(np.random.default_rng(9).normal(80, 8, 600), 4)
    result = FewShotResult(torch.tensor(values))
    assert result.accuracy == pytest.approx(GOLDEN["episodes"]["mean"], abs=1e-10)
    assert result.half_width == pytest.approx(GOLDEN["episodes"]["halfwidth"], abs=1e-10)


def test_episodes_draw_classes_evenly_and_no_image_twice() -> None:
    members = [list(range(40 * label, 40 * label + 40)) for label in range(10)]
    protocol = FewShotProtocol(shots=20, queries=15)
    counts = torch.zeros(10)
    for index in range(600):
        episode = draw_episode(members, protocol, index)
        assert episode.shape == (5, 35)
        assert len(set(episode.flatten().tolist())) == 175
        classes = episode // 40
        assert (classes == classes[:, :1]).all()
        counts[classes[:, 0]] += 1
    assert (counts - 300).abs().max() <= 61, "5 standard deviations of 600 draws of 5 in 10"


def test_episodes_are_a_function_of_seed_and_number_alone() -> None:
    members = [list(range(9 * label, 9 * label + 9)) for label in range(4)]
    protocol = FewShotProtocol(way=2, shots=1, queries=1, seed=3)
    random.seed(0)
    state = random.getstate(), torch.get_rng_state()
    fifth = draw_episode(members, protocol, 5)
    assert fifth.tolist() == [[12, 15], [1, 4]], "written out: an update of Python would change every result"
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    draw_episode(members, protocol, 4)
    random.seed(1)
    assert torch.equal(draw_episode(members, protocol, 5), fifth)
    drawn = set()
    for seed in range(3):
        other = FewShotProtocol(way=2, shots=1, queries=1, seed=seed)
        drawn |= {tuple(draw_episode(members, other, i).flatten().tolist()) for i in range(10)}
    assert len(drawn) > 25, "other seeds and numbers, other episodes"


def test_classes_far_apart_are_told_apart_and_equal_ones_are_not() -> None:
    labels = torch.arange(6).repeat(8)
    protocol = FewShotProtocol(shots=3, queries=5, episodes=20)
    apart = torch.eye(6)[labels] + 0.01 * torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    found = few_shot_accuracy(apart, labels, protocol)
    assert (found.accuracy, found.half_width) == (1.0, 0.0)
    assert few_shot_accuracy(torch.ones(48, 4), labels, protocol).accuracy == pytest.approx(0.2)
    unlabelled = torch.cat([apart, torch.full((9, 6), 99.0)])
    assert few_shot_accuracy(unlabelled, torch.cat([labels, torch.full((9,), -1)]), protocol).accuracy == 1.0


def test_the_accuracies_equal_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(7).repeat_interleave(6)
    features = torch.randn(42, 3, generator=generator) + 0.7 * labels[:, None]
    protocol = FewShotProtocol(way=3, shots=2, queries=4, episodes=9)
    expected = []
    for index in range(9):
        episode = draw_episode([list(range(6 * c, 6 * c + 6)) for c in range(7)], protocol, index)
        means = [features[rows[:2]].mean(0) for rows in episode]
        hits = [
            min(range(3), key=lambda c: float((features[row] - means[c]).square().sum())) == own
            for own in range(3) for row in episode[own, 2:]
        ]  # fmt: skip
        expected.append(sum(hits) / 12)
    found = few_shot_accuracy(features, labels, protocol).accuracies
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert 0.3 < np.mean(expected) < 0.95


def test_input_is_checked() -> None:
    labels = torch.arange(4).repeat(6)
    features = torch.randn(24, 3)
    with pytest.raises(DataError, match=r"has 5 classes, and the images have 4: set --model\.way to 4"):
        few_shot_accuracy(features, labels)
    small = FewShotProtocol(way=4, shots=4, queries=2)
    with pytest.raises(
        DataError, match="and 1 of 4 classes have fewer, the first being 'd' with 5: set --mo"
    ):
        few_shot_accuracy(features[:-1], labels[:-1], small, "abcd")
    with pytest.raises(NumericalError, match="1 of 24 rows of the few-shot features hold NaN"):
        few_shot_accuracy(features.index_fill(0, torch.tensor([3]), torch.nan), labels, small)
    with pytest.raises(ShapeError, match=r"expected features \(N, F\) and labels \(N,\), got \(24, 3\)"):
        few_shot_accuracy(features, labels[:3], small)
    for option, low in (("way", 2), ("shots", 1), ("queries", 1), ("episodes", 1)):
        with pytest.raises(ConfigError, match=f"{option} must be an integer >= {low}, got 0"):
            FewShotProtocol(**{option: 0})
