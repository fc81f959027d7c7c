"""Measured skew: numbers worked out by hand, and the two ends of every scale."""

import doctest
import math

import numpy as np
import pytest

from rayfl.analysis import skew
from rayfl.analysis.skew import effective_classes, gini, hellinger, jensen_shannon, measure_skew


def test_the_examples_in_the_docstrings_run() -> None:
    found = doctest.testmod(skew)
    assert found.failed == 0 and found.attempted >= 4


def test_two_clients_with_one_class_each_worked_out_by_hand() -> None:
    counts = np.array([[10, 0], [0, 10]])
    # Shares (1, 0) against (1/2, 1/2), the middle is (3/4, 1/4): JS = (log2 4/3 + (log2 2/3 + log2 2) / 2) / 2.
    divergence = (math.log2(4 / 3) + (math.log2(2 / 3) + math.log2(2)) / 2) / 2
    assert jensen_shannon(counts) == pytest.approx([math.sqrt(divergence)] * 2)
    # H^2 = ((1 - sqrt(1/2))^2 + 1/2) / 2 = 1 - sqrt(1/2).
    assert hellinger(counts) == pytest.approx([math.sqrt(1 - math.sqrt(0.5))] * 2)
    assert effective_classes(counts).tolist() == [1, 1]


def test_clients_that_are_alike_have_no_skew() -> None:
    found = measure_skew(np.array([[3, 1, 2], [6, 2, 4], [3, 1, 2]])[:, [0, 2, 1]])
    assert found.jensen_shannon == pytest.approx(0, abs=1e-7)
    assert found.hellinger == pytest.approx(0, abs=1e-7)
    shares = [1 / 2, 1 / 6, 1 / 3]
    assert found.effective_classes == pytest.approx(2 ** -sum(p * math.log2(p) for p in shares))
    # |6-12| + |12-6| + |6-12| + |12-6| = 24 over all pairs, / (2 n^2 mean) = 24 / (2 * 9 * 8).
    assert found.gini == pytest.approx(24 / 144)


def test_gini_is_the_mean_difference_over_twice_the_mean() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 30)
    assert gini(sizes) == pytest.approx(np.abs(sizes[:, None] - sizes).mean() / (2 * sizes.mean()))
    assert gini(np.array([0, 0, 0, 8])) == 0.75


def test_no_distance_exceeds_one() -> None:
    counts = np.zeros((1000, 1000), int)
    np.fill_diagonal(counts, 1)
    assert 0.9 < jensen_shannon(counts).max() <= 1
    assert 0.9 < hellinger(counts).max() <= 1
