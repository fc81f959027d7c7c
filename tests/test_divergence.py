import doctest
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax
from scipy.stats import entropy

from rayfl.clustering import divergence, jensen_shannon, kl_divergences

unhurried = settings(deadline=None)  # a busy machine is no fault
logits = arrays.arrays(np.float64, (4, 3, 5), elements=st.floats(-40, 40))


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(divergence).failed == 0


def test_jensen_shannon_is_the_number_worked_out_by_hand():
    # Middle (3/4, 1/4): half of log(4/3), and half of (log(2/3) + log(2)) / 2.
    by_hand = 0.5 * np.log(4 / 3) + 0.5 * (np.log(2 / 3) + np.log(2)) / 2
    predictions = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]])
    assert jensen_shannon(predictions)[0, 1] == pytest.approx(by_hand / 2)  # the second point adds nothing


def test_clients_who_never_agree_are_log_two_apart():
    never = np.array([[[1.0, 0, 0]] * 7, [[0, 0.5, 0.5]] * 7])
    assert jensen_shannon(never)[0, 1] == pytest.approx(np.log(2))


@unhurried
@given(logits)
def test_it_is_the_entropy_that_mixing_adds_averaged_over_the_public_points(logits):
    predictions = softmax(logits, axis=2)
    p, q = predictions[:, None], predictions[None]
    added = entropy((p + q) / 2, axis=-1) - (entropy(p, axis=-1) + entropy(q, axis=-1)) / 2
    np.testing.assert_allclose(jensen_shannon(predictions), added.mean(axis=-1), atol=1e-12)


@unhurried
@given(logits)
def test_it_is_a_matrix_that_dbscan_takes(logits):
    found = jensen_shannon(softmax(logits, axis=2).astype(np.float32))
    assert np.array_equal(found, found.T)
    assert not np.diag(found).any()
    assert found.min() >= 0 and found.max() <= np.log(2) + 1e-6


def test_equal_clients_are_at_exactly_zero():
    one = softmax(np.random.default_rng(0).normal(size=(1, 50, 10)), axis=2)
    assert not jensen_shannon(np.repeat(one, 3, axis=0)).any()
    assert jensen_shannon(one).tolist() == [[0.0]]


def test_logits_are_refused():
    with pytest.raises(ValueError, match="softmax"):
        jensen_shannon(np.array([[[2.0, -1.0]]]))
    with pytest.raises(ValueError, match="softmax"):
        jensen_shannon(np.array([[[0.5, np.nan]]]))
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        jensen_shannon(np.ones((2, 3)))


def test_memory_grows_with_the_predictions_and_not_with_their_pairs():
    predictions = softmax(np.random.default_rng(0).normal(size=(40, 250, 10)), axis=2)
    tracemalloc.start()
    jensen_shannon(predictions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * predictions.nbytes  # all pairs at once would be 40 times


def test_kl_is_the_number_worked_out_by_hand_and_not_symmetric():
    # Raised by one: (3, 1) / 4 and (1, 1) / 2.
    found = kl_divergences(np.array([[2, 0], [0, 0]]), smoothing=1.0)
    assert found[0, 1] == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert found[1, 0] == pytest.approx(0.5 * np.log(2 / 3) + 0.5 * np.log(2))


@unhurried
@given(arrays.arrays(np.int64, (5, 4), elements=st.integers(0, 500)))
def test_kl_is_finite_never_negative_and_zero_for_the_same_labels(counts):
    found = kl_divergences(np.vstack([counts, counts[:1]]))
    assert np.isfinite(found).all() and found.min() >= 0
    assert not np.diag(found).any()
    assert found[0, 5] == pytest.approx(0, abs=1e-12)


def test_clients_with_other_labels_are_farther_than_clients_with_more_of_the_same():
    found = kl_divergences(np.array([[50, 50, 0], [300, 300, 0], [0, 50, 50], [0, 0, 100]]))
    assert found[0, 1] < 0.1 < found[0, 2] < found[0, 3]


def test_kl_without_smoothing_is_refused():
    with pytest.raises(ValueError, match="smoothing is 0"):
        kl_divergences(np.array([[1, 0]]), smoothing=0)
