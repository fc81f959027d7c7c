"""Exact sums: free of order, reversible, and as precise as float32 needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rayfl.aggregation import ExactSum, fraction_bits, mean_of
from rayfl.errors import DivergedError

vectors = arrays.arrays(np.float32, (6, 5), elements=st.floats(-1000, 1000, width=32))
weights = st.lists(st.integers(1, 10_000), min_size=6, max_size=6)


def summed(vectors: np.ndarray, weights: list[int], bits: int) -> np.ndarray:
    total = ExactSum(vectors.shape[1], bits)
    for vector, weight in zip(vectors, weights, strict=True):
        total.add(vector, weight)
    return total.total


@given(vectors, weights, st.permutations(range(6)))
def test_the_order_of_the_terms_leaves_no_trace(vectors: np.ndarray, weights: list[int], order: list[int]) -> None:
    bits = fraction_bits(sum(weights))
    shuffled = summed(vectors[order], [weights[i] for i in order], bits)
    assert np.array_equal(summed(vectors, weights, bits), shuffled)


@given(vectors, weights, st.integers(1, 5))
def test_sums_of_parts_are_the_sum_of_the_whole(vectors: np.ndarray, weights: list[int], cut: int) -> None:
    bits = fraction_bits(sum(weights))
    parts = summed(vectors[:cut], weights[:cut], bits) + summed(vectors[cut:], weights[cut:], bits)
    assert np.array_equal(summed(vectors, weights, bits), parts)


@given(vectors, weights)
def test_the_mean_is_that_of_float64_to_float32_precision(vectors: np.ndarray, weights: list[int]) -> None:
    bits = fraction_bits(sum(weights))
    expected = np.average(vectors.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(
        mean_of(summed(vectors, weights, bits), sum(weights), bits), expected, rtol=3e-7, atol=1e-9
    )


@given(vectors)
def test_what_is_taken_out_was_never_there(vectors: np.ndarray) -> None:
    total = ExactSum(5, 36)
    for vector in vectors:
        total.add(vector)
    for vector in vectors[1:]:
        total.subtract(vector)
    assert np.array_equal(total.total, summed(vectors[:1], [1], 36))


def test_a_hundred_thousand_clients_do_not_overflow() -> None:
    bits = fraction_bits(100_000)
    total = ExactSum(1, bits)
    total.add(np.float32([30_000]), 100_000)
    assert mean_of(total.total, 100_000, bits).tolist() == [30_000]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 40_000.0])
def test_a_model_that_left_the_range_is_told_and_not_summed(bad: float) -> None:
    total = ExactSum(2, 36)
    with pytest.raises(DivergedError, match=r"lower local\.lr"):
        total.add(np.float32([0, bad]))
    assert total.total.tolist() == [0, 0]
