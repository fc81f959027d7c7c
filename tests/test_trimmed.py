import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import trim_mean

from rayfl.aggregation import ExactSum, damped, damped_mean, fraction_bits, mean_of, trimmed, trimmed_mean
from rayfl.errors import DivergedError

unhurried = settings(deadline=None)  # a busy machine is no fault
models = arrays.arrays(np.float32, (7, 4), elements=st.floats(-1000, 1000, width=32))
betas = st.sampled_from([0.0, 0.1, 0.15, 0.3, 0.45])


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(trimmed).failed == 0
    assert doctest.testmod(damped).failed == 0


def test_each_coordinate_drops_its_own_extremes():
    vectors = np.float32([[1, 90], [2, 10], [-50, 20], [3, 30], [70, -80]])
    assert trimmed_mean(vectors, 0.2).tolist() == [2.0, 20.0]
    assert trimmed_mean(vectors, 0.4).tolist() == [2.0, 20.0]
    assert trimmed_mean(vectors, 0.0).tolist() == pytest.approx([5.2, 14.0])


def test_the_number_dropped_is_rounded_down_but_not_by_rounding_errors():
    ladder = np.float32([[2.0**i] for i in range(10)])
    assert trimmed_mean(ladder, 0.19).tolist() == [(2**9 - 2) / 8]  # 1.9 is 1 at each end
    squares = np.square(np.arange(100, dtype=np.float32))[:, None]
    assert 0.29 * 100 < 29
    assert trimmed_mean(squares, 0.29).tolist() == pytest.approx([np.square(np.arange(29, 71)).mean()])
    assert trimmed_mean(np.float32([[1], [3]]), np.nextafter(0.5, 0)).tolist() == [2.0]  # never drops all


@unhurried
@given(models, betas, st.permutations(range(7)))
def test_the_order_of_the_models_leaves_no_trace(vectors, beta, order):
    assert trimmed_mean(vectors, beta).tobytes() == trimmed_mean(vectors[order], beta).tobytes()


def test_the_order_of_zeros_of_both_signs_leaves_no_trace():
    zeros = np.float32([[-0.0], [-0.0], [-0.0], [0.0], [0.0]])
    assert trimmed_mean(zeros, 0.4).tobytes() == trimmed_mean(zeros[::-1], 0.4).tobytes()


@unhurried
@given(models, betas)
def test_it_is_scipys_trimmed_mean_to_float32_precision(vectors, beta):
    expected = trim_mean(vectors.astype(np.float64), beta, axis=0)
    np.testing.assert_allclose(trimmed_mean(vectors, beta), expected, rtol=3e-7, atol=1e-9)


@unhurried
@given(models)
def test_with_nothing_dropped_it_is_the_exact_mean_to_the_bit(vectors):
    total = ExactSum(4, fraction_bits(7))
    for vector in vectors:
        total.add(vector)
    mean = mean_of(total.total, 7, total.bits)
    assert trimmed_mean(vectors, 0.0).tobytes() == mean.tobytes() == trimmed_mean(vectors, 0.14).tobytes()


@unhurried
@given(models, arrays.arrays(np.float32, (3, 4), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_strangers_cannot_move_it_beyond_the_others(good, strangers):
    mean = trimmed_mean(np.vstack([good, strangers]), beta=0.3)
    assert (mean >= good.min(axis=0)).all() and (mean <= good.max(axis=0)).all()


def test_blocks_of_columns_leave_no_trace():
    vectors = np.random.default_rng(0).normal(size=(9, 40_000)).astype(np.float32)
    found = trimmed_mean(vectors, 0.25)
    np.testing.assert_allclose(found, trim_mean(vectors.astype(float), 0.25, axis=0), rtol=3e-7, atol=1e-9)
    assert found.dtype == np.float32


def test_one_model_is_its_own_mean_and_none_is_refused():
    assert trimmed_mean(np.float32([[4, 5]]), 0.4).tolist() == [4.0, 5.0]
    with pytest.raises(ValueError, match="no vectors"):
        trimmed_mean(np.zeros((0, 3), np.float32), 0.1)


@pytest.mark.parametrize("beta", [-0.01, 0.5, 1.0, float("nan")])
def test_a_beta_that_drops_all_or_less_than_nothing_is_refused(beta):
    with pytest.raises(ValueError, match="beta is"):
        trimmed_mean(np.ones((3, 2), np.float32), beta)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_a_diverged_model_is_told_and_not_trimmed_away(value, beta):
    vectors = np.ones((5, 3), np.float32)
    vectors[2, 1] = value
    with pytest.raises(DivergedError, match="diverged"):
        trimmed_mean(vectors, beta)


def test_a_damped_step_goes_the_share_of_the_way():
    # CAM, Eq. 6, with n_i = 1 and 2 of n = 6: half of the old model, a sixth and a third of the clients'.
    old, one, other = np.float32([6]), np.float32([12]), np.float32([0])
    mean = (1 * one + 2 * other) / 3
    assert damped_mean(old, mean, share=3 / 6).tolist() == pytest.approx([6 * 3 / 6 + 12 * 1 / 6 + 0 * 2 / 6])


@unhurried
@given(models)
def test_the_ends_of_the_way_are_the_models_themselves(vectors):
    assert np.array_equal(damped_mean(vectors[0], vectors[1], 0.0), vectors[0])
    assert np.array_equal(damped_mean(vectors[0], vectors[1], 1.0), vectors[1])
    assert damped_mean(vectors[0], vectors[1], 0.3).dtype == np.float32


def test_a_damped_step_is_rounded_once():
    old, mean = np.float32([1.0]), np.float32([1.0 + 2**-23])
    assert damped_mean(old, mean, 0.75).tolist() == mean.tolist()
    assert damped_mean(np.float32([0.1]), np.float32([0.1]), 0.3).tolist() == np.float32([0.1]).tolist()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="share is"):
        damped_mean(np.ones(2, np.float32), np.ones(2, np.float32), share)
