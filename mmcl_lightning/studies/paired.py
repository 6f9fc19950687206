"""Differences between methods, seed by seed, with their standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mmcl_lightning.studies.columns import Column
from mmcl_lightning.studies.groups import Group

__all__ = ["Difference", "chance_beyond_two", "paired_difference"]


@dataclass(frozen=True)
class Difference:
    """Mean of the differences between two methods over the seeds that both have.

    Args:
        mean: Mean of the differences.
        error: Its standard error; infinite for one seed, or where a difference is not finite. It is 0 where
            all differences are equal, as those of accuracies over few images may be: then they tell nothing
            of chance.
        seeds: Number of seeds.
    """

    mean: float
    error: float
    seeds: int

    @property
    def is_measured(self) -> bool:
        """Whether there is a standard error to compare the mean with."""
        return 0 < self.error < math.inf

    @property
    def counts(self) -> bool:
        """Whether the mean exceeds two standard errors."""
        return self.is_measured and abs(self.mean) > 2 * self.error


def paired_difference(group: Group, reference: Group, columns: Sequence[Column]) -> Difference | None:
    """Return the difference of a method from a reference in the mean of some columns at the end of training.

    Runs of one seed share initial weights, order and views, so that their difference varies less than either.

    Args:
        group: Runs of the method.
        reference: Runs of the reference.
        columns: What was measured, the mean of which is compared.

    Returns:
        ``None`` where no seed has all of them in both.
    """
    own, other = _by_seed(group, columns), _by_seed(reference, columns)
    differences = [own[seed] - other[seed] for seed in own if seed in other]
    if not differences:
        return None
    count = len(differences)
    if not all(map(math.isfinite, differences)):
        return Difference(sum(differences) / count, math.inf, count)  # fsum raises
    error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else math.inf
    # Rounded: equal differences of decimal numbers are equal up to their last bits only.
    return Difference(statistics.mean(differences), round(error, 9), count)


def chance_beyond_two(seeds: int) -> float:
    """Probability that chance alone moves a mean over ``seeds`` >= 2 beyond two of its standard errors.

    Student's t with ``seeds - 1`` degrees of freedom: 0.30 for two seeds, 0.14 for four, 0.10 for six.
    """
    freedom = seeds - 1
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    steps = 2000
    width = 2 / steps
    density = [
        math.exp(log_scale - (freedom + 1) / 2 * math.log1p((i * width) ** 2 / freedom))
        for i in range(steps + 1)
    ]
    return 1 - 2 * width * (math.fsum(density) - (density[0] + density[-1]) / 2)  # by trapezoids


def _by_seed(group: Group, columns: Sequence[Column]) -> dict[tuple[object, ...], float]:
    """Mean of the columns of each run that has all of them, by its seeds."""
    measured = [group.measured(column) for column in columns]
    seeds = [seed for seed in measured[0] if all(seed in found for found in measured)]
    return {seed: statistics.mean(found[seed].last for found in measured) for seed in seeds}
