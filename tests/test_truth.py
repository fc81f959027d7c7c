import math
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from rayfl.analysis.truth import adjusted_rand, misclustering, normalised_mutual_information, purity

Measure = Callable[[Any, Any], float]
ALL: list[Measure] = [adjusted_rand, normalised_mutual_information, purity, misclustering]
PERFECT: dict[Measure, float] = {
    adjusted_rand: 1.0,
    normalised_mutual_information: 1.0,
    purity: 1.0,
    misclustering: 0.0,
}


@pytest.mark.parametrize("measure", ALL)
def test_the_same_clusters_under_other_names_are_perfect(measure: Measure) -> None:
    assert measure([0, 0, 1, 1, 2], [5, 5, 0, 0, 9]) == pytest.approx(PERFECT[measure])


def test_the_adjusted_rand_index_worked_out_by_hand() -> None:
    # Table [[2, 1], [0, 3]]: pairs together in both 1 + 3 = 4; true 3 + 3 = 6; found 1 + 6 = 7; of 15 pairs.
    # Expected 6 * 7 / 15 = 2.8, at most 6.5: (4 - 2.8) / (6.5 - 2.8).
    assert adjusted_rand([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]) == pytest.approx(1.2 / 3.7)


def test_the_adjusted_rand_index_is_below_zero_when_worse_than_chance() -> None:
    # No pair together in both; 2 true and 2 found pairs of 6, expected 2/3: -2/3 / (2 - 2/3).
    assert adjusted_rand([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(-0.5)


def test_mutual_information_worked_out_by_hand() -> None:
    # Halves against 3/4 and 1/4: I = H(found) - H(found | true) = H(1/4) - H(1/2) / 2, in bits H(1/2) = 1.
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    expected = (quarter - 0.5) / ((1 + quarter) / 2)
    assert normalised_mutual_information([0, 0, 1, 1], [0, 0, 0, 1]) == pytest.approx(expected)


def test_purity_and_misclustering_worked_out_by_hand() -> None:
    true = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = [0, 0, 0, 1, 1, 1, 0, 2, 1, 2]
    # Found 0 holds 3 + 1 + 0, found 1 holds 1 + 2 + 1, found 2 holds 0 + 0 + 2: 3 + 2 + 2 of 10 are right.
    assert purity(true, found) == pytest.approx(0.7)
    assert misclustering(true, found) == pytest.approx(0.3)


def test_matching_is_one_to_one_and_best_overall_not_greedy() -> None:
    # Counts [[3, 2], [2, 0]]: greedy takes 3 + 0, the best matching 2 + 2 of 7.
    true = [0, 0, 0, 0, 0, 1, 1]
    found = [0, 0, 0, 1, 1, 0, 0]
    assert misclustering(true, found) == pytest.approx(3 / 7)


def test_more_found_clusters_than_true_ones_cost_misclustering_but_not_purity() -> None:
    assert misclustering([0, 0, 0, 0], [0, 0, 1, 2]) == pytest.approx(0.5)
    assert purity([0, 0, 0, 0], [0, 0, 1, 2]) == 1.0
    assert misclustering([0, 0, 1, 2], [0, 0, 0, 0]) == pytest.approx(0.5)
    assert purity([0, 0, 1, 2], [0, 0, 0, 0]) == 0.5


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize(
    "found",
    [
        [1, 1, 0, -1, None],
        np.array([1, 1, 0, -1, np.nan]),
        pd.Series([1, 1, 0, -1, pd.NA], dtype="Int32"),
        np.array([1, 1, 0, -1, -1], dtype=np.int32),
    ],
    ids=["list", "floats", "pandas", "numpy"],
)
def test_clients_without_a_cluster_are_left_out(measure: Measure, found: Any) -> None:
    assert measure([0, 0, 1, 1, 1], found) == PERFECT[measure]
    assert measure(found, [0, 0, 1, 1, 1]) == PERFECT[measure]


@pytest.mark.parametrize("measure", ALL)
def test_nobody_left_is_nan(measure: Measure) -> None:
    assert math.isnan(measure([0, 1], [-1, -1]))
    assert math.isnan(measure([], []))


@pytest.mark.parametrize("measure", ALL)
def test_labels_of_different_length_are_refused(measure: Measure) -> None:
    with pytest.raises(ValueError, match="2 true labels and 1 found"):
        measure([0, 1], [0])


@pytest.mark.parametrize("measure", ALL)
def test_every_client_in_a_cluster_of_its_own_warns_of_nothing(measure: Measure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = measure(np.repeat([0, 1], 15), np.arange(30))
    # Found labels tell all of the one bit of truth; the entropies are 1 and log2 30 bits.
    expected: dict[Measure, float] = {
        adjusted_rand: 0.0,
        normalised_mutual_information: 2 / (1 + math.log2(30)),
        purity: 1.0,
        misclustering: 28 / 30,
    }
    assert value == pytest.approx(expected[measure])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40), st.randoms())
def test_names_of_clusters_and_order_of_clients_do_not_matter(pairs: list[tuple[int, int]], random: Random) -> None:
    renamed = random.sample(range(6), 6)
    shuffled = random.sample(pairs, len(pairs))
    for measure in ALL:
        before = measure([t for t, _ in pairs], [f for _, f in pairs])
        assert measure([t for t, _ in shuffled], [renamed[f] for _, f in shuffled]) == pytest.approx(before)


@given(data=st.data(), clients=st.integers(1, 40))
def test_the_measures_are_scikit_learns(data: st.DataObject, clients: int) -> None:
    """They are counted here without it, since it is slow to import."""
    labels = st.lists(st.integers(0, 5), min_size=clients, max_size=clients).map(np.array)
    true, found = data.draw(labels), data.draw(labels)
    assert adjusted_rand(true, found) == pytest.approx(adjusted_rand_score(true, found), abs=1e-12)
    expected = normalized_mutual_info_score(true, found)
    assert normalised_mutual_information(true, found) == pytest.approx(expected, abs=1e-9)
