"""Statistics over a few seeds: mean and deviation, a bootstrap interval and a sign-flip test for paired differences.

Pure, deterministic functions on arrays. `comparison` decides which runs are paired.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: The p-value below which a result is called significant.
LEVEL = 0.05
#: Up to this number of pairs, all flips are counted (2^16).
MOST_EXACT = 16
DRAWS = 10_000
_FLIPS = 100_000


@dataclass(frozen=True)
class Summary:
    """Values over seeds: how many there are, their mean, and their standard deviation (of a sample, ddof=1)."""

    n: int
    mean: float
    std: float


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference over n pairs, its 95 % bootstrap interval, and the p-value of a two-sided sign-flip test."""

    n: int
    mean: float
    low: float
    high: float
    p: float


def summary(values: Sequence[float] | np.ndarray) -> Summary:
    """Return mean and standard deviation of the values that are not NaN; the deviation of one value is unknown.

    >>> summary([1.0, 2.0, 3.0])
    Summary(n=3, mean=2.0, std=1.0)
    """
    found = _present(values)
    mean = float(found.mean()) if len(found) else math.nan
    std = float(found.std(ddof=1)) if len(found) > 1 else math.nan
    return Summary(len(found), mean, std)


def paired_difference(ours: Sequence[float] | np.ndarray, others: Sequence[float] | np.ndarray) -> PairedDifference:
    """Compare two methods over pairs of runs: same seed, same partition."""
    differences = _present(np.asarray(ours, np.float64) - np.asarray(others, np.float64))
    low, high = bootstrap_interval(differences)
    mean = float(differences.mean()) if len(differences) else math.nan
    return PairedDifference(len(differences), mean, low, high, sign_flip_test(differences))


def bootstrap_interval(values: Sequence[float] | np.ndarray, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean; the same values always give the same interval.

    With few values it is too narrow: three values have only ten different means of resamples.
    """
    found = np.sort(_present(values))  # sorted: pairs have no order, and the interval should not depend on one
    if len(found) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(len(found))
    means = found[rng.integers(0, len(found), (DRAWS, len(found)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_test(differences: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p-value of the hypothesis that each difference could equally well have the other sign.

    It is the fraction of all sign flips whose mean is at least as far from 0. Up to 16 pairs, all flips are counted;
    with more, 100,000 are drawn.

    >>> sign_flip_test([1.0, 2.0, 3.0])  # of 8 flips, +++ and --- are as far
    0.25
    """
    found = np.sort(_present(differences))
    n = len(found)
    if n == 0:
        return math.nan
    scale = np.abs(found).sum()
    # Rounding: flips whose sums are equal in theory may differ in their last bits.
    reached = abs(found.sum()) - 1e-12 * scale
    if n <= MOST_EXACT:
        flips = 1 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(flips @ found) >= reached))
    rng = np.random.default_rng(n)
    far = 0
    for _ in range(10):  # in pieces, to save memory
        flips = rng.choice([-1.0, 1.0], (_FLIPS // 10, n))
        far += int(np.sum(np.abs(flips @ found) >= reached))
    return (far + 1) / (_FLIPS + 1)


def smallest_p(n: int) -> float:
    """Return the smallest p-value that the sign-flip test of n pairs can give.

    >>> smallest_p(5), smallest_p(6)
    (0.0625, 0.03125)
    """
    return min(1.0, 2.0 ** (1 - n))


def can_tell(n: int) -> bool:
    """Whether n pairs can support a test at 5 %: six can, five cannot.

    >>> can_tell(5), can_tell(6)
    (False, True)
    """
    return smallest_p(n) < LEVEL


def _present(values: Sequence[float] | np.ndarray) -> np.ndarray:
    found = np.asarray(values, np.float64)
    return found[~np.isnan(found)]
