"""Statistics over seeds, against numbers worked out by hand and against scipy."""

import math

import numpy as np
import pytest
import scipy.stats

from rayfl.analysis.statistics import (
    bootstrap_interval,
    can_tell,
    paired_difference,
    sign_flip_test,
    smallest_p,
    summary,
)


def test_the_summary_is_the_mean_and_the_deviation_of_a_sample() -> None:
    found = summary([2.0, 4.0, 9.0])
    assert (found.n, found.mean) == (3, 5.0)
    assert found.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert summary([2.0, math.nan, 4.0]).n == 2
    one = summary([3.0])
    assert (one.n, one.mean) == (1, 3.0) and math.isnan(one.std)
    assert math.isnan(summary([]).mean)


def test_the_sign_flip_test_of_a_case_by_hand() -> None:
    # 8 flips of (1, 2, -4): sums +-(-1), +-7, +-(-5), +-3. At least 1 from 0: all of them.
    assert sign_flip_test([1, 2, -4]) == 1.0
    # (1, 2, 4): sums +-7, +-5, +-3, +-1; only +-7 are as far as 7.
    assert sign_flip_test([1, 2, 4]) == 2 / 8
    # (1, 1, -1, 4): the sum is 5; flips with |sum| >= 5 are 7 (once), 5 (three times), and their opposites: 8 of 16.
    assert sign_flip_test([1, 1, -1, 4]) == 8 / 16
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert math.isnan(sign_flip_test([]))


def test_ties_in_the_last_bits_are_ties() -> None:
    assert sign_flip_test([0.1, 0.2, 0.3]) == 0.25
    # 0.1 + 0.2 - 0.3 is not exactly 0, but every flip is at least as far from 0 as that.
    assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0


@pytest.mark.parametrize("n", [2, 5, 6, 9])
def test_the_sign_flip_test_is_that_of_scipy(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.4, 1, n)
    theirs = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert sign_flip_test(differences) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_with_many_pairs_flips_are_drawn_and_agree_with_the_t_test() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1, 40)
    p = sign_flip_test(differences)
    assert p == sign_flip_test(differences[::-1])  # deterministic, and without order
    assert p == pytest.approx(scipy.stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    assert 0 < sign_flip_test(np.full(40, 1.0)) < 1e-4  # never 0


def test_five_pairs_cannot_support_a_test_at_5_percent_and_six_can() -> None:
    for n in range(1, 9):
        p = sign_flip_test(np.arange(1.0, n + 1))  # all signs the same: as clear as it gets
        assert p == smallest_p(n) == 2 / 2**n
        assert can_tell(n) == (p < 0.05) == (n >= 6)


def test_the_bootstrap_interval_of_two_values_is_worked_out_by_hand() -> None:
    # Means of resamples of (0, 1) are 0, 0.5 and 1 with shares 1/4, 1/2 and 1/4: 2.5 % and 97.5 % are 0 and 1.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)  # 30 % and 70 %
    assert all(math.isnan(end) for end in bootstrap_interval([3.0]))


def test_the_bootstrap_interval_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).normal(2, 1, 12)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=3)
    low, high = theirs.confidence_interval
    assert bootstrap_interval(values) == pytest.approx((low, high), abs=0.03)


def test_the_bootstrap_interval_is_the_same_each_time_and_in_any_order() -> None:
    values = [0.3, -0.1, 0.25, 0.9]
    assert bootstrap_interval(values) == bootstrap_interval(values) == bootstrap_interval(values[::-1])


def test_a_paired_difference_sees_what_unpaired_means_hide() -> None:
    ours, others = [0.91, 0.81, 0.71, 0.61, 0.51, 0.41], [0.90, 0.80, 0.70, 0.60, 0.50, 0.40]
    found = paired_difference(ours, others)
    assert found.n == 6 and found.p == 2 / 64
    assert (found.mean, found.low, found.high) == pytest.approx((0.01, 0.01, 0.01))
    assert scipy.stats.ttest_ind(ours, others).pvalue > 0.9


def test_pairs_with_a_missing_value_do_not_count() -> None:
    found = paired_difference([0.5, math.nan, 0.7], [0.4, 0.4, 0.4])
    assert found.n == 2 and found.mean == pytest.approx(0.2)
